"""Workload of transactions: producers over databases, operators and readers."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from halfmoon.testing.cluster import SMALL, BrokerNode
from halfmoon.testing.driver import Task
from simulation.checkers import offsets_unique_and_dense, reads_stable
from simulation.history import BROKER, History, Workload, changed
from simulation.transactions.checkers import Logs, check_transactions
from simulation.transactions.clocks import read_clocks
from simulation.transactions.damage import Concerned, concerned, of_the_others
from simulation.transactions.faults import TxFaults
from simulation.transactions.ledger import DecisionRecord, RemovedHalf, Resume, TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, ROLLED_BACK, Device, read_log, table_differs
from simulation.transactions.operator_checkers import check_operators
from simulation.transactions.operators import Operator
from simulation.transactions.producers import FATES, LONG, SimulatedProducer, TxPlan
from simulation.users import puller

TOPICS, QUEUES, GROUPS = ("orders", "payments"), 2, ("P_shop", "P_bank")
STORE: dict[str, Any] = {"flush_transactions_interval_ms": 700, "transaction_file_records": 64, "clean_interval_ms": 400}
"""Store settings of a history: files of the transaction index roll over, it is synced often, and files that may go soon do."""


class Transactions(Workload):
    """Producer groups, operators, and readers of all queues.

    How many ``operators`` there are, and, in histories without given kinds, how many ``strangers`` each group has (members to which
    no check is their own), are drawn where they are not given. ``fates`` are weights as in `FATES`; in some histories without given
    kinds those of `LONG` are added.
    """

    NAME = "transactions"
    FAULTS = TxFaults
    SETTINGS = ("fates", "operators", "strangers")
    fates: dict[str, float] | None = None
    operators: int | None = None
    strangers: int | None = None

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.logs = Logs()
        self.producers: list[SimulatedProducer] = []
        self._numbers, self._readers = count(1), list[Task[Any]]()
        self._owed = 0

    def draw(self) -> dict[str, Any]:
        history, seed, chance = self.history, self.history.seed, self.chance
        if self.operators is None:
            self.operators = Random(f"operators {seed}").choice((0, 1, 1, 2))
        if self.fates is None:
            self.fates = FATES | LONG if history.kinds is None and Random(f"long {seed}").random() < 0.3 else FATES
        if self.strangers is None:
            self.strangers = Random(f"strangers {seed}").choice((0, 0, 1, 3)) if history.kinds is None else 0
        history.draw_flush()
        settings = {
            "transaction_timeout_ms": chance.choice((300, 1000, 1500)),
            "transaction_check_interval_ms": chance.choice((700, 1000)),
            "transaction_check_max": chance.choice((15, 15, 5)),
            "transaction_checks_per_second": chance.choice((500, 500, 20)),
        }
        return {"brokers": chance.choice((1, 1, 2)), "nameservers": 1, "store": STORE, "broker": {**BROKER, **settings}}

    def begin(self) -> None:
        cluster, plan, settings = self.cluster, self.history.plan, self.history.settings
        self.ledger = TxLedger(
            self.messages, settings["transaction_check_max"], settings["transaction_timeout_ms"],
            settings["transaction_check_interval_ms"], settings["transaction_checks_per_second"], self.strangers or 0,
        )  # fmt: skip
        plan.on_seen = self.history.must_be_durable
        self.transactions = TxPlan(self.ledger, TOPICS, plan.clock, self.fates or FATES)
        self.transactions.on_ended, self.transactions.on_resumed = self._on_ended, self._on_resumed
        if set(self.faults.kinds).intersection(TxFaults.CLOCKS):
            self.ledger.clocks = read_clocks(cluster)
        self._operators = [Operator(cluster, self.transactions, f"operator-{i}") for i in range(self.operators or 0)]
        for broker in cluster.brokers:
            self._watch_removals(broker)
        self.history.create_topics(*TOPICS, queues=QUEUES)
        for group in GROUPS:
            for _ in range(self.chance.randint(1, 2)):
                self.start_producer(group)
            for _ in range(self.ledger.strangers):
                self.producers.append(
                    SimulatedProducer(cluster, self.transactions, group, f"{group}.{next(self._numbers)}", lanes=0)
                )
        for i, place in enumerate(self.history.places(TOPICS, QUEUES)):
            reader = puller(plan, place, cluster.timeline.split(f"reader {i}"))
            self._readers.append(cluster.driver(f"reader-{i}").start(reader, f"reader-{i}"))
        cluster.run(ms=1500)

    @property
    def faults(self) -> TxFaults:
        """Faults of the history."""
        assert isinstance(self.history.faults, TxFaults)
        return self.history.faults

    def end(self) -> None:
        """Wait until every transaction is decided; operators resume what expired, and it is asked about once more."""
        history, brokers = self.history, self.cluster.brokers
        history.until(lambda: not self.faults.away, 60_000, "a group never returned")
        history.until(lambda: all(broker.running and not broker.leaving for broker in brokers), 60_000, "brokers do not run")
        self.transactions.closing = True
        for group in GROUPS:
            self.start_producer(group)
        lanes = [task for producer in self.producers for task in producer.tasks]
        history.until_done([*lanes, *(operator.task for operator in self._operators)], 60_000, "producers")
        self._nothing_pending()
        history.until_done([operator.tidy() for operator in self._operators], 60_000, "operators")
        self._nothing_pending()
        history.plan.closing = True
        history.until_done(self._readers, 30_000, "readers")
        for producer in self.producers:
            producer.survives()

    def problems(self) -> dict[str, list[str]]:
        """Judge logs, queues and what users learned; of damaged transactions only what holds of these, too."""
        history, ledger = self.history, self.ledger
        before = history.contents(history.places(TOPICS, QUEUES))
        problems = history.restart_all(self._stopped)
        for broker in self.cluster.brokers:
            self.on_start(broker)
        self.cluster.run(ms=1000)
        after = history.contents(history.places(TOPICS, QUEUES))
        kept = [seen for seen in self.messages.seen if seen.physical_offset >= self.logs[seen.place.broker].first]
        messages = replace(self.messages, seen=kept)  # what is older than messages are kept may be gone
        damaged = self._concerned()
        ledger.damaged |= damaged.indexes
        problems |= check_transactions(ledger, self.logs, before)
        problems |= check_operators(ledger, self.logs)
        problems["offsets"] = offsets_unique_and_dense(messages, before)
        problems["reads"] = reads_stable(messages, before)
        problems["restart"] = changed(before, after, ends=False)
        if self.messages.hits:
            self.messages.unexpected[:] = of_the_others({"unexpected": self.messages.unexpected}, damaged)["unexpected"]
            problems = of_the_others(problems, damaged)
        return problems

    def count(self) -> dict[str, int | str]:
        ledger, logs = self.ledger, list(self.logs.values())
        states = [state for log in logs for state in log.states().values()]
        reasons = [record.reason for log in logs for record in log.expired]
        answers, copies = [check.answer for check in ledger.checks], [(log, log.copied()) for log in logs]
        return {
            "half": len(states), "committed": states.count(COMMITTED), "rolled back": states.count(ROLLED_BACK),
            "expired": len(reasons), "expired for room": sum("its log file goes" in reason for reason in reasons),
            "committed after that": sum(record.half_offset in copied for log, copied in copies for record in log.visible),
            "rolled back after that": sum(len(log.late_rollbacks) for log in logs), "checks": len(answers),
            "answered open": answers.count(-1), "answered by strangers": answers.count(-2),
            "refused": sum(decision.code != 0 for decision in ledger.decisions),
            "by hand": sum(decision.code == 0 for decision in ledger.by_hand),
            "resumed": sum(resume.code == 0 for resume in ledger.resumes), "gone with their files": len(ledger.removed),
            "commits without op record at a start": self._owed,
        }  # fmt: skip

    # ---------------------------------------------------------------- users

    def start_producer(self, group: str) -> None:
        skew_ms = self.chance.choice((0, 0, -3_600_000, 290_000_000)) if "skew" in self.faults.kinds else 0
        name = f"{group}.{next(self._numbers)}"
        self.producers.append(SimulatedProducer(self.cluster, self.transactions, group, name, lanes=2, clock_ahead_ms=skew_ms))

    def _on_ended(self, decision: DecisionRecord) -> None:
        """Check that with sync flush a decision which a broker agreed to lies on the device already; every third."""
        if self.messages.flush == "sync" and decision.code == 0 and decision.index % 3 == 0:
            outcome = read_log(Device(self.history.broker(decision.broker).disk)).outcomes().get(decision.index)
            if outcome == PREPARED or (decision.committed and outcome not in (COMMITTED, None)):
                self.messages.unexpected.append(f"{decision} was agreed to before it was durable")

    def _on_resumed(self, resume: Resume) -> None:
        """Check that with sync flush a resumed message lies on the device already."""
        if self.messages.flush == "sync":
            halves = read_log(Device(self.history.broker(resume.broker).disk)).halves.values()
            if not any(half.key == resume.key and half.physical_offset > resume.place for half in halves):
                self.messages.unexpected.append(f"{resume} was agreed to before it was durable")

    def _watch_removals(self, broker: BrokerNode) -> None:
        """Write down what the device says of the half messages of each log file that goes: a start may cut others at the end."""
        remove = broker.disk.remove

        def watched(path: str) -> None:
            if broker.running and path.startswith("commitlog/") and path[-20:] in broker.disk.list("commitlog")[:1]:
                log, end = read_log(Device(broker.disk)), int(path[-20:]) + SMALL["commit_log_file_bytes"]
                states, copied = log.states(), log.copied()
                self.ledger.removed += [
                    RemovedHalf(broker.name, index, half.key, states[index], half.physical_offset in copied)
                    for index, half in log.halves.items()
                    if half.physical_offset < end
                ]
            remove(path)

        broker.disk.remove = watched  # type: ignore[method-assign]

    def _concerned(self) -> Concerned:
        known = {(half.broker, half.index): half.key for half in self.ledger.halves}
        return concerned(self.messages.hits, known, self.logs)

    def on_start(self, broker: BrokerNode) -> None:
        """Check that the index of a broker that has started says what its log says."""
        index, log = broker.core.transactions.index, read_log(broker.disk)
        self._owed += len(index.unfinished)
        damaged = concerned(self.messages.hits, {}, {broker.name: log}).indexes
        for number, state in log.states().items():
            if (broker.name, number) in damaged:
                continue
            half, expected = index.half(number), (log.halves[number].physical_offset, state)
            if half is None or (half.physical_offset, int(half.state)) != expected:
                self.messages.unexpected.append(f"{broker.name} started with {half}, its log says {expected}")

    # ---------------------------------------------------------------- the end

    def _nothing_pending(self) -> None:
        rounds_ms = (self.ledger.checks_max + 4) * self.ledger.interval_ms + self.ledger.minimum_age_ms
        for _ in range(4 * rounds_ms // 500):
            if not any(broker.core.transactions.index.pending_count for broker in self.cluster.brokers):
                break
            self.cluster.run(ms=500)
        self.cluster.run(ms=1500)

    def _stopped(self, broker: BrokerNode) -> dict[str, list[str]]:
        """Return how the transaction index of a stopped broker differs from its log, and what `fsck` says wrongly."""
        log = self.logs[broker.name] = read_log(broker.disk)
        damaged = bool(self.messages.damage_of(broker.name).places)
        return {
            "index": table_differs(broker.disk, log),
            "fsck": self.history.fsck_differs(broker, transactions=damaged, **STORE),
        }
