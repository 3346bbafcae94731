"""One simulated history of ordered consumption from a seed: producers by key, orderly consumers that come and go, and the verdict.

verdict = simulate_order(seed=7)
assert verdict.problems == []

The consumers are our own client. ``join``, ``leave`` and ``crash`` happen to them, ``lose`` to one of their connections; ``cut``
lets nothing through between one and a broker for a while, and nobody is told; ``broker`` kills a broker, which forgets its locks,
and starts it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from halfmoon.client.core.produce.selector import select_by_hash
from halfmoon.effects import Op, sleep
from halfmoon.errors import HalfmoonError
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message, MessageQueue, StoredMessage
from simulation.clients import SimProducer, SimPushConsumer
from simulation.cluster import Cluster
from simulation.faults import HOUR_MS
from simulation.host import CoreHost, machine_clock
from simulation.ledger import Ledger
from simulation.messages.history import BROKER, called_silent
from simulation.order.checkers import Call, OrderLedger, check_order
from simulation.verdict import Verdict, judging

TOPIC, GROUP, QUEUES, KEYS = "orders", "C_orderly", 4, 9
KINDS = ("join", "leave", "crash", "lose", "cut", "broker")
"""What a seed may draw; ``clock_set`` besides is asked for by name."""
STEPS = 8
CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000}
CONSUMERS_MAX = 5
CUT_MS = (500, 70_000)
"""How long a cut lasts: longer than a broker keeps a lock."""


@dataclass
class OrderVerdict(Verdict):
    """What came of a history of order."""

    workload = "order"
    acknowledged: int = 0
    calls: int = 0
    failed: int = 0
    again: int = 0
    """Calls of messages that had been consumed well before."""
    owners: int = 0
    """How often a queue had another consumer than before."""

    def counted(self) -> str:
        """Return how much happened, in words."""
        return (
            f"{self.acknowledged} acknowledged, {self.calls} calls, {self.failed} failed, {self.again} again,"
            f" {self.owners} changes of owners"
        )


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
    errors_of, ledger = Ledger(verdict.flush), OrderLedger()
    with judging(verdict, errors_of) as judged:
        forgets_ms = chance.choice((15_000, 120_000))  # a silent client: before its locks run out, or after
        settings = {**BROKER, "client_expiry_ms": forgets_ms}
        options = {"brokers": chance.choice((1, 2)), "broker": settings, **options}
        cluster = judged.cluster = Cluster(seed, flush=verdict.flush, **options)
        _History(cluster, ledger, chance, verdict.kinds).run(steps)
        ledger.unexpected += errors_of.unexpected
        verdict.problems = check_order(ledger) + [f"silence: {problem}" for problem in called_silent(cluster, forgets_ms)]
    _count(verdict, ledger)
    return verdict


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


class _History:
    def __init__(self, cluster: Cluster, ledger: OrderLedger, chance: Random, kinds: list[str]) -> None:
        self.cluster, self.ledger, self.chance, self.kinds = cluster, ledger, chance, kinds
        self.closing = False
        self.consumers: list[_Consumer] = []
        self._number = 0
        self._brokers = {broker.name: broker for broker in cluster.brokers}

    def run(self, steps: int) -> None:
        cluster = self.cluster
        for i in range(len(cluster.brokers)):
            cluster.create_topic(TOPIC, queues=QUEUES, broker=i)
        cluster.run(ms=500)
        for i in range(2):
            producer = SimProducer(cluster, f"producer-{i}", **CLIENT)
            for key in range(i, KEYS, 2):
                producer.driver.start(self._send(producer, f"key{key}"), f"key{key}")
        for _ in range(self.chance.randint(1, 3)):
            self._join()
        for _ in range(steps):
            cluster.run(ms=self.chance.randint(100, 3_000))
            self._happen(self.chance.choice(self.kinds) if self.kinds else "nothing")
        cluster.run(ms=1_000)
        self.closing = True
        cluster.world.run_until(self._all_consumed, 180_000)
        cluster.run(ms=500)

    def _all_consumed(self) -> bool:
        good = {call.body for call in self.ledger.calls if call.good}
        return self.ledger.acked.keys() <= good

    # ---------------------------------------------------------------- producers

    def _send(self, producer: SimProducer, key: str) -> Op[None]:
        """Send the messages of a key one after the other; one that was not acknowledged may have been stored, and is left."""
        random, number = self.cluster.world.split(f"sends {key}"), 0
        while not self.closing:
            body = b"%s/%d" % (key.encode(), number)
            try:
                result = yield from producer.sender.send(Message(TOPIC, body), selector=select_by_hash, key=key)
                self.ledger.acked[body] = f"{result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}"
            except HalfmoonError:
                yield from sleep(random.randint(100, 500))
            number += 1
            yield from sleep(random.randint(20, 400))

    # ---------------------------------------------------------------- what happens

    def _happen(self, kind: str) -> None:
        here = [consumer for consumer in self.consumers if not consumer.gone]
        if kind == "join" and len(here) < CONSUMERS_MAX:
            self._join()
        elif kind in ("leave", "crash") and len(here) > 1:
            self.chance.choice(here).go(crash=kind == "crash")
        elif kind == "lose" and here:
            self.chance.choice(here).lose(self.chance)
        elif kind == "cut" and here:
            self.chance.choice(here).cut(self.chance)
        elif kind == "clock_set":
            self._set_a_clock()
        elif kind == "broker":
            broker = self.chance.choice(self.cluster.brokers)
            self.ledger.upset[broker.name].append(self.cluster.world.now)
            self.cluster.crash(broker)
            self.cluster.run(ms=self.chance.randint(1, 2_000))
            self.cluster.restart(broker)
            self.ledger.upset[broker.name].append(self.cluster.world.now)

    def _set_a_clock(self) -> None:
        """Set the clock of a broker or consumer an hour forward, or one that is ahead an hour back."""
        machines: list[_Consumer | CoreHost] = [*self.consumers, *(broker.host for broker in self.cluster.brokers)]
        machine = self.chance.choice(machines)
        back = machine.clock_ahead_ms >= HOUR_MS and self.chance.random() < 0.5
        machine.step_clock(-HOUR_MS if back else HOUR_MS)
        self.cluster.run(ms=2)  # a core is told in its next turn

    def _join(self) -> None:
        self._number += 1
        self.consumers.append(_Consumer(self, f"consumer-{self._number}"))

    def locked_by(self, queue: MessageQueue) -> tuple[str | None, int | None]:
        """Return who owns a queue at its broker, and the group's offset there; (None, None) while the broker does not run."""
        core = self._brokers[queue.broker_name].core
        if core is None:
            return None, None
        owner = core.locks.owner(GROUP, queue.topic, queue.queue_id, self._brokers[queue.broker_name].host.now())
        return owner, core.offsets.get(GROUP, queue.topic, queue.queue_id) or 0


class _Consumer:
    """An orderly consumer and its listener, which takes its time and fails now and then."""

    def __init__(self, history: _History, name: str) -> None:
        self.history, self.name, self.gone = history, name, False
        self._random = history.cluster.world.split(f"listens {name}")
        self._slow = self._random.random() < 0.3
        self.clock_ahead_ms = 0
        history.cluster.world.note(name, "joins")
        self.client = SimPushConsumer(
            history.cluster, TOPIC, self.listen, name=name, orderly=True, group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET,
            suspend_queue_ms=50, consume_batch_max=1, clock=machine_clock(history.cluster.world, self).now, **CLIENT,
        )  # fmt: skip

    def listen(self, messages: list[StoredMessage]) -> Op[ConsumeStatus]:
        """Write the call down, take a while, say how it went."""
        history, message = self.history, messages[0]
        owner, stored = history.locked_by(message.queue)
        call = Call(
            history.cluster.world.now, self.client.instance.client_id, message.queue, message.queue_offset, bytes(message.body),
            owner, stored,
        )  # fmt: skip
        history.ledger.calls.append(call)
        yield from sleep(self._random.randint(0, 500 if self._slow else 60))
        call.good = self._random.random() < 0.9
        call.end_ms = history.cluster.world.now
        return ConsumeStatus.CONSUME_SUCCESS if call.good else ConsumeStatus.RECONSUME_LATER

    def step_clock(self, ms: int) -> None:
        """Set its machine's clock forward, or back (below 0)."""
        self.clock_ahead_ms += ms
        self.history.cluster.world.note(self.name, f"clock is set {abs(ms)} ms {'back' if ms < 0 else 'forward'}")

    def go(self, *, crash: bool) -> None:
        """Leave: cleanly, or as a killed process."""
        cluster, self.gone = self.history.cluster, True
        cluster.world.note(self.name, "is killed" if crash else "leaves")
        if crash:
            self.history.ledger.upset[self.client.instance.client_id].append(cluster.world.now)
            self._end()
        else:
            self.client.stop().then(self._end)

    def _end(self) -> None:
        self.client.kill()
        self.history.cluster.network.kill(self.client.host)

    def lose(self, chance: Random) -> None:
        """Break one of its connections."""
        cluster = self.history.cluster
        if ends := cluster.network.connections(self.client.host):
            end = chance.choice(ends)
            cluster.world.note(self.name, f"loses its connection to {end.remote}")
            self.history.ledger.upset[self.client.instance.client_id].append(cluster.world.now)
            cluster.network.lose(end)

    def cut(self, chance: Random) -> None:
        """Let nothing through between it and a broker for a while."""
        cluster, broker = self.history.cluster, chance.choice(self.history.cluster.brokers)
        cluster.world.note(self.name, f"is cut off from {broker.name}")
        self.history.ledger.cut_off[self.client.instance.client_id].append(cluster.world.now)
        cluster.network.cut(self.client.host, broker.host.host)
        cluster.world.after(chance.randint(*CUT_MS), cluster.network.heal)
