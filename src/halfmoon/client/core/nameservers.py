"""Which name server is asked. Keeps the list and the one that answered last; asks the next when it fails."""

from __future__ import annotations

from random import Random

from halfmoon.client.core.ask import call, knows
from halfmoon.effects import Op
from halfmoon.errors import (
    AccessRefused,
    NetworkError,
    NoNameServer,
    NoNameServerAnswers,
    NotNameServer,
    RequestNotSupported,
    broker_error,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.table import Header


class NameServers:
    """The name servers of one client. One is chosen and kept while it answers, then the next in turn.

    Follows NettyRemotingClient.getAndCreateNameserverChannel (RocketMQ 4.9.8): the list is shuffled once.
    """

    def __init__(self, addresses: list[str], random: Random, timeout_ms: int = 3_000) -> None:
        self.addresses = random.sample(addresses, len(addresses))
        self.timeout_ms = timeout_ms
        self._at = 0

    def call(self, request: Header, body: bytes = b"") -> Op[Command]:
        """Ask one name server, on failure of the network the next, each once; return the reply whatever its code.

        Raises NoNameServer when none is set, NoNameServerAnswers, which names each with the reason.
        """
        if not self.addresses:
            raise NoNameServer('no name server address: give nameserver="host:port", or set HALFMOON_NAMESERVER')
        errors: dict[str, NetworkError] = {}
        for _ in range(len(self.addresses)):
            try:
                reply = yield from call(self.addresses[self._at], request, body, self.timeout_ms)
                if reply.code != 0:
                    yield from self._check(self.addresses[self._at], reply)
                return reply
            except NetworkError as exc:
                errors[self.addresses[self._at]] = exc
                self._at = (self._at + 1) % len(self.addresses)
        raise NoNameServerAnswers(errors)

    def _check(self, address: str, reply: Command) -> Op[None]:
        """Raise NotNameServer where a request was refused, as unknown or without an account, by one that is asked as a broker."""
        is_refused = isinstance(broker_error(reply.code, reply.remark), RequestNotSupported | AccessRefused)
        if is_refused and (yield from knows(address, GetBrokerRuntimeInfo(), self.timeout_ms)):
            raise NotNameServer(address)

    def ask(self, request: Header, body: bytes = b"") -> Op[Command]:
        """Ask as `call` does and return the reply of code 0. Raises BrokerError besides."""
        reply = yield from self.call(request, body)
        if reply.code != 0:
            raise broker_error(reply.code, reply.remark, self.addresses[self._at])
        return reply
