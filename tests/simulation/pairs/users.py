"""Users of a pair: senders of messages of three kinds, and a consumer of each queue. They write into a `PairLedger`.

Each request goes to one of the two members, and to the other one after a failure. A body is sent once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from halfmoon.effects import Call, Now, Op, sleep
from halfmoon.errors import NetworkError
from halfmoon.testing.cluster import topic_request
from halfmoon.testing.driver import Calls, Driver
from halfmoon.testing.network import Network
from halfmoon.testing.requests import messages_of, pull_request, send_header
from halfmoon.testing.timeline import Timeline
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.send import SendMessage, SendMessageReply
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id

TOPIC, QUEUES, GROUP = "orders", 2, "C"
Place = tuple[int, int]
"""Queue id and queue offset."""


@dataclass
class PairLedger:
    """Record of a history. Bodies stand for messages."""

    acked: dict[bytes, Place] = field(default_factory=dict)
    """Plain messages that were acknowledged, in the order of the acknowledgements."""
    owed: dict[bytes, int] = field(default_factory=dict)
    """Delayed messages that were acknowledged, and committed ones: they must be delivered, not before a date."""
    never: set[bytes] = field(default_factory=set)
    """Half messages that nobody committed, or whose rollback was answered."""
    seen: dict[Place, bytes] = field(default_factory=dict)
    places: dict[bytes, set[Place]] = field(default_factory=lambda: defaultdict(set))
    topics: list[str] = field(default_factory=list)
    """Topics whose creation was answered."""
    end: int = 0
    """Behind the first byte of the last record whose sender was answered, a physical offset."""
    on_acked: Callable[[], None] = lambda: None
    problems: list[str] = field(default_factory=list)
    epochs: list[tuple[int, str]] = field(default_factory=list)
    is_closing: bool = False
    delayed: set[bytes] = field(default_factory=set)
    """Bodies of delayed messages: after a power loss they may be delivered again."""
    has_lost_power: bool = False
    excused: bool = False
    """A power loss with asynchronous flush has taken what only one member had."""

    def saw(self, place: Place, body: bytes) -> None:
        """Note that a message was read at a place."""
        if self.excused:
            return
        if self.seen.setdefault(place, body) != body:
            self.problems.append(f"{place} was {self.seen[place]!r}, and is {body!r}")
        self.places[body].add(place)
        if len(self.places[body]) > 1 and not (self.has_lost_power and body in self.delayed):
            self.problems.append(f"{body!r} is at {sorted(self.places[body])}")
        if body in self.never:
            self.problems.append(f"{body!r} was never committed, and is at {place}")


class User:
    """One client machine."""

    def __init__(self, timeline: Timeline, network: Network, ledger: PairLedger, addresses: list[str], number: int) -> None:
        self.name, self.host = f"u{number}", f"10.0.2.{number}"
        self.driver = Driver(timeline, Calls(timeline, network, self.host), lambda: timeline.now, self.name)
        self._random: Random = timeline.split(self.name)
        self._ledger, self._addresses, self._number = ledger, addresses, 0

    def ask(self, request: Any, body: bytes = b"", timeout_ms: int = 1500) -> Op[Command]:
        """Ask the member that answered last. Raises NetworkError; then it is the other's turn."""
        try:
            reply: Command = yield Call(self._addresses[0], request, body, timeout_ms)
        except NetworkError:
            self._addresses.reverse()
            raise
        return reply

    def insist(self, request: Any, attempts: int) -> Op[Command | None]:
        """Ask until it is answered with success; return None after some attempts."""
        for _ in range(attempts):
            try:
                reply = yield from self.ask(request)
            except NetworkError:
                yield from sleep(self._random.randint(5, 300))
                continue
            if reply.code == 0:
                return reply
            yield from sleep(self._random.randint(50, 300))
        return None

    # ------------------------------------------------------------ senders

    def send(self) -> Op[None]:
        """Send one message after another."""
        while not self._ledger.is_closing:
            self._number += 1
            body = f"{self.name}-{self._number}".encode()
            kind = self._random.choices((self._plain, self._delayed, self._half, self._topic), (6, 2, 2, 0.5))[0]
            try:
                yield from kind(body)
            except NetworkError:
                yield from sleep(self._random.randint(5, 200))
            yield from sleep(self._random.randint(20, 300))

    def _stored(self, body: bytes, sys_flag: int = 0, **properties: str) -> Op[SendMessageReply | None]:
        queue_id, padding = self._random.randrange(QUEUES), b" " * self._random.choice((0, 100, 4000))
        fields = {"UNIQ_KEY": body.decode(), "WAIT": "true", **properties}
        header = send_header(SendMessage, TOPIC, queue_id, (yield Now()), fields)
        header.sys_flag = sys_flag
        reply = yield from self.ask(header, body + padding)
        if reply.code == 0:
            found: SendMessageReply = reply.header(SendMessageReply)
            self._ledger.end = max(self._ledger.end, parse_offset_msg_id(found.msg_id).physical_offset + 1)
            self._ledger.on_acked()
            return found
        yield from sleep(self._random.randint(20, 200))
        return None

    def _plain(self, body: bytes) -> Op[None]:
        if (found := (yield from self._stored(body))) is not None:
            self._ledger.acked[body] = found.queue_id, found.queue_offset

    def _delayed(self, body: bytes) -> Op[None]:
        begun_ms = yield Now()
        self._ledger.delayed.add(body)
        if (yield from self._stored(body, DELAY="1")) is not None:
            self._ledger.owed[body] = begun_ms

    def _topic(self, body: bytes) -> Op[None]:
        topic = f"t-{body.decode()}"
        if (yield from self.ask(topic_request(topic, 1))).code == 0:
            self._ledger.topics.append(topic)

    def _half(self, body: bytes) -> Op[None]:
        ledger = self._ledger
        ledger.never.add(body)
        found = yield from self._stored(body, TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="P")
        if found is None:
            return
        yield from sleep(self._random.choice((0, 0, 50, 1500)))
        is_commit = self._random.random() < 0.7
        decision = EndTransaction(
            producer_group="P", tran_state_table_offset=found.queue_offset, msg_id=body.decode(), topic=TOPIC,
            commit_log_offset=parse_offset_msg_id(found.msg_id).physical_offset,
            commit_or_rollback=TRANSACTION_COMMIT if is_commit else TRANSACTION_ROLLBACK,
        )  # fmt: skip
        if is_commit:
            ledger.never.discard(body)
        if (yield from self.insist(decision, 4)) is not None and is_commit:
            ledger.owed[body] = 0

    # ------------------------------------------------------------ consumers

    def consume(self, queue_id: int) -> Op[None]:
        """Read a queue, over and over."""
        offset = 0
        while not self._ledger.is_closing:
            try:
                reply = yield from self.ask(pull_request(GROUP, TOPIC, queue_id, offset, wait_ms=1000), timeout_ms=3000)
                if reply.code in (0, 19, 20, 21):
                    offset = yield from self._read(queue_id, offset, reply)
                else:
                    yield from sleep(100)
            except NetworkError:
                yield from sleep(self._random.randint(5, 300))
            if self._random.random() < 0.03:
                offset = 0
            yield from sleep(self._random.randint(1, 100))

    def _read(self, queue_id: int, offset: int, reply: Command) -> Op[int]:
        for message, _ in messages_of(reply) if reply.code == 0 else ():
            self._ledger.saw((queue_id, message.queue_offset), message.body.rstrip(b" "))
        upto = int(reply.header(PullMessageReply).next_begin_offset)
        if upto < offset and not self._ledger.excused:
            self._ledger.problems.append(f"queue {queue_id} was read up to {offset}, and goes on at {upto} ({reply.code})")
        if upto > offset:
            commit = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=upto)
            yield from self.ask(commit)
        return upto

    def read_all(self) -> Op[dict[Place, bytes]]:
        """Return what all queues hold, by place."""
        found: dict[Place, bytes] = {}
        for queue_id in range(QUEUES):
            offset, upto = -1, 0
            while upto > offset:
                offset = upto
                reply = yield from self.ask(pull_request("R", TOPIC, queue_id, offset))
                for message, _ in messages_of(reply) if reply.code == 0 else ():
                    found[queue_id, message.queue_offset] = message.body.rstrip(b" ")
                if reply.code in (0, 19, 20, 21):
                    upto = int(reply.header(PullMessageReply).next_begin_offset)
        return found
