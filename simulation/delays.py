"""Workload of delayed messages (levels, points in time, recalls), and its checkers.

None is early, none that was acknowledged is lost, a recalled one never comes, none comes twice without a power failure, and those
of one sender, level and queue come in order. With power failures the flush is sync, so that nothing acknowledged may be lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

from halfmoon.effects import Call, Now, Op, sleep
from halfmoon.errors import NetworkError
from halfmoon.model import UNIQ_KEY
from halfmoon.testing.cluster import BrokerNode
from halfmoon.testing.requests import send_header
from halfmoon.wire.headers.delay import RecallMessage
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.record import decode_record
from simulation.faults import HOUR_MS, Faults
from simulation.history import BROKER, Workload
from simulation.ledger import Ledger

TOPIC, QUEUES, SENDERS = "later", 3, 4
LEVELS, LEVELS_MS = "1s 2s 4s", (1000, 2000, 4000)
TIMED_MS_MAX = 8000
FAR_MS_MAX = 1_800_000
"""In histories in which a broker's clock is ahead by an hour for a moment, some messages are due within so long: they come then."""
LATE_MS_MAX = 1000
"""Maximum delay of a message behind its time while no fault is injected."""


@dataclass
class Wish:
    """A message and what its sender asked for. ``level`` 0: a point in time. It is not due before ``due_ms``."""

    sender: str
    number: int
    queue_id: int
    level: int
    due_ms: int
    attempts: int = 0
    acked: bool = False
    acked_ms: int = 0
    recall_tried: bool = False
    recalled: bool = False


@dataclass
class Delivered:
    """A record of the real topic."""

    body: bytes
    queue_id: int
    queue_offset: int
    store_ms: int


@dataclass
class DelayLedger:
    """Record of a history.

    ``once``: no message may be delivered more often than it was sent. ``ended_ms``: the end; all messages that were due before are
    delivered then.
    """

    messages: Ledger
    once: bool
    ended_ms: int = 1 << 62
    wishes: dict[bytes, Wish] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)


class DelayFaults(Faults):
    """The faults of a history. A clock is never behind: when a message is due is judged by it."""

    DRAWN = ("kill", "torn", "stop", "slow_disk", "cut", "lose")
    KINDS = (*DRAWN, "power", "damage", "ahead")

    def ahead(self) -> None:
        """Let a broker's clock be ahead for a moment, if it is right; a broker that goes on stays ahead, so it starts anew."""
        broker = self._random.choice(self.cluster.brokers)
        if not broker.host.clock_ahead_ms:
            broker.host.step_clock(self._random.choice((2000, HOUR_MS)))
            self._later((100, 1500), partial(self._set_back, broker))

    def _set_back(self, broker: BrokerNode) -> None:
        self._note(broker, "kill")
        self.cluster.crash(broker)
        broker.host.step_clock(-broker.host.clock_ahead_ms)
        self._later((10, 500), partial(self._restart, broker))


class Delays(Workload):
    """Senders that ask for a level or a point in time, and recall some of their messages."""

    NAME = "delays"
    STEPS, PACE = 8, ((20, 2500), 1300)
    FAULTS = DelayFaults

    def draw(self) -> dict[str, Any]:
        history, chance = self.history, self.chance
        power = chance.random() < 0.3 if history.kinds is None else "power" in history.kinds
        history.flush = history.flush or ("sync" if power else chance.choice(("sync", "async")))
        if history.kinds is None and power and history.flush == "sync":
            history.kinds = ["power", chance.choice(DelayFaults.DRAWN)]
        self.ledger = DelayLedger(self.messages, once=not {"power", "damage"}.intersection(history.kinds or ()))
        return {"broker": {**BROKER, "delay_levels": LEVELS}}

    def begin(self) -> None:
        self.history.create_topics(TOPIC, queues=QUEUES)
        for number in range(SENDERS):
            self.cluster.driver(f"sender-{number}").start(self._send(f"s{number}"), f"s{number}")
        self.cluster.run(ms=500)

    def end(self) -> None:
        self.history.plan.closing = True
        self.cluster.run(ms=TIMED_MS_MAX + 12_000)
        self.ledger.ended_ms = self.cluster.timeline.now

    def problems(self) -> dict[str, list[str]]:
        """Judge what came; compare brokers whose logs were damaged with what `fsck` says of them."""
        for place, queue in self.history.contents(self.history.places([TOPIC], QUEUES)).items():
            for offset, seen in sorted(queue.messages.items()):
                message = decode_record(memoryview(seen.record))
                if (place, offset) in self.messages.spoilt and crc32(message.body) & 0x7FFFFFFF != message.body_crc:
                    continue  # its receiver sees that, too
                self.ledger.delivered.append(Delivered(bytes(message.body), place.queue_id, offset, message.store_ms))
        found = check_delays(self.ledger)
        for broker in self.cluster.brokers if "damage" in self.history.faults.kinds else ():
            self.cluster.stop(broker)
            found["fsck"] = self.history.fsck_differs(broker)
        return found

    def count(self) -> dict[str, int | str]:
        wishes = self.ledger.wishes.values()
        return {
            "acknowledged": sum(wish.acked for wish in wishes), "delivered": len(self.ledger.delivered),
            "recalled": sum(wish.recalled for wish in wishes),
        }  # fmt: skip

    # ---------------------------------------------------------------- users

    def _send(self, name: str) -> Op[None]:
        """Send messages one after the other, each again until it is acknowledged; recall some of them."""
        random, number = self.cluster.timeline.split(f"sends {name}"), 0
        [address] = self.history.plan.brokers.values()
        while not self.history.plan.closing:
            body, unique = f"{name}/{number}".encode(), f"{name}-{number}"
            now: int = yield Now()
            # A level counts from when the broker took the message, by a clock that may have been ahead.
            ahead = "ahead" in self.history.faults.kinds
            level = 0 if ahead else random.choice((0, 0, 1, 1, 2, 3))
            timed_ms_max = FAR_MS_MAX if ahead and random.random() < 0.1 else TIMED_MS_MAX
            due_ms = now + (LEVELS_MS[level - 1] if level else random.randint(1, timed_ms_max))
            wish = self.ledger.wishes[body] = Wish(name, number, random.randrange(QUEUES), level, due_ms)
            asked = {"DELAY": str(level)} if level else {"TIMER_DELIVER_MS": str(due_ms)}
            handle = yield from self._send_until_acked(address, wish, body, {UNIQ_KEY: unique, **asked}, random)
            if handle and random.random() < 0.3:
                yield from self._recall(address, wish, handle)
            number += 1
            yield from sleep(random.randint(0, 120))

    def _send_until_acked(self, address: str, wish: Wish, body: bytes, fields: dict[str, str], random: Random) -> Op[str | None]:
        header = send_header(SendMessageV2, TOPIC, wish.queue_id, (yield Now()), fields)
        for _ in range(8):
            wish.attempts += 1
            try:
                reply = yield Call(address, header, body, 3000)
            except NetworkError:
                yield from sleep(random.randint(5, 400))
            else:
                if reply.code == 0:
                    wish.acked = True
                    wish.acked_ms = self.cluster.timeline.now
                    answer: SendMessageReply = reply.header(SendMessageReply)
                    return answer.recall_handle
                yield from sleep(random.randint(20, 600))
        return None

    def _recall(self, address: str, wish: Wish, handle: str) -> Op[None]:
        wish.recall_tried = True
        try:
            reply = yield Call(address, RecallMessage(producer_group="senders", topic=TOPIC, recall_handle=handle), b"", 3000)
        except NetworkError:
            return
        if reply.code == 0:
            wish.recalled = True
        elif reply.code not in (1, 2, 14, 604):
            self.messages.unexpected.append(f"a recall was answered {reply.code}: {reply.remark}")


def check_delays(ledger: DelayLedger) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    checkers = (early, lost, recalled, twice, order)
    return {checker.__name__: checker(ledger) for checker in checkers}


def early(ledger: DelayLedger) -> list[str]:
    """Check that nothing is stored under its topic before its time, nor in another queue than its own."""
    problems = []
    for one in ledger.delivered:
        wish = ledger.wishes.get(one.body)
        if wish is None or wish.queue_id != one.queue_id:
            problems.append(f"{one} was not sent there")
        elif one.store_ms < wish.due_ms:
            problems.append(f"{one} is {wish.due_ms - one.store_ms} ms early: {wish}")
    return problems


def lost(ledger: DelayLedger) -> list[str]:
    """Check that every acknowledged message that is due, and was not to be recalled, is there, unless a disk damaged it."""
    there = {one.body for one in ledger.delivered} | {hit.body for hits in ledger.messages.hits.values() for hit in hits}
    return [
        f"{body!r} was acknowledged and never came: {wish}"
        for body, wish in ledger.wishes.items()
        if wish.acked and not wish.recall_tried and body not in there and wish.due_ms + LATE_MS_MAX < ledger.ended_ms
    ]


def recalled(ledger: DelayLedger) -> list[str]:
    """Check that recalled messages never come; of one that was sent twice, one copy was recalled."""
    times = Counter(one.body for one in ledger.delivered)
    damaged = {hit.unique.rpartition("+")[2] for hits in ledger.messages.hits.values() for hit in hits}
    return [
        f"{body!r} was recalled and came: {wish}"
        for body, wish in ledger.wishes.items()
        if wish.recalled and times[body] > wish.attempts - 1 and f"{wish.sender}-{wish.number}" not in damaged
    ]


def twice(ledger: DelayLedger) -> list[str]:
    """Check that nothing comes more often than it was sent."""
    if not ledger.once:
        return []
    times = Counter(one.body for one in ledger.delivered)
    return [
        f"{body!r} came {times[body]} times: {wish}" for body, wish in ledger.wishes.items() if times[body] > max(1, wish.attempts)
    ]


def order(ledger: DelayLedger) -> list[str]:
    """Check that messages of one sender, level and queue, each sent once, come in that order."""
    problems = []
    last: dict[tuple[str, int, int], int] = {}
    seen = {hit.body for hits in ledger.messages.hits.values() for hit in hits}  # they may come again, out of their turn
    for one in ledger.delivered:
        wish = ledger.wishes.get(one.body)
        if wish is None or not wish.level or wish.attempts > 1 or one.body in seen:
            continue
        seen.add(one.body)
        key = (wish.sender, wish.level, wish.queue_id)
        if wish.number < last.get(key, -1):
            problems.append(f"{one} came behind number {last[key]}")
        last[key] = wish.number
    return problems
