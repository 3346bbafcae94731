"""One simulated history of transactions from a seed: producers, databases, faults, an end, and the verdict.

verdict = simulate_transactions(seed=7)
assert verdict.problems == []
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from halfmoon.testing.cluster import SMALL, BrokerNode, Cluster
from halfmoon.testing.driver import Task
from simulation.history import BROKER, STEPS, FaultHistory, changed, indexes_of
from simulation.ledger import Ledger
from simulation.messages.checkers import offsets_unique_and_dense, reads_stable
from simulation.transactions.checkers import Logs, check_transactions
from simulation.transactions.clocks import read_clocks
from simulation.transactions.damage import Concerned, concerned, of_the_others
from simulation.transactions.faults import TxFaults
from simulation.transactions.late_checkers import check_late
from simulation.transactions.ledger import Decision, RemovedHalf, Resume, TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, Device, read_log, table_differs
from simulation.transactions.operator_checkers import check_operators
from simulation.transactions.operators import Operator
from simulation.transactions.producers import FATES, LONG, Producer, TxPlan
from simulation.verdict import Verdict, by_checker, judging
from simulation.workload import puller

TOPICS, QUEUES, GROUPS = ("orders", "payments"), 2, ("P_shop", "P_bank")
STORE: dict[str, Any] = {"flush_transactions_interval_ms": 700, "transaction_file_records": 64, "clean_interval_ms": 400}
"""Store settings of a history: files of the transaction index roll over, it is synced often, and files that may go soon do."""


@dataclass
class TxVerdict(Verdict):
    """What came of a history of transactions."""

    workload = "transactions"
    counts = (
        "{halves} half, {committed} committed, {rolled_back} rolled back, {expired} expired,"
        " {late_commits} committed and {late_rollbacks} rolled back after that, {checks} checks,"
        " {refused} refused, {by_hand} by hand, {resumed} resumed"
    )
    halves: int = 0
    committed: int = 0
    rolled_back: int = 0
    expired: int = 0
    checks: int = 0
    refused: int = 0
    late_commits: int = 0
    late_rollbacks: int = 0
    open_checks: int = 0
    """Checks that a listener answered with OPEN."""
    not_mine: int = 0
    """Checks that strangers got."""
    reasons: list[str] = field(default_factory=list)
    """The reason of each."""
    by_hand: int = 0
    """Decisions by hand that a broker agreed to."""
    resumed: int = 0
    gone: int = 0
    """Half messages whose log files went."""
    owed: int = 0
    """Commits that a start found without their op record."""


def simulate_transactions(
    seed: int,
    *,
    steps: int = STEPS,
    flush: str | None = None,
    kinds: tuple[str, ...] | None = None,
    fates: dict[str, float] | None = None,
    broker: dict[str, Any] | None = None,
    operators: int | None = None,
    strangers: int | None = None,
    **options: Any,
) -> TxVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of faults; ``flush`` and ``kinds`` (of `TxFaults.KINDS`) are drawn from the seed when not given, as are
    settings of the brokers that ``broker`` does not give, and how many ``operators`` there are. In some seeds without
    ``kinds`` each group has ``strangers``, members to which no check is their own. ``fates`` are weights as in `FATES`, where
    neither they nor ``kinds`` are given in some seeds `LONG`, too; ``options`` go to `Cluster`. What a core raises becomes a
    problem, as do errors that it logs.
    """
    chance = Random(f"transactions {seed}")
    if operators is None:
        operators = Random(f"operators {seed}").choice((0, 1, 1, 2))
    if fates is None:
        fates = FATES | LONG if kinds is None and Random(f"long {seed}").random() < 0.3 else FATES
    strangers = Random(f"strangers {seed}").choice((0, 0, 1, 3)) if strangers is None and kinds is None else strangers or 0
    flush = flush or chance.choice(("sync", "async"))
    settings = {
        "transaction_timeout_ms": chance.choice((300, 1000, 1500)),
        "transaction_check_interval_ms": chance.choice((700, 1000)),
        "transaction_check_max": chance.choice((15, 15, 5)),
        "transaction_checks_per_second": chance.choice((500, 500, 20)),
    } | (broker or {})
    options = {"brokers": chance.choice((1, 1, 2)), "nameservers": 1, "store": STORE, **options}
    messages = Ledger(flush)
    ledger = TxLedger(
        messages, settings["transaction_check_max"], settings["transaction_timeout_ms"], settings["transaction_check_interval_ms"],
        settings["transaction_checks_per_second"], strangers,
    )  # fmt: skip
    verdict = TxVerdict(seed, flush)
    with judging(verdict, messages, broker={**BROKER, **settings}, **options) as cluster:
        history = _History(cluster, ledger, chance, kinds, fates, operators)
        history.judge(verdict, steps)
        history.count(verdict)
    return verdict


class _History(FaultHistory):
    def __init__(
        self, cluster: Cluster, ledger: TxLedger, chance: Random, kinds: tuple[str, ...] | None, fates: dict[str, float],
        operators: int,
    ) -> None:  # fmt: skip
        super().__init__(cluster, ledger.messages)
        self.ledger, self.logs = ledger, Logs()
        self.plan.on_seen = self.must_be_durable
        self.transactions = TxPlan(ledger, TOPICS, self.plan.clock, fates)
        self.transactions.on_ended, self.transactions.on_resumed = self._on_ended, self._on_resumed
        self.producers: list[Producer] = []
        self._numbers, self._chance = count(1), chance
        self.faults: TxFaults = TxFaults(
            cluster, ledger, cluster.timeline.split("faults"), self.producers, self._start_producer, topics=TOPICS, kinds=kinds
        )
        self.faults.on_start = self._on_start
        if set(self.faults.kinds).intersection(TxFaults.CLOCKS):
            ledger.clocks = read_clocks(cluster)
        self._readers: list[Task[Any]] = []
        self._operators = [Operator(cluster, self.transactions, f"operator-{i}") for i in range(operators)]
        for broker in cluster.brokers:
            self._watch_removals(broker)
        self._owed = 0

    def run(self, steps: int) -> list[str]:
        self._start()
        self.cluster.run(ms=1500)
        self.strike(steps, (20, 1600), 1000)
        self.until(lambda: not self.faults.away, 60_000, "a group never returned")
        brokers = self.cluster.brokers
        self.until(lambda: all(broker.running and not broker.leaving for broker in brokers), 60_000, "brokers do not run")
        self.transactions.closing = True
        for group in GROUPS:
            self._start_producer(group)
        lanes = [task for producer in self.producers for task in producer.tasks]
        self.until_done([*lanes, *(operator.task for operator in self._operators)], 60_000, "producers")
        self._nothing_pending()
        # When all is over operators resume what expired; it is asked about once more.
        self.until_done([operator.tidy() for operator in self._operators], 60_000, "operators")
        self._nothing_pending()
        self.plan.closing = True
        self.until_done(self._readers, 30_000, "readers")
        for producer in self.producers:
            producer.survives()
        return self._judged()

    # ---------------------------------------------------------------- users

    def _start(self) -> None:
        self.create_topics(*TOPICS, queues=QUEUES)
        for group in GROUPS:
            for _ in range(self._chance.randint(1, 2)):
                self._start_producer(group)
            for _ in range(self.ledger.strangers):
                name = f"{group}.{next(self._numbers)}"
                self.producers.append(Producer(self.cluster, self.transactions, group, name, lanes=0))
        for i, place in enumerate(self.places(TOPICS, QUEUES)):
            reader = puller(self.plan, place, self.cluster.timeline.split(f"reader {i}"))
            self._readers.append(self.cluster.driver(f"reader-{i}").start(reader, f"reader-{i}"))

    def _start_producer(self, group: str) -> None:
        skew_ms = self._chance.choice((0, 0, -3_600_000, 290_000_000)) if "skew" in self.faults.kinds else 0
        name = f"{group}.{next(self._numbers)}"
        self.producers.append(Producer(self.cluster, self.transactions, group, name, lanes=2, clock_ahead_ms=skew_ms))

    def _on_ended(self, decision: Decision) -> None:
        """With sync flush a decision that a broker agreed to lies on the device already; every third is looked at."""
        if self.messages.flush == "sync" and decision.code == 0 and decision.index % 3 == 0:
            outcome = read_log(Device(self.broker(decision.broker).disk)).outcomes().get(decision.index)
            if outcome == PREPARED or (decision.committed and outcome not in (COMMITTED, None)):
                self.messages.unexpected.append(f"{decision} was agreed to before it was durable")

    def _on_resumed(self, resume: Resume) -> None:
        """With sync flush a resumed message lies on the device already."""
        if self.messages.flush == "sync":
            halves = read_log(Device(self.broker(resume.broker).disk)).halves.values()
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

    def _on_start(self, broker: BrokerNode) -> None:
        """A broker has started on what its disk held: its index says what its log says."""
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

    def _judged(self) -> list[str]:
        before = self.contents(self.places(TOPICS, QUEUES))
        problems = self._after_a_clean_stop()
        after = self.contents(self.places(TOPICS, QUEUES))
        firsts = {name: log.first for name, log in self.logs.items()}
        kept = [seen for seen in self.messages.seen if seen.physical_offset >= firsts[seen.place.broker]]
        messages = replace(self.messages, seen=kept)  # what is older than messages are kept may be gone
        damaged = self._concerned()
        self.ledger.damaged |= damaged.indexes
        problems += check_transactions(self.ledger, self.logs, before) + check_operators(self.ledger, self.logs)
        problems += check_late(self.ledger, self.logs)
        others = {
            "unexpected": messages.unexpected,
            "offsets": offsets_unique_and_dense(messages, before),
            "reads": reads_stable(messages, before),
        }
        problems += by_checker(others) + changed(before, after, ends=False)
        return of_the_others(problems, damaged) if messages.hits else problems

    def _after_a_clean_stop(self) -> list[str]:
        """Stop every broker, compare what it leaves with its log, and start it again."""
        problems = []
        for broker in self.cluster.brokers:
            self.cluster.stop(broker)
            log = self.logs[broker.name] = read_log(broker.disk)
            spoilt = self.messages.damage_of(broker.name).places
            problems += indexes_of(broker, spoilt)
            problems += [f"index: {broker.name}: {problem}" for problem in table_differs(broker.disk, log)]
            problems += self.fsck_differs(broker, transactions=bool(spoilt), **STORE)
            self.cluster.restart(broker)
            self._on_start(broker)
        self.cluster.run(ms=1000)
        return problems

    def count(self, verdict: TxVerdict) -> None:
        """Write down how much happened."""
        states = [state for log in self.logs.values() for state in log.states().values()]
        verdict.halves, verdict.committed, verdict.rolled_back = len(states), states.count(8), states.count(12)
        verdict.owed = self._owed
        verdict.expired = sum(len(log.expired) for log in self.logs.values())
        verdict.gone = len(self.ledger.removed)
        copied = {broker: log.copied() for broker, log in self.logs.items()}
        verdict.late_commits = sum(
            record.half_offset in copied[broker] for broker, log in self.logs.items() for record in log.visible
        )
        verdict.late_rollbacks = sum(len(log.late_rollbacks) for log in self.logs.values())
        verdict.open_checks = sum(check.answer == -1 for check in self.ledger.checks)
        verdict.not_mine = sum(check.answer == -2 for check in self.ledger.checks)
        verdict.reasons = [record.reason for log in self.logs.values() for record in log.expired]
        verdict.by_hand = sum(decision.code == 0 for decision in self.ledger.by_hand)
        verdict.resumed = sum(resume.code == 0 for resume in self.ledger.resumes)
        verdict.checks, verdict.refused = len(self.ledger.checks), sum(decision.code != 0 for decision in self.ledger.decisions)
