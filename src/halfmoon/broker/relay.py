"""Requests that the broker passes on to a connected client and whose answer goes back to who asked: 307, 221 by way of 223.

Keeps what is under way, at most `UNDER_WAY_MAX`, each with a deadline; never waits itself. Follows AdminBrokerProcessor and
Broker2Client (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from halfmoon.broker.clients import Clients
from halfmoon.broker.request import Reply, Request
from halfmoon.errors import BrokerError, ResponseCode, SystemBusy
from halfmoon.wire.codes import VERSION_V3_1_8, Language
from halfmoon.wire.command import Command, encode, request_command
from halfmoon.wire.headers.client import GetConsumerRunningInfo
from halfmoon.wire.peer import Peers
from halfmoon.wire.table import Header

UNDER_WAY_MAX = 10_000
"""Relayed requests under way, so that clients that never answer cannot fill the memory."""

TIMEOUT_MS = 10_000
"""How long a client may take. Follows AdminBrokerProcessor.callConsumer."""


class _UnderWay(msgspec.Struct, eq=False):
    request: Request
    peer: int
    deadline_ms: int


class Relay:
    """Requests under way to clients."""

    def __init__(self, clients: Clients, peers: Peers, answer: Callable[[Request, Reply], None]) -> None:
        self._clients, self._peers, self._answer = clients, peers, answer
        self._under_way: dict[int, _UnderWay] = {}
        self._opaque = 0

    def running_info(self, request: Request) -> None:
        """Pass 307 on to the client it names; the client's body goes back unchanged."""
        header = request.header(GetConsumerRunningInfo)
        self.ask(request, header.consumer_group, header.client_id, header)

    def ask(self, request: Request, group: str, client_id: str, header: Header, body: bytes = b"") -> None:
        """Send a request to a member of a group on behalf of ``request``.

        Raises:
            BrokerError: the client is not connected.
            SystemBusy: too many are under way.
        """
        member = self._clients.member(group, client_id)
        if member is None:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> not online")
        if member.version < VERSION_V3_1_8:
            raise BrokerError(f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it")
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise SystemBusy(f"{UNDER_WAY_MAX} requests to clients are under way")
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command = request_command(header, body, opaque=self._opaque)
        command.language = int(Language.JAVA)
        request.command.fields, request.command.body = {}, b""  # what is kept for seconds shall be small
        self._under_way[self._opaque] = _UnderWay(request, member.peer.number, request.now + TIMEOUT_MS)
        self._peers.answer(member.peer, encode(command))

    def answered(self, peer: int, command: Command) -> None:
        """A client answered: pass it back. An answer that nobody waits for, or of another connection, is ignored."""
        waiting = self._under_way.get(command.opaque)
        if waiting is not None and waiting.peer == peer:
            del self._under_way[command.opaque]
            self._answer(waiting.request, Reply(command.code, command.remark, None, command.body))

    def lost(self, peer: int) -> None:
        """A connection is gone: who asked for it hears so at once, what it asked for is forgotten."""
        for opaque, waiting in list(self._under_way.items()):
            if waiting.peer == peer:
                del self._under_way[opaque]
                self._answer(waiting.request, Reply(int(ResponseCode.SYSTEM_ERROR), "the client's connection was lost"))
            elif waiting.request.peer.number == peer:
                del self._under_way[opaque]

    def due(self) -> int | None:
        """When the first client has taken too long."""
        return next(iter(self._under_way.values())).deadline_ms if self._under_way else None

    def tick(self, now: int) -> None:
        """Give up clients that took too long (207)."""
        for opaque, waiting in list(self._under_way.items()):
            if waiting.deadline_ms > now:
                return  # all wait equally long, so they stand in order
            del self._under_way[opaque]
            self._answer(
                waiting.request, Reply(int(ResponseCode.CONSUME_MSG_TIMEOUT), f"no answer from the client in {TIMEOUT_MS} ms")
            )
