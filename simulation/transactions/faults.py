"""Faults of transactions beside those of any cluster (`simulation.faults`): producers and fault points.

A fault point stops a broker's process in a certain write: behind the half record, between a visible record and its op record, in
the middle of a check round, during recovery. Every fault leaves a `Trouble`, so that checkers of time know when all was well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from halfmoon.testing.cluster import BrokerNode
from simulation.faults import HOUR_MS, REGISTER_MS, Faults
from simulation.transactions.ledger import Trouble, TxLedger
from simulation.transactions.log import EXPIRED_TOPIC
from simulation.transactions.producers import SimulatedProducer


class TxFaults(Faults):
    """Faults of brokers, and of the producers that live."""

    DRAWN = (
        *Faults.DRAWN, "producer", "producer", "nobody", "skew", "behind_half", "between", "mid_round", "recovery", "full_disk",
        "ageing",
    )  # fmt: skip
    ALSO = ("index_lost", "behind_copy", "behind_resume", "crowded")
    """Kinds that a seed may draw beside the others."""

    KINDS = (*dict.fromkeys(DRAWN), *ALSO, "clock_set", "damage", "unknowing")

    CLOCKS = ("clock", "clock_set", "ageing")
    """Kinds that set clocks."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if named["kinds"] is None and (more := self.cluster.timeline.split("more faults")).random() < 0.4:
            self.kinds.append(more.choice(self.ALSO))
        self.kinds = sorted(set(self.kinds))
        self.away: set[str] = set()
        """Groups of which nobody lives now that knows their transactions."""
        self._unheard: list[SimulatedProducer] = []
        """Killed behind a cut."""

    @property
    def _tx(self) -> TxLedger:
        ledger: TxLedger = self._workload.ledger
        return ledger

    def _do(self, kind: str) -> None:
        if kind != "clock_set":  # durations go on as they are
            self._trouble(0, "a fault")
        super()._do(kind)

    def _later(self, between_ms: tuple[int, int], action: Callable[[], None]) -> None:
        delay_ms = self._random.randint(*between_ms)
        self._trouble(delay_ms, "until it is mended")
        self.cluster.timeline.after(delay_ms, action)

    def _restart(self, broker: BrokerNode, tries: int = 20) -> None:
        lives = broker.host.lives
        super()._restart(broker, tries)
        if broker.running and broker.host.lives > lives:
            self._workload.on_start(broker)

    def lose(self) -> None:
        """Break connections: a name server forgets the broker whose connection it was until that registers again."""
        super().lose()
        self._trouble(REGISTER_MS, "a name server without a broker")

    def half_open(self) -> None:
        """Break one connection for one side only: a check may go where nobody hears it."""
        super().half_open()
        self._trouble(REGISTER_MS, "a connection that is gone")

    def nameserver(self) -> None:
        """Kill a name server: until the brokers register again, a new producer does not find them."""
        super().nameserver()
        self._trouble(REGISTER_MS, "a name server without brokers")

    def _trouble(self, ms: int, what: str) -> None:
        now = self.cluster.timeline.now
        self._tx.troubles.append(Trouble(now, now + ms, what))

    # ---------------------------------------------------------------- producers

    def producer(self) -> None:
        """Kill a producer wherever it is; another one of its group comes some time later."""
        if self._workload.producers:
            found = self._random.choice(self._workload.producers)
            self._kill(found)
            self._later((50, 3000), partial(self._replace_producer, found.group))

    def nobody(self) -> None:
        """Kill all producers of a group for longer than all checks would take; then one returns."""
        self._empty(strangers=True)

    def unknowing(self) -> None:
        """Kill the producers of a group that know its transactions for so long, and leave the strangers."""
        self._empty(strangers=False)

    def _empty(self, *, strangers: bool) -> None:
        there: list[SimulatedProducer] = self._workload.producers
        groups = sorted({producer.group for producer in there} - self.away)
        if not groups:
            return
        group = self._random.choice(groups)
        self.cluster.timeline.note("producers", f"of {group} are all gone")
        self.away.add(group)
        for producer in [producer for producer in there if producer.group == group and (strangers or producer.lanes)]:
            self._kill(producer)
        budget_ms = (self._tx.checks_max + 2) * self._tx.interval_ms + self._tx.minimum_age_ms
        self._later((budget_ms, budget_ms + 2000), partial(self._return, group))

    def _kill(self, producer: SimulatedProducer) -> None:
        self.cluster.timeline.note(producer.name, "is killed")
        self._workload.producers.remove(producer)
        host = producer.client.host
        unheard = any(self.cluster.network.apart(host, broker.host.host) for broker in self.cluster.brokers)
        producer.kill(unheard=unheard)
        if unheard:
            self._unheard.append(producer)

    def _heal(self) -> None:
        """End all cuts: only now can a broker hear who was killed behind one, so that until now it asked in good faith."""
        super()._heal()
        for producer in self._unheard:
            producer.ends()
        self._unheard.clear()

    def _replace_producer(self, group: str) -> None:
        if group not in self.away:
            self._workload.start_producer(group)

    def _return(self, group: str) -> None:
        self.away.discard(group)
        self._workload.start_producer(group)

    def skew(self) -> None:
        """Let a producer's clock step."""
        if self._workload.producers:
            found = self._random.choice(self._workload.producers)
            found.clock_ahead_ms += self._random.choice((-80 * HOUR_MS, -60_000, -1, 1000, 60_000, 80 * HOUR_MS))
            self.cluster.timeline.note(found.name, f"its clock is {found.clock_ahead_ms} ms ahead")

    # ---------------------------------------------------------------- brokers

    def behind_half(self) -> None:
        """Stop a broker behind a half record and before its acknowledgement."""
        self._stop_behind("consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/", (-1, 0, 0, 1, 2))

    def between(self) -> None:
        """Stop a broker in a write to the log, where visible records and the op records behind them are one, or soon after."""
        self._stop_behind("commitlog/", (-1, -1, -1, 0, 1, 2, 3, 4))

    def mid_round(self) -> None:
        """Stop a broker in the middle of a round of checks."""
        self._stop_behind("transaction/checks/", (-1, 0, 1, 3))

    def behind_copy(self) -> None:
        """Stop a broker behind the copy of a message that expires, before its op record or soon after."""
        self._stop_behind(f"consumequeue/{EXPIRED_TOPIC}/", (-1, 0, 0, 0, 1, 2))

    def behind_resume(self) -> None:
        """Stop a broker soon after a copy: while it is resumed, or its new half message is asked about."""
        self._stop_behind(f"consumequeue/{EXPIRED_TOPIC}/", (4, 8, 15, 30))

    def _stop_behind(self, path: str, counts: tuple[int, ...]) -> None:
        broker = self._random.choice(self.cluster.brokers)
        broker.disk.stop_behind = (path, self._random.choice(counts))

    def recovery(self) -> None:
        """Kill a broker, or take its power, and stop it in a write of its next start or soon after."""
        broker, power = self._random.choice(self.cluster.brokers), self._random.random() < 0.5
        self._note(broker, "power" if power else "kill")
        self.cluster.crash(broker, power=power)
        self._later((10, 500), partial(self._start_and_stop, broker, self._random.choice((0, 1, 2, 5, 10, 20, 40))))

    def _start_and_stop(self, broker: BrokerNode, writes: int) -> None:
        if not broker.running:
            broker.disk.stop_after_writes = writes
            self._restart(broker)

    def index_lost(self) -> None:
        """Kill a broker and take files of its transaction index away: its log has everything that they held."""
        broker = self._random.choice(self.cluster.brokers)
        self._note(broker, "kill")
        self.cluster.crash(broker)
        for part in self._random.choice((("statetable", "redolog", "checkpoint"), ("statetable",), ("redolog",), ("checkpoint",))):
            path = f"transaction/{part}"
            for name in broker.disk.list(path):
                broker.disk.remove(f"{path}/{name}")
            broker.disk.remove(path)
        self.cluster.timeline.note(broker.name, "has lost files of its transaction index")
        self._later((10, 500), partial(self._restart, broker))

    def full_disk(self) -> None:
        """Let a broker's disk have no room for a while."""
        super().full_disk()
        self._tx.filled |= {broker.name for broker in self.cluster.brokers if broker.disk.full}

    def crowded(self) -> None:
        """Let a broker's disk be so full for a while that log files go before their time, or that it refuses writes."""
        broker = self._random.choice(self.cluster.brokers)
        broker.disk.used_bytes = broker.disk.total_bytes * self._random.choice((80, 88, 88, 95)) // 100
        self.cluster.timeline.note(
            broker.name, f"has a disk of which {broker.disk.used_bytes / broker.disk.total_bytes:.0%} is used"
        )
        self._tx.crowded.add(broker.name)
        self._later((500, 4000), partial(setattr, broker.disk, "used_bytes", 0))

    def clock_set(self) -> None:
        """Set the clock of a broker or name server forward or back, by a second to more hours than messages are kept."""
        host = self._random.choice([*self.cluster.nameservers, *(broker.host for broker in self.cluster.brokers)])
        ms = self._random.choice((1000, 60_000, HOUR_MS, HOUR_MS, 80 * HOUR_MS)) * self._random.choice((1, 1, -1))
        host.step_clock(ms)
        if ms < 0:
            self._tx.set_back |= {broker.name for broker in self.cluster.brokers if broker.host is host}

    def ageing(self) -> None:
        """Let a broker's clock step over the time that messages are kept, perhaps to the hour at which old files go."""
        broker = self._random.choice(self.cluster.brokers)
        hour = broker.host.now() // HOUR_MS % 24
        broker.host.step_clock(self._random.choice((73, 72 + (4 - hour) % 24)) * HOUR_MS)

    # ---------------------------------------------------------------- ending

    def end(self) -> None:
        """Undo everything that does not end by itself; groups that are away return at their own time."""
        for broker in self.cluster.brokers:
            broker.disk.stop_behind = None
            broker.disk.used_bytes = 0
        super().end()
