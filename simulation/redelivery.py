"""Workload of messages that fail so and so often, with consumers that die, and its checkers.

Each message has a fate: how often its listener fails before it works, or for ever. A message that fails comes again, not before its
time, until its maximum, and then lies in the dead letters; whatever happens, it is consumed or it lies there. Producers and
consumers are our own client. Beside the faults of `Faults`, ``consumer`` kills a consumer and starts another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from halfmoon.client.core.consume.listener import ConsumeContext
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, SendResult, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.wire.record import decode_record
from simulation.checkers import may_be_gone
from simulation.faults import Faults
from simulation.history import BROKER, CLIENT, History, Workload
from simulation.ledger import Ledger

TOPIC, GROUP, QUEUES = "orders", "C_again", 2
LEVELS, LEVELS_MS = "1s 2s 1s 2s 2s 3s", (1000, 2000, 1000, 2000, 2000, 3000)
TIMES_MAX = 3
OURS: dict[str, Any] = {**CLIENT, "persist_offsets_ms": 1000}
SETTLE_MS = 120_000
"""After the last fault everything is consumed or dead within this."""

FOR_EVER = 1_000
"""The fate of a message whose listener never works."""


class Handed(NamedTuple):
    """One call of a listener: the copy it was given, and whether it worked. ``again``: that copy is a redelivery.

    ``copy`` is its broker's id, ``store_ms`` when it was stored, ``times`` the number of its redelivery as the listener was told.
    """

    at_ms: int
    body: bytes
    broker: str
    copy: str
    again: bool
    times: int
    store_ms: int
    good: bool
    level: int
    reason: str


class Dead(NamedTuple):
    """A message in the dead letters at the end."""

    body: bytes
    times: int
    origin: str
    reason: str


@dataclass
class RedeliveryLedger:
    """All facts of one history. ``fates`` by body; ``acked``: when a send was acknowledged, and by which broker.

    ``levels_ms`` is the table of delay levels, ``times_max`` how often a message comes again.
    """

    messages: Ledger
    topic: str
    times_max: int
    levels_ms: tuple[int, ...]
    fates: dict[bytes, int] = field(default_factory=dict)
    acked: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    handed: list[Handed] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)


class RedeliveryFaults(Faults):
    """The faults of a history; Clocks do not step: how long a copy waited is judged by them."""

    DRAWN = ("kill", "power", "torn", "stop", "slow_disk", "failed_sync", "cut", "lose", "half_open", "nameserver", "consumer")
    KINDS = (*DRAWN, "stuck_disk", "full_disk")

    def consumer(self) -> None:
        """Kill a consumer; another one takes its place."""
        self._workload.replace()


class Redelivery(Workload):
    """Producers, and consumers that fail as their messages' fates say."""

    NAME = "redelivery"
    STEPS, PACE = 5, ((20, 2000), 1200)
    FAULTS = RedeliveryFaults

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ledger = RedeliveryLedger(self.messages, TOPIC, TIMES_MAX, LEVELS_MS)
        self.consumers: list[SimPushConsumer] = []
        self._number = 0

    def draw(self) -> dict[str, Any]:
        self.history.draw_flush()
        return {"brokers": self.chance.choice((1, 1, 2)), "broker": {**BROKER, "delay_levels": LEVELS}}

    def begin(self) -> None:
        self._fails = self.cluster.timeline.split("fails")
        self.history.create_topics(TOPIC, queues=QUEUES)
        for i in range(2):
            producer = SimProducer(self.cluster, f"producer-{i}", **OURS)
            sending = self.history.keep_sending(
                producer, f"p{i}", partial(self._message, f"p{i}"), self._stored, lambda random: random.randint(50, 400)
            )
            producer.driver.start(sending, f"p{i}")
        for _ in range(self.chance.randint(1, 2)):
            self._join()
        self.cluster.run(ms=500)

    def end(self) -> None:
        cluster = self.cluster
        self.history.plan.closing = True
        cluster.run(ms=3000)
        if not cluster.timeline.run_until(self._settled, SETTLE_MS):
            cluster.timeline.note("history", "not everything is settled")
        cluster.run(ms=2000)
        self.ledger.dead = self._dead()

    def problems(self) -> dict[str, list[str]]:
        return check_redelivery(self.ledger)

    def count(self) -> dict[str, int | str]:
        ledger = self.ledger
        failed = sum(not one.good for one in ledger.handed)
        return {"acknowledged": len(ledger.acked), "handed over": len(ledger.handed), "failed": failed, "dead": len(ledger.dead)}

    def _settled(self) -> bool:
        """Return whether every message was consumed or is dead. Dead ones are looked for now and then, for that takes a while."""
        if self._waiting():
            return False
        good = {one.body for one in self.ledger.handed if one.good}
        spent = {one.body for one in self.ledger.handed if not one.good and (one.times >= TIMES_MAX or one.level < 0)}
        left = self.ledger.acked.keys() - good - spent
        # Given back by way of a send of its own it is dead one time earlier, or comes once more.
        last = {one.body for one in self.ledger.handed if one.times == TIMES_MAX - 1}
        return not left or (left <= last and left <= {one.body for one in self._dead()})

    def _waiting(self) -> bool:
        """Return whether a message may still come again, because its last failure is so recent that its copy may be on its way."""
        last = max((one.at_ms for one in self.ledger.handed), default=0)
        return self.cluster.timeline.now - last < max(LEVELS_MS) + 8_000

    # ---------------------------------------------------------------- users

    def _message(self, name: str, number: int, random: Random) -> Message:
        body = f"{name}/{number}".encode()
        self.ledger.fates[body] = random.choice((0, 0, 1, TIMES_MAX - 1, FOR_EVER))
        return Message(TOPIC, body)

    def _stored(self, message: Message, result: SendResult) -> None:
        self.ledger.acked[message.body] = (self.cluster.timeline.now, result.queue.broker_name)

    def _join(self) -> None:
        self._number += 1
        name = f"consumer-{self._number}"
        consumer = SimPushConsumer(
            self.cluster, TOPIC, self._listen, name=name, group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET,
            reconsume_max=TIMES_MAX, threads=3, **OURS,
        )  # fmt: skip
        self.consumers.append(consumer)

    def replace(self) -> None:
        consumer = self.consumers.pop(self.chance.randrange(len(self.consumers)))
        self.cluster.timeline.note(consumer.name, "is killed")
        consumer.kill()
        self.cluster.network.kill(consumer.host)
        self._join()

    def _listen(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Fail as often as the message's fate says, and say why; now and then with a level of its own, or with none left."""
        [message] = messages
        body = bytes(message.body)
        good = message.reconsume_times >= self.ledger.fates.get(body, 0)
        if not good:
            context.delay_level = self._fails.choice((0, 0, 0, 0, 2)) if self._fails.random() > 0.05 else -1
            context.reason = f"fails as {message.reconsume_times}"
        self.ledger.handed.append(
            Handed(
                self.cluster.timeline.now, body, message.broker_name, message.offset_msg_id, "RETRY_TOPIC" in message.properties,
                message.reconsume_times, message.store_ms, good, context.delay_level, context.reason or "",
            )
        )  # fmt: skip
        return ConsumeStatus.CONSUME_SUCCESS if good else ConsumeStatus.RECONSUME_LATER

    # ---------------------------------------------------------------- the end

    def _dead(self) -> list[Dead]:
        dead = []
        for queue in self.history.contents(self.history.places([f"%DLQ%{GROUP}"], 1)).values():
            for seen in queue.messages.values():
                message = decode_record(memoryview(seen.record))
                properties = message.properties
                reason, origin = properties.get("RECONSUME_REASON", ""), properties.get("RETRY_TOPIC", "")
                dead.append(Dead(bytes(message.body), message.reconsume_times, origin, reason))
        return dead


def check_redelivery(ledger: RedeliveryLedger) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "lost": nothing_is_lost(ledger),
        "dead": dead_letters_were_tried(ledger),
        "early": nothing_comes_early(ledger),
        "shown": copies_show_what_they_are(ledger),
    }


def nothing_is_lost(ledger: RedeliveryLedger) -> list[str]:
    """Check that an acknowledged message is consumed or dead, unless a loss of power may have taken it or its copy."""
    good = {one.body for one in ledger.handed if one.good}
    dead = {one.body for one in ledger.dead}
    known: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
    for one in ledger.handed:
        known[one.body].append((one.at_ms, one.broker))
    problems = []
    for body, acked in ledger.acked.items():
        if body in good or body in dead:
            continue
        if any(may_be_gone(ledger.messages, broker, at_ms) for at_ms, broker in (acked, *known[body])):
            continue
        tries = [one.times for one in ledger.handed if one.body == body]
        problems.append(f"{body!r} (fails {ledger.fates[body]} times) is neither consumed nor dead; it was handed over as {tries}")
    return problems


def dead_letters_were_tried(ledger: RedeliveryLedger) -> list[str]:
    """Check that a dead letter was told to die, or handed over each time until the maximum, and would not have worked."""
    tried: dict[bytes, set[int]] = defaultdict(set)
    told: set[bytes] = set()
    for one in ledger.handed:
        if not one.good:
            tried[one.body].add(one.times)
            if one.level < 0:
                told.add(one.body)
    problems = []
    for dead in ledger.dead:
        if dead.body not in ledger.fates:
            problems.append(f"{dead.body!r} was sent by nobody")
        elif ledger.fates[dead.body] != FOR_EVER and dead.body not in told:
            problems.append(f"{dead.body!r} would have worked after {ledger.fates[dead.body]} failures, and is dead")
        elif dead.body not in told:
            missed = set(range(ledger.times_max)) - tried[dead.body]
            if missed:
                problems.append(f"{dead.body!r} is dead after {sorted(tried[dead.body])}, of at most {ledger.times_max}")
    return problems


def nothing_comes_early(ledger: RedeliveryLedger) -> list[str]:
    """Check that a redelivery was stored its level's time or more after the copy whose failure it follows."""
    problems = []
    before: dict[bytes, list[Handed]] = defaultdict(list)
    for one in ledger.handed:
        earlier = before[one.body]
        if one.again and all(each.copy != one.copy for each in earlier):
            failed = [each for each in earlier if not each.good and each.times < one.times]
            newest = max((each.times for each in failed), default=0)
            waits = [one.store_ms - each.store_ms - _level_ms(ledger, each) for each in failed if each.times == newest]
            if not waits:
                problems.append(f"{one.body!r} came again and had not failed")
            elif max(waits) < 0:
                problems.append(f"{one.body!r} came again {-max(waits)} ms early, as redelivery {one.times}")
        earlier.append(one)
    return problems


def _level_ms(ledger: RedeliveryLedger, failed: Handed) -> int:
    level = failed.level if failed.level > 0 else 3 + failed.times
    return ledger.levels_ms[min(level, len(ledger.levels_ms)) - 1]


def copies_show_what_they_are(ledger: RedeliveryLedger) -> list[str]:
    """Check that a dead letter shows the topic it came from, and a reason that a listener gave."""
    problems = []
    reasons: dict[bytes, set[str]] = defaultdict(set)
    for one in ledger.handed:
        if not one.good:
            reasons[one.body].add(one.reason)
    for dead in ledger.dead:
        if dead.origin != ledger.topic:
            problems.append(f"{dead.body!r} is dead and says that it came from {dead.origin!r}")
        if dead.reason not in reasons[dead.body]:
            problems.append(f"{dead.body!r} is dead because of {dead.reason!r}; told was {sorted(reasons[dead.body])}")
    return problems
