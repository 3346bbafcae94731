"""Workload of ordered consumption: producers by key, and orderly consumers that come and go; and its checkers.

A queue has one owner, who holds its lock; its messages come one call after the other and none is left out; what comes a second time
comes because it failed, or because the queue was begun anew at the offset that its broker stores.

The consumers are our own client. ``join``, ``leave`` and ``crash`` happen to them, ``lose`` to one of their connections; ``cut``
lets nothing through between one and a broker for a while, and nobody is told; ``broker`` kills a broker, which forgets its locks,
and starts it again; ``nameserver`` kills the name server and starts it again, which knows no broker then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from halfmoon.client.core.instance import BEAT_PAUSE_MS
from halfmoon.client.core.produce.selector import select_by_hash
from halfmoon.effects import Op, sleep
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, MessageQueue, SendResult, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.testing.cluster import BrokerNode
from halfmoon.testing.host import CoreHost, machine_clock
from simulation.faults import HOUR_MS
from simulation.history import BROKER, CLIENT, History
from simulation.members import MemberWorkload, SimulatedMember
from simulation.messages import called_silent

TOPIC, GROUP, QUEUES, KEYS = "orders", "C_orderly", 4, 9
KNOWN_AGAIN_MS = 1_000
"""A name server that restarted knows its brokers after so long."""
CUT_MS = (500, 70_000)
"""Length of a cut: longer than a broker keeps a lock."""
TOLD_MS = 50
"""Longest time after a connection broke in which its client may not know that its locks are gone."""

LOCK_VALID_MS = 30_000
"""Longest time after it was asked for that a client trusts a lock."""


@dataclass
class ListenerCall:
    """Call of a listener with one message.

    ``owner`` held the queue's lock as it began, and ``stored`` was the group's offset; both None when the broker did not run.
    ``end_ms`` and ``good`` are set when the listener is done; a killed one never is.
    """

    begin_ms: int
    consumer: str
    queue: MessageQueue
    offset: int
    body: bytes
    owner: str | None
    stored: int | None
    end_ms: int | None = None
    good: bool = False


@dataclass
class OrderLedger:
    """Facts of a history of ordered consumption.

    ``upset`` are times at which a client's locks were lost by a fault, by the client's id; those of a broker are under its name.
    ``cut_off`` are times from which a client may have let its locks run out.
    """

    calls: list[ListenerCall] = field(default_factory=list)
    acked: dict[bytes, str] = field(default_factory=dict)
    upset: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    cut_off: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    late: list[str] = field(default_factory=list)
    """Brokers that a name server did not know soon enough after its start."""

    def was_upset(self, call: ListenerCall, until_ms: int, from_ms: int | None = None) -> bool:
        """Return whether a fault cost the call's consumer its lock between the call's begin (or ``from_ms``) and a time."""
        begin_ms = call.begin_ms if from_ms is None else from_ms
        times = self.upset[call.consumer] + self.upset[call.queue.broker_name]
        return any(begin_ms - TOLD_MS <= at <= until_ms for at in times)

    def was_blind(self, call: ListenerCall) -> bool:
        """Return whether the call's consumer was cut off, and could not know that its broker was killed and forgot its locks."""
        killed = any(call.begin_ms - LOCK_VALID_MS <= at <= call.begin_ms for at in self.upset[call.queue.broker_name])
        return killed and any(at <= call.begin_ms for at in self.cut_off[call.consumer])


class Order(MemberWorkload["_Consumer"]):
    """Producers by key, and orderly consumers. ``clock_set`` is a kind, too, that no seed draws."""

    NAME, STEPS = "order", 8
    KINDS = ("join", "leave", "crash", "lose", "cut", "broker", "nameserver")
    STAY, MEMBERS_MAX = 1, 5

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ledger = OrderLedger()

    def draw(self) -> dict[str, Any]:
        chance, kinds = self.chance, self.KINDS
        self.draw_kinds({"join", chance.choice(kinds), chance.choice(kinds), chance.choice(("leave", "crash"))})
        self.history.draw_flush()
        self._forgets_ms = chance.choice((15_000, 120_000))
        return {"brokers": chance.choice((1, 2)), "broker": {**BROKER, "client_expiry_ms": self._forgets_ms}}

    def begin(self) -> None:
        self.history.create_topics(TOPIC, queues=QUEUES, wait=False)
        self.cluster.run(ms=500)
        for i in range(2):
            producer = SimProducer(self.cluster, f"producer-{i}", **CLIENT)
            for key in [f"key{number}" for number in range(i, KEYS, 2)]:
                sending = self.history.keep_sending(
                    producer, key, partial(self._message, key), self._stored, lambda random: random.randint(20, 400),
                    selector=select_by_hash, key=key,
                )  # fmt: skip
                producer.driver.start(sending, key)
        for _ in range(self.chance.randint(1, 3)):
            self.join()

    def end(self) -> None:
        self.cluster.run(ms=1_000)
        self.history.plan.closing = True
        self.cluster.timeline.run_until(self._all_consumed, 180_000)
        self.cluster.run(ms=500)

    def problems(self) -> dict[str, list[str]]:
        """Judge the calls of listeners, and what brokers took for silence."""
        return {**check_order(self.ledger), "silence": called_silent(self.cluster, self._forgets_ms, beat_ms=beat_ms())}

    def count(self) -> dict[str, int | str]:
        ledger = self.ledger
        failed = again = owners = 0
        good: set[bytes] = set()
        consumers: dict[MessageQueue, str] = {}
        for call in ledger.calls:
            failed += call.end_ms is not None and not call.good
            again += call.body in good
            owners += consumers.get(call.queue, call.consumer) != call.consumer
            consumers[call.queue] = call.consumer
            if call.good:
                good.add(call.body)
        counts = {"acknowledged": len(ledger.acked), "calls": len(ledger.calls)}
        return {**counts, "failed": failed, "again": again, "changes of owners": owners}

    def _all_consumed(self) -> bool:
        good = {call.body for call in self.ledger.calls if call.good}
        return self.ledger.acked.keys() <= good

    def _message(self, key: str, number: int, random: Random) -> Message:
        return Message(TOPIC, f"{key}/{number}".encode())

    def _stored(self, message: Message, result: SendResult) -> None:
        queue = result.queue
        self.ledger.acked[message.body] = f"{queue.broker_name}/{queue.queue_id}@{result.queue_offset}"

    def member(self, number: int) -> _Consumer:
        """Let a consumer join."""
        return _Consumer(self, f"consumer-{number}")

    def do(self, kind: str) -> None:
        """Let one thing happen, if it can."""
        if kind == "clock_set":
            self._set_a_clock()
        elif kind == "nameserver":
            self._restart_nameserver()
        else:
            super().do(kind)

    def kill_broker(self, broker: BrokerNode) -> None:
        """Kill a broker, which forgets its locks, and start it again."""
        self.upset(broker.name)
        super().kill_broker(broker)
        self.upset(broker.name)

    def _restart_nameserver(self) -> None:
        """Kill the name server and start it again; within a second it must know every broker that ran all the time."""
        cluster, node = self.cluster, self.cluster.nameservers[0]
        node.kill()
        cluster.run(ms=self.chance.choice((1, self.chance.randint(1, 2_000))))
        cluster.start_nameserver(node)
        cluster.run(ms=KNOWN_AGAIN_MS)
        core: Any = node.core
        known = {group.name for group in core.routes.groups()}
        if late := [broker.name for broker in cluster.brokers if broker.name not in known]:
            self.ledger.late.append(f"{', '.join(late)} unknown to a name server {KNOWN_AGAIN_MS} ms after its start")

    def upset(self, name: str) -> None:
        """Write down that a client, or a broker, has lost its locks."""
        self.ledger.upset[name].append(self.cluster.timeline.now)

    def _set_a_clock(self) -> None:
        """Set the clock of a broker or consumer an hour forward, or one that is ahead an hour back."""
        machines: list[_Consumer | CoreHost] = [*self.members, *(broker.host for broker in self.cluster.brokers)]
        machine = self.chance.choice(machines)
        back = machine.clock_ahead_ms >= HOUR_MS and self.chance.random() < 0.5
        machine.step_clock(-HOUR_MS if back else HOUR_MS)
        self.cluster.run(ms=2)  # a core is told in its next turn

    def locked_by(self, queue: MessageQueue) -> tuple[str | None, int | None]:
        """Return who owns a queue at its broker, and the group's offset there; (None, None) while the broker does not run."""
        broker = self.history.broker(queue.broker_name)
        if (core := broker.core) is None:
            return None, None
        owner = core.locks.owner(GROUP, queue.topic, queue.queue_id, broker.host.instant().steady)
        return owner, core.offsets.get(GROUP, queue.topic, queue.queue_id) or 0


class _Consumer(SimulatedMember):
    """An orderly consumer and its listener, which takes its time and fails now and then."""

    client: SimPushConsumer

    def __init__(self, workload: Order, name: str) -> None:
        super().__init__(workload.cluster, name)
        self.workload, timeline = workload, workload.cluster.timeline
        self._random = timeline.split(f"listens {name}")
        self._slow = self._random.random() < 0.3
        self.clock_ahead_ms = 0
        timeline.note(name, "joins")
        self.client = SimPushConsumer(
            workload.cluster, TOPIC, self.listen, name=name, orderly=True, group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET,
            suspend_queue_ms=50, consume_batch_max=1, clock=machine_clock(timeline, self).now, **CLIENT,
        )  # fmt: skip

    @property
    def id(self) -> str:
        """The client's id."""
        return self.client.instance.client_id

    def listen(self, messages: list[StoredMessage]) -> Op[ConsumeStatus]:
        """Write the call down, take a while, say how it went."""
        workload, message, timeline = self.workload, messages[0], self.cluster.timeline
        owner, stored = workload.locked_by(message.queue)
        call = ListenerCall(timeline.now, self.id, message.queue, message.queue_offset, bytes(message.body), owner, stored)
        workload.ledger.calls.append(call)
        yield from sleep(self._random.randint(0, 500 if self._slow else 60))
        call.good = self._random.random() < 0.9
        call.end_ms = timeline.now
        return ConsumeStatus.CONSUME_SUCCESS if call.good else ConsumeStatus.RECONSUME_LATER

    def step_clock(self, ms: int) -> None:
        """Set its machine's clock forward, or back (below 0)."""
        self.clock_ahead_ms += ms
        self.cluster.timeline.note(self.name, f"clock is set {abs(ms)} ms {'back' if ms < 0 else 'forward'}")

    def go(self, *, crash: bool) -> None:
        """Leave: cleanly, or as a killed process."""
        self.gone = True
        self.cluster.timeline.note(self.name, "is killed" if crash else "leaves")
        if crash:
            self.workload.upset(self.id)
            self.end()
        else:
            self.client.stop().then(self.end)

    def lose(self, chance: Random) -> None:
        """Break one of its connections."""
        if self.cluster.network.connections(self.client.host):
            self.workload.upset(self.id)
        super().lose(chance)

    def cut(self, chance: Random) -> None:
        """Let nothing through between it and a broker for a while."""
        cluster, broker = self.cluster, chance.choice(self.cluster.brokers)
        cluster.timeline.note(self.name, f"is cut off from {broker.name}")
        self.workload.ledger.cut_off[self.id].append(cluster.timeline.now)
        cluster.network.cut(self.client.host, broker.host.host)
        cluster.timeline.after(chance.randint(*CUT_MS), cluster.network.heal)


def beat_ms() -> int:
    """Return how far a consumer's heartbeats to one broker are apart at most: the one to another is waited for meanwhile."""
    return int(CLIENT["heartbeat_ms"] + CLIENT["request_timeout_ms"] + BEAT_PAUSE_MS)


def check_order(ledger: OrderLedger) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "owner": owners(ledger),
        "side by side": side_by_side(ledger),
        "order": order_of_calls(ledger),
        "keys": order_of_keys(ledger),
        "never consumed": never_consumed(ledger),
        "key": queues_of_keys(ledger),
        "late": ledger.late,
    }


def owners(ledger: OrderLedger) -> list[str]:
    """Check that the consumer of a call held the queue's lock as it began."""
    return [
        f"{_name(call)} began while the lock was {call.owner or 'nobody'}'s"
        for call in ledger.calls
        if call.stored is not None and call.owner != call.consumer
        if not ledger.was_upset(call, call.begin_ms) and not ledger.was_blind(call)
    ]


def side_by_side(ledger: OrderLedger) -> list[str]:
    """Check that calls of a queue do not overlap, unless a fault took the first one's lock; those of one consumer never do."""
    problems = []
    for calls in _by_queue(ledger).values():
        for i, call in enumerate(calls):
            for later in calls[i + 1 : i + 50]:
                if call.end_ms is not None and later.begin_ms >= call.end_ms:
                    continue
                same = later.consumer == call.consumer
                excused = ledger.was_upset(call, later.begin_ms) or ledger.was_blind(call) or ledger.was_blind(later)
                if (same and call.end_ms is not None) or not excused:
                    problems.append(f"{_name(later)} began before {_name(call)} was over")
    return problems


def order_of_calls(ledger: OrderLedger) -> list[str]:
    """Nothing is left out, and nothing comes again but what failed or what a queue begun anew has after its stored offset."""
    problems = []
    for calls in _by_queue(ledger).values():
        front = 0  # the first offset that was never consumed well
        for before, call in pairwise([None, *calls]):
            assert call is not None
            if call.offset > front:
                problems.append(f"{_name(call)} came before {front} was consumed")
            if before is not None and call.offset != (before.offset + 1 if before.good else before.offset):
                problems += _begun_anew(ledger, before, call)
            if call.good:
                front = max(front, call.offset + 1)
    return problems


def _begun_anew(ledger: OrderLedger, before: ListenerCall, call: ListenerCall) -> list[str]:
    upset = ledger.was_upset(before, call.begin_ms) or any(at <= call.begin_ms for at in ledger.cut_off[call.consumer])
    if before.consumer == call.consumer and not upset:
        return [f"{_name(call)} came after {_name(before)} though the queue was not begun anew"]
    if before.stored is not None and call.offset < before.stored and not ledger.upset[call.queue.broker_name]:
        return [f"{_name(call)} came again though {before.stored} was stored already"]
    return []


def order_of_keys(ledger: OrderLedger) -> list[str]:
    """Check that messages of one key and queue are consumed well, the first time, in the order in which they were sent.

    A key has another queue while a broker is down and the name servers leave its queues out.
    """
    problems = []
    last: dict[tuple[MessageQueue, bytes], int] = {}
    seen: set[bytes] = set()
    for call in sorted((call for call in ledger.calls if call.good), key=lambda call: (call.end_ms or 0, call.begin_ms)):
        if call.body in seen:
            continue
        seen.add(call.body)
        key, _, text = call.body.partition(b"/")
        number, before = int(text), last.get((call.queue, key), -1)
        if before > number:
            problems.append(f"{_name(call)}, number {number} of its key, was consumed after number {before}")
        last[call.queue, key] = number
    return problems


def queues_of_keys(ledger: OrderLedger) -> list[str]:
    """Check that a key keeps its queue, whatever a name server knows, unless a broker was killed."""
    if any(name.startswith("broker-") for name, times in ledger.upset.items() if times):
        return []
    queues: dict[bytes, set[str]] = defaultdict(set)
    for body, where in ledger.acked.items():
        queues[body.partition(b"/")[0]].add(where.partition("@")[0])
    return [f"{key!r} was sent to {', '.join(sorted(where))}" for key, where in queues.items() if len(where) > 1]


def never_consumed(ledger: OrderLedger) -> list[str]:
    """Check that every acknowledged message was consumed well by somebody."""
    good = {call.body for call in ledger.calls if call.good}
    return [f"{body!r}, acknowledged in {where}" for body, where in ledger.acked.items() if body not in good]


def _by_queue(ledger: OrderLedger) -> dict[MessageQueue, list[ListenerCall]]:
    found: dict[MessageQueue, list[ListenerCall]] = {}
    for call in ledger.calls:
        found.setdefault(call.queue, []).append(call)
    return found


def _name(call: ListenerCall) -> str:
    queue = call.queue
    return f"{call.consumer}'s call of {queue.topic}/{queue.broker_name}/{queue.queue_id}@{call.offset} at {call.begin_ms}"
