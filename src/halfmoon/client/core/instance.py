"""One client as brokers see it: its id, its groups, heartbeats, routes, and its replies to their requests.

Follows MQClientInstance (RocketMQ 4.9.8).
Differs: every producer and consumer has an instance of its own, as from 4.9 on; a heartbeat also goes out as soon as a broker
becomes known, so that a new broker can ask us at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import INNER_PRODUCER, wrap
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import ROUTES_FAILED, RouteTable
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.client.settings import ClientSettings
from halfmoon.effects import Op, Signal, gather, sleep, spawn, steady, wait
from halfmoon.errors import HalfmoonError, PeerError
from halfmoon.model import MessageQueue, split_addresses
from halfmoon.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumerStatus,
    HeartbeatData,
    ProducerData,
    ResetOffsetBody,
    from_json,
    to_json,
)
from halfmoon.wire.codes import Language
from halfmoon.wire.command import Command, reply_command
from halfmoon.wire.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from halfmoon.wire.headers.offset import ResetConsumerClientOffset
from halfmoon.wire.table import not_supported, request_text

BEAT_PAUSE_MS = 200
"""At least so long between two rounds of heartbeats, so that a broker which hangs up after each is not asked in a circle."""

LOOK_MS, LOOKS_MAX = 1_000, 30
"""Pause between two looks for the next master of a broker, and how many there are: routes are asked for again after that anyway."""

log = logging.getLogger("halfmoon.client")


class Member(Protocol):
    """A consumer as its instance knows it. Names are those of the wire."""

    group: str

    def heartbeat_data(self) -> ConsumerData:
        """Its part of heartbeats."""

    def group_changed(self) -> None:
        """Other members came or went: rebalance."""

    def disconnected(self, address: str) -> None:
        """Handle the loss of the connection to a broker."""

    def reset(self, topic: str, offsets: dict[MessageQueue, int]) -> Op[None]:
        """Go to other offsets."""

    def progress(self, topic: str) -> dict[MessageQueue, int]:
        """Its offsets in a topic."""

    def running_info(self) -> ConsumerRunningInfo:
        """Its state."""

    def consume_directly(self, record: bytes, broker_name: str) -> Op[ConsumeDirectlyResult | None]:
        """Consume one message now; None: it cannot."""


class Instance:
    """The state that one producer, consumer or administration client keeps towards all brokers.

    ``client_id`` names it; `background_work` is what must run beside its work; `asked` answers requests of brokers.
    """

    def __init__(self, settings: ClientSettings, client_id: str, random: Random) -> None:
        self.settings = settings
        self.client_id = client_id
        self.random = random
        self.name_servers = NameServers(split_addresses(settings.nameserver), random, settings.request_timeout_ms)
        self.routes = RouteTable(self.name_servers, random, self._route_changed)
        self.troubles = TroubleLog()
        self.producer_group: str | None = None
        self.member: Member | None = None
        self.stacks: Callable[[], str] | None = None
        """Returns what the threads of this process are doing, where the runtime can tell."""
        self.on_asked: dict[int, Callable[[str, Command], Any]] = {
            40: self._asked_to_rebalance,
            220: self._asked_to_reset,
            221: self._asked_for_progress,
            307: self._asked_for_info,
            309: self._asked_to_consume,
        }
        self._beat = Signal()
        self._known: frozenset[str] = frozenset()
        self._greeted: set[str] = set()
        self._unheard: set[str] = set()
        """Brokers whose last heartbeat arrived, and those whose last one failed."""
        self._lost: dict[str, tuple[str, int]] = {}
        """Brokers whose master was lost: its address, and how often the next one was looked for."""
        self._master_lost = Signal()
        self._beating = False
        self._greeting: Signal | None = None
        """Fires when the heartbeats that `greet` sends have ended."""

    def wire(self, name: str) -> str:
        """Return a topic or group as it is called on the wire."""
        return wrap(name, self.settings.namespace)

    # ------------------------------------------------------------ beside the work

    def background_work(self) -> list[Op[None]]:
        """Return the operations that run until they are cancelled: fresh routes and heartbeats."""
        return [self._keep_routes(), self._keep_beating(), self._keep_masters()]

    def beat_soon(self) -> None:
        """Send heartbeats at once, because a broker forgot us or something changed."""
        self._beat.fire()

    def heard_by(self, address: str) -> bool:
        """Whether our last heartbeat to a broker arrived; if it failed, that was logged."""
        return address in self._greeted

    def is_registered(self) -> bool:
        """Whether each broker that is known has answered our last heartbeat."""
        return all(address in self._greeted for _, _, address in self.routes.addresses(masters_only=self.member is None))

    def tried(self, address: str) -> bool:
        """Whether a heartbeat to a broker arrived or failed since we know it, or since its connection was lost."""
        return address in self._greeted or address in self._unheard

    def greet(self, timeout_ms: int) -> Op[None]:
        """Send heartbeats and wait for them, at most so long; whoever calls it meanwhile waits for the same ones."""
        if self._greeting is None:
            self._greeting = Signal()
            # By itself: the others go on waiting for it where its caller is cancelled.
            yield from spawn(self._greet(self._greeting), "greeting")
        yield from wait(self._greeting, timeout_ms)

    def _greet(self, ended: Signal) -> Op[None]:
        try:
            yield from self.beat()
        finally:
            self._greeting = None
            ended.fire()

    def connected(self, address: str) -> None:
        """Send a heartbeat at once if a new connection replaces a lost one, for then the broker has forgotten us.

        Also where the last heartbeat failed: a broker that is killed still accepts a connection or two. A connection that a
        heartbeat itself makes does not count then, or a broker that hangs up after each would be asked in a circle.

        Follows the heartbeat of 5.x upon connecting; 4.x waits for the next one.
        """
        for name in [name for name, (lost, _) in self._lost.items() if lost == address]:
            del self._lost[name]
        if address in self._greeted or (address in self._unheard and not self._beating):
            self._greeted.discard(address)
            self._unheard.discard(address)
            self._beat.fire()

    def disconnected(self, address: str) -> None:
        """Handle a lost connection, and with it the consumer's locks on queues of that broker.

        Where it was the master of a broker whose other member may take over, the next one is looked for, so that it hears of us.
        """
        for name, _, master in self.routes.addresses(masters_only=True):
            if master == address and self.routes.has_slave(name):
                self._lost[name] = address, 0
                self._master_lost.fire()
        if self.member is not None:
            self.member.disconnected(address)

    def _keep_routes(self) -> Op[None]:
        while True:
            yield from sleep(self.settings.route_refresh_ms)
            try:
                yield from self.routes.refresh_all(self.troubles)
            except HalfmoonError as exc:
                self.troubles.failed(ROUTES_FAILED, exc, (yield from steady()))

    def _keep_masters(self) -> Op[None]:
        """Look for the next masters of brokers whose master was lost: once they are known, heartbeats go there at once."""
        while True:
            if not self._lost:
                yield from wait(self._master_lost)
            for name, (address, looks) in list(self._lost.items()):
                topic = self.routes.topic_of(name)
                if name not in self._lost:  # meanwhile it is back
                    continue
                if topic is None or looks == LOOKS_MAX or self.routes.master(name) != address:
                    del self._lost[name]
                    continue
                self._lost[name] = address, looks + 1
                yield from self.routes.look_for(topic, name)
            yield from sleep(LOOK_MS)

    def _keep_beating(self) -> Op[None]:
        while True:
            yield from wait(self._beat, self.settings.heartbeat_ms)
            yield from self.beat()
            yield from sleep(BEAT_PAUSE_MS)

    def beat(self) -> Op[None]:
        """Send a heartbeat to every known broker; slaves only matter to consumers. Failures are logged."""
        if self.producer_group is None and self.member is None:
            return
        body = to_json(self.heartbeat_data())
        addresses = [address for _, _, address in self.routes.addresses(masters_only=self.member is None)]
        self._known = frozenset(addresses)
        self._greeted &= self._known
        self._unheard &= self._known
        self._beating = True
        sends = [ask(address, HeartBeat(), body, self.settings.request_timeout_ms) for address in addresses]
        outcomes = yield from gather(sends)
        self._beating = False
        for address, outcome in zip(addresses, outcomes):
            if isinstance(outcome, Exception):
                self.troubles.failed(f"no heartbeat to broker {address}", outcome, (yield from steady()))
                self._unheard.add(address)
            else:
                self.troubles.recovered(f"no heartbeat to broker {address}")
                self._greeted.add(address)
                self._unheard.discard(address)

    def heartbeat_data(self) -> HeartbeatData:
        """Return the body of a heartbeat."""
        producers = [ProducerData(group_name=INNER_PRODUCER)]
        if self.producer_group is not None:
            producers.append(ProducerData(group_name=self.producer_group))
        consumers = [self.member.heartbeat_data()] if self.member is not None else []
        return HeartbeatData(client_id=self.client_id, producer_data_set=producers, consumer_data_set=consumers)

    def leave(self) -> Op[None]:
        """Unregister from every known broker. Failures are logged."""
        if self.producer_group is None and self.member is None:
            return
        request = UnregisterClient(
            client_id=self.client_id,
            producer_group=self.producer_group,
            consumer_group=self.member.group if self.member is not None else None,
        )
        addresses = [address for _, _, address in self.routes.addresses() if address in self._known]
        outcomes = yield from gather([ask(address, request, b"", self.settings.request_timeout_ms) for address in addresses])
        for address, outcome in zip(addresses, outcomes):
            if isinstance(outcome, Exception):
                log.info("unregistering failed: broker=%s reason=%s", address, outcome)

    def _route_changed(self, topic: str) -> None:
        addresses = {address for _, _, address in self.routes.addresses(masters_only=self.member is None)}
        if addresses - self._known:
            self._beat.fire()
        if self.member is not None:
            self.member.group_changed()

    # ------------------------------------------------------------ what brokers ask

    def asked(self, address: str, command: Command) -> Any:
        """Return the reply to a broker's request, an operation that gives it, or None for none."""
        answer = self.on_asked.get(command.code)
        if answer is None:
            if command.is_oneway:
                return None
            return _reply(command, 3, not_supported(command.code))
        try:
            return answer(address, command)
        except PeerError as exc:
            log.warning("broker request does not decode: request=%s broker=%s reason=%s", request_text(command.code), address, exc)
            return None if command.is_oneway else _reply(command, 1, str(exc))

    def _asked_to_rebalance(self, address: str, command: Command) -> None:
        header = command.header(NotifyConsumerIdsChanged)
        if self.member is not None and self.member.group == header.consumer_group:
            self.member.group_changed()

    def _asked_to_reset(self, address: str, command: Command) -> Op[None] | None:
        header = command.header(ResetConsumerClientOffset)
        offsets = from_json(ResetOffsetBody, bytes(command.body)).offset_table if command.body else {}
        if self.member is not None and self.member.group == header.group:
            return self.member.reset(header.topic, dict(offsets))
        return None

    def _asked_for_progress(self, address: str, command: Command) -> Command:
        header = command.header(GetConsumerStatusFromClient)
        offsets = self.member.progress(header.topic) if self.member is not None and self.member.group == header.group else {}
        return _reply(command, 0, None, to_json(ConsumerStatus(message_queue_table=offsets)))

    def _asked_for_info(self, address: str, command: Command) -> Command:
        header = command.header(GetConsumerRunningInfo)
        if self.member is None or self.member.group != header.consumer_group:
            return _reply(command, 1, f"The Consumer Group <{header.consumer_group}> not exist in this consumer")
        info = self.member.running_info()
        if header.jstack_enable and self.stacks is not None:
            info.jstack = self.stacks()
        return _reply(command, 0, None, to_json(info))

    def _asked_to_consume(self, address: str, command: Command) -> Op[Command]:
        return self._consume_directly(command.header(ConsumeMessageDirectly), command)

    def _consume_directly(self, header: ConsumeMessageDirectly, command: Command) -> Op[Command]:
        result = None
        if self.member is not None and self.member.group == header.consumer_group:
            try:
                result = yield from self.member.consume_directly(bytes(command.body), header.broker_name or "")
            except PeerError as exc:
                return _reply(command, 1, f"the message of the request does not decode: {exc}")
        if result is None:
            return _reply(command, 1, f"The Consumer Group <{header.consumer_group}> not exist in this consumer")
        return _reply(command, 0, None, to_json(result))


def _reply(command: Command, code: int, remark: str | None, body: bytes = b"") -> Command:
    return reply_command(command, code, remark, body=body, language=int(Language.PYTHON))


def client_id(ip: str, settings: ClientSettings, process: str, *, stable: bool = False) -> str:
    """Return ``ip@instance[@unit]``; the instance DEFAULT becomes ``process`` unless the id must be ``stable`` (broadcasting).

    Follows ClientConfig.buildMQClientId and changeInstanceNameToPID (RocketMQ 4.9.8), where ``process`` is ``pid#nanoseconds``.
    """
    name = process if settings.instance_name == "DEFAULT" and not stable else settings.instance_name
    return f"{settings.client_ip or ip}@{name}" + (f"@{settings.unit_name}" if settings.unit_name else "")
