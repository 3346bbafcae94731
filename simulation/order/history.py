"""One simulated history of ordered consumption from a seed: producers by key, orderly consumers that come and go, and the verdict.

verdict = simulate_order(seed=7)
assert verdict.problems == []

The consumers are our own client. ``join``, ``leave`` and ``crash`` happen to them, ``lose`` to one of their connections; ``cut``
lets nothing through between one and a broker for a while, and nobody is told; ``broker`` kills a broker, which forgets its locks,
and starts it again; ``nameserver`` kills the name server and starts it again, which knows no broker then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from halfmoon.client.core.instance import BEAT_PAUSE_MS
from halfmoon.client.core.produce.selector import select_by_hash
from halfmoon.effects import Op, sleep
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, MessageQueue, SendResult, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.testing.host import CoreHost, machine_clock
from simulation.faults import HOUR_MS
from simulation.history import BROKER
from simulation.ledger import Ledger
from simulation.members import Member, MemberHistory
from simulation.messages.history import called_silent
from simulation.order.checkers import Call, OrderLedger, check_order
from simulation.verdict import Verdict, judging

TOPIC, GROUP, QUEUES, KEYS = "orders", "C_orderly", 4, 9
KINDS = ("join", "leave", "crash", "lose", "cut", "broker", "nameserver")
"""What a seed may draw; ``clock_set`` besides is asked for by name."""
STEPS = 8
CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000}
KNOWN_AGAIN_MS = 1_000
"""A name server that restarted knows its brokers after so long."""
CUT_MS = (500, 70_000)
"""How long a cut lasts: longer than a broker keeps a lock."""


@dataclass
class OrderVerdict(Verdict):
    """What came of a history of order."""

    workload = "order"
    counts = "{acknowledged} acknowledged, {calls} calls, {failed} failed, {again} again, {owners} changes of owners"
    acknowledged: int = 0
    calls: int = 0
    failed: int = 0
    again: int = 0
    """Calls of messages that had been consumed well before."""
    owners: int = 0
    """How often a queue had another consumer than before."""


def simulate_order(
    seed: int, *, steps: int = STEPS, flush: str | None = None, kinds: tuple[str, ...] | None = None, **options: Any
) -> OrderVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of events; ``kinds`` (of `KINDS`) are drawn from the seed when not given; ``options`` go to `Cluster`.
    What a core raises becomes a problem, as do errors that it logs.
    """
    chance = Random(f"order {seed}")
    drawn = sorted({"join", chance.choice(KINDS), chance.choice(KINDS), chance.choice(("leave", "crash"))})
    verdict = OrderVerdict(seed, flush or chance.choice(("sync", "async")), list(kinds) if kinds is not None else drawn)
    messages = Ledger(verdict.flush)
    ledger = OrderLedger(unexpected=messages.unexpected)
    forgets_ms = chance.choice((15_000, 120_000))  # a silent client: before its locks run out, or after
    options = {"brokers": chance.choice((1, 2)), "broker": {**BROKER, "client_expiry_ms": forgets_ms}, **options}
    with judging(verdict, messages, **options) as cluster:
        _History(cluster, messages, ledger, chance, verdict.kinds).run(steps)
        silent = called_silent(cluster, forgets_ms, beat_ms=beat_ms())
        verdict.problems = check_order(ledger) + [f"silence: {problem}" for problem in silent]
    _count(verdict, ledger)
    return verdict


def beat_ms() -> int:
    """Return how far a consumer's heartbeats to one broker are apart at most: the one to another is waited for meanwhile."""
    return int(CLIENT["heartbeat_ms"] + CLIENT["request_timeout_ms"] + BEAT_PAUSE_MS)


def _count(verdict: OrderVerdict, ledger: OrderLedger) -> None:
    verdict.acknowledged, verdict.calls = len(ledger.acked), len(ledger.calls)
    good: set[bytes] = set()
    consumers: dict[MessageQueue, str] = {}
    for call in ledger.calls:
        verdict.failed += call.end_ms is not None and not call.good
        verdict.again += call.body in good
        verdict.owners += consumers.get(call.queue, call.consumer) != call.consumer
        consumers[call.queue] = call.consumer
        if call.good:
            good.add(call.body)


class _History(MemberHistory["_Consumer"]):
    stay, members_max = 1, 5

    def __init__(self, cluster: Cluster, messages: Ledger, ledger: OrderLedger, chance: Random, kinds: list[str]) -> None:
        super().__init__(cluster, messages, chance, kinds)
        self.ledger = ledger

    def run(self, steps: int) -> None:
        cluster = self.cluster
        self.create_topics(TOPIC, queues=QUEUES, wait=False)
        cluster.run(ms=500)
        for i in range(2):
            producer = SimProducer(cluster, f"producer-{i}", **CLIENT)
            for key in [f"key{number}" for number in range(i, KEYS, 2)]:
                sending = self.keep_sending(
                    producer, key, partial(self._message, key), self._stored, lambda random: random.randint(20, 400),
                    selector=select_by_hash, key=key,
                )  # fmt: skip
                producer.driver.start(sending, key)
        for _ in range(self.chance.randint(1, 3)):
            self.join()
        self.let_happen(steps, (100, 3_000))
        cluster.run(ms=1_000)
        self.plan.closing = True
        cluster.timeline.run_until(self._all_consumed, 180_000)
        cluster.run(ms=500)

    def _all_consumed(self) -> bool:
        good = {call.body for call in self.ledger.calls if call.good}
        return self.ledger.acked.keys() <= good

    def _message(self, key: str, number: int, random: Random) -> Message:
        return Message(TOPIC, f"{key}/{number}".encode())

    def _stored(self, message: Message, result: SendResult) -> None:
        queue = result.queue
        self.ledger.acked[message.body] = f"{queue.broker_name}/{queue.queue_id}@{result.queue_offset}"

    # ---------------------------------------------------------------- what happens

    def member(self, number: int) -> _Consumer:
        """Let a consumer join."""
        return _Consumer(self, f"consumer-{number}")

    def happen(self, kind: str) -> None:
        """Let one thing happen, if it can."""
        if kind == "clock_set":
            self._set_a_clock()
        elif kind == "nameserver":
            self._restart_nameserver()
        else:
            super().happen(kind)

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
        broker = self.broker(queue.broker_name)
        if (core := broker.core) is None:
            return None, None
        owner = core.locks.owner(GROUP, queue.topic, queue.queue_id, broker.host.instant().steady)
        return owner, core.offsets.get(GROUP, queue.topic, queue.queue_id) or 0


class _Consumer(Member):
    """An orderly consumer and its listener, which takes its time and fails now and then."""

    client: SimPushConsumer

    def __init__(self, history: _History, name: str) -> None:
        super().__init__(history.cluster, name)
        self.history, timeline = history, history.cluster.timeline
        self._random = timeline.split(f"listens {name}")
        self._slow = self._random.random() < 0.3
        self.clock_ahead_ms = 0
        timeline.note(name, "joins")
        self.client = SimPushConsumer(
            history.cluster, TOPIC, self.listen, name=name, orderly=True, group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET,
            suspend_queue_ms=50, consume_batch_max=1, clock=machine_clock(timeline, self).now, **CLIENT,
        )  # fmt: skip

    @property
    def id(self) -> str:
        """The client's id."""
        return self.client.instance.client_id

    def listen(self, messages: list[StoredMessage]) -> Op[ConsumeStatus]:
        """Write the call down, take a while, say how it went."""
        history, message, timeline = self.history, messages[0], self.cluster.timeline
        owner, stored = history.locked_by(message.queue)
        call = Call(timeline.now, self.id, message.queue, message.queue_offset, bytes(message.body), owner, stored)
        history.ledger.calls.append(call)
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
            self.history.upset(self.id)
            self.end()
        else:
            self.client.stop().then(self.end)

    def lose(self, chance: Random) -> None:
        """Break one of its connections."""
        if self.cluster.network.connections(self.client.host):
            self.history.upset(self.id)
        super().lose(chance)

    def cut(self, chance: Random) -> None:
        """Let nothing through between it and a broker for a while."""
        cluster, broker = self.cluster, chance.choice(self.cluster.brokers)
        cluster.timeline.note(self.name, f"is cut off from {broker.name}")
        self.history.ledger.cut_off[self.id].append(cluster.timeline.now)
        cluster.network.cut(self.client.host, broker.host.host)
        cluster.timeline.after(chance.randint(*CUT_MS), cluster.network.heal)
