"""One simulated history of transactions from a seed: producers, databases, faults, an end, and the verdict.

verdict = simulate_transactions(seed=7)
assert verdict.problems == []
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from halfmoon.store.check.fsck import fsck
from halfmoon.store.settings import StoreSettings
from simulation.asking import contents
from simulation.cluster import SMALL, BrokerNode, Cluster
from simulation.damage.fsck import judge_fsck
from simulation.drive import Task
from simulation.ledger import Contents, Ledger, Place, Seen
from simulation.messages.checkers import offsets_unique_and_dense, reads_stable
from simulation.messages.history import BROKER, STEPS, durable, indexes_of, windows
from simulation.transactions.checkers import Logs, check_transactions
from simulation.transactions.clocks import read_clocks
from simulation.transactions.damage import Concerned, concerned, of_the_others
from simulation.transactions.faults import TxFaults
from simulation.transactions.late_checkers import check_late
from simulation.transactions.ledger import Ended, Gone, Resumed, TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, Device, read_log, table_differs
from simulation.transactions.operator_checkers import check_operators
from simulation.transactions.operators import Operator
from simulation.transactions.producers import FATES, LONG, Producer, TxPlan
from simulation.verdict import Verdict, judging
from simulation.workload import Plan, puller

TOPICS, QUEUES, GROUPS = ("orders", "payments"), 2, ("P_shop", "P_bank")
STORE: dict[str, Any] = {"flush_transactions_interval_ms": 700, "transaction_file_records": 64, "clean_interval_ms": 400}
"""Store settings of a history: files of the transaction index roll over, it is synced often, and files that may go soon do."""


@dataclass
class TxVerdict(Verdict):
    """What came of a history of transactions."""

    workload = "transactions"
    halves: int = 0
    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0
    checks: int = 0
    refused: int = 0
    late_commits: int = 0
    late_rollbacks: int = 0
    open_checks: int = 0
    """Checks that a listener answered with OPEN."""
    given_up_for: list[str] = field(default_factory=list)
    """The reason of each."""
    by_hand: int = 0
    """Decisions by hand that a broker agreed to."""
    resumed: int = 0
    gone: int = 0
    """Half messages whose log files went."""
    owed: int = 0
    """Commits that a start found without their op record."""

    def counted(self) -> str:
        """Return how much happened, in words."""
        return (
            f"{self.halves} half, {self.committed} committed, {self.rolled_back} rolled back, {self.given_up} given up,"
            f" {self.late_commits} committed and {self.late_rollbacks} rolled back after that, {self.checks} checks,"
            f" {self.refused} refused, {self.by_hand} by hand, {self.resumed} resumed"
        )


def simulate_transactions(
    seed: int,
    *,
    steps: int = STEPS,
    flush: str | None = None,
    kinds: tuple[str, ...] | None = None,
    fates: dict[str, float] | None = None,
    broker: dict[str, Any] | None = None,
    operators: int | None = None,
    **options: Any,
) -> TxVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of faults; ``flush`` and ``kinds`` (of `TxFaults.KINDS`) are drawn from the seed when not given, as are
    settings of the brokers that ``broker`` does not give, and how many ``operators`` there are; ``fates`` are weights as in
    `FATES`, where neither they nor ``kinds`` are given in some seeds `LONG`, too; ``options`` go to `Cluster`. What a core raises
    becomes a problem, as do errors that it logs.
    """
    chance = Random(f"transactions {seed}")
    if operators is None:
        operators = Random(f"operators {seed}").choice((0, 1, 1, 2))
    if fates is None:
        fates = FATES | LONG if kinds is None and Random(f"long {seed}").random() < 0.3 else FATES
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
        settings["transaction_checks_per_second"],
    )  # fmt: skip
    verdict = TxVerdict(seed, flush)
    with judging(verdict, messages) as judged:
        cluster = judged.cluster = Cluster(seed, flush=flush, broker={**BROKER, **settings}, **options)
        history = _History(cluster, ledger, chance, kinds, fates, operators)
        verdict.kinds = history.faults.kinds
        messages.flush_window_ms, messages.save_window_ms = windows(verdict.kinds)
        verdict.problems = history.run(steps)
        history.count(verdict)
    return verdict


class _History:
    def __init__(
        self, cluster: Cluster, ledger: TxLedger, chance: Random, kinds: tuple[str, ...] | None, fates: dict[str, float],
        operators: int,
    ) -> None:  # fmt: skip
        self.cluster, self.ledger, self.logs = cluster, ledger, Logs()
        world = cluster.world
        self.plan = TxPlan(ledger, TOPICS, lambda: world.now, fates)
        self.plan.on_ended, self.plan.on_resumed = self._on_ended, self._on_resumed
        self.reading = Plan(
            {broker.name: broker.address for broker in cluster.brokers}, ledger.messages, self.plan.clock, on_seen=self._on_seen
        )
        self.producers: list[Producer] = []
        self._numbers, self._chance = count(1), chance
        self.faults = TxFaults(
            cluster, ledger, world.split("faults"), self.producers, self._start_producer, topics=TOPICS, kinds=kinds
        )
        self.faults.on_start = self._on_start
        if set(self.faults.kinds).intersection(TxFaults.CLOCKS):
            ledger.clocks = read_clocks(cluster)
        self._readers: list[Task[Any]] = []
        self._operators = [Operator(cluster, self.plan, f"operator-{i}") for i in range(operators)]
        for broker in cluster.brokers:
            self._watch_removals(broker)
        self._owed = 0

    def run(self, steps: int) -> list[str]:
        cluster = self.cluster
        self._start()
        cluster.run(ms=1500)
        self.faults.begin(steps, (20, 1600))
        cluster.run(ms=steps * 1000)
        self.faults.end()
        cluster.run(ms=4000)
        self.faults.end()
        if not cluster.world.run_until(lambda: not self.faults.away, 60_000):
            self.ledger.messages.unexpected.append("a group never returned")
        brokers = cluster.brokers
        self._until(lambda: all(broker.running and not broker.leaving for broker in brokers), 60_000, "brokers do not run")
        self.plan.closing = True
        for group in GROUPS:
            self._start_producer(group)
        self._quiet()
        self._tidy()
        self.reading.closing = True
        self._until(lambda: all(reader.done for reader in self._readers), 30_000, "readers hang")
        for producer in self.producers:
            producer.survives()
        return self._judged()

    # ---------------------------------------------------------------- users

    def _start(self) -> None:
        topics = [
            self.cluster.create_topic(topic, queues=QUEUES, broker=i)
            for i, _ in enumerate(self.cluster.brokers)
            for topic in TOPICS
        ]
        self._until(lambda: all(task.done for task in topics), 30_000, "topics are not made")
        for group in GROUPS:
            for _ in range(self._chance.randint(1, 2)):
                self._start_producer(group)
        for i, place in enumerate(self._places()):
            reader = puller(self.reading, place, self.cluster.world.split(f"reader {i}"))
            self._readers.append(self.cluster.driver(f"reader-{i}").start(reader, f"reader-{i}"))

    def _start_producer(self, group: str) -> None:
        skew_ms = self._chance.choice((0, 0, -3_600_000, 290_000_000)) if "skew" in self.faults.kinds else 0
        name = f"{group}.{next(self._numbers)}"
        self.producers.append(Producer(self.cluster, self.plan, group, name, lanes=2, clock_ahead_ms=skew_ms))

    def _places(self) -> list[Place]:
        names = [broker.name for broker in self.cluster.brokers]
        return [Place(name, topic, queue_id) for name in names for topic in TOPICS for queue_id in range(QUEUES)]

    def _on_seen(self, seen: Seen) -> None:
        if self.ledger.messages.flush == "sync" and (seen.place, seen.queue_offset) not in self.ledger.messages.spoilt:
            broker = next(broker for broker in self.cluster.brokers if broker.name == seen.place.broker)
            if not durable(broker, seen):
                self.ledger.messages.unexpected.append(f"{seen.place}@{seen.queue_offset} was read before it was durable")

    def _on_ended(self, ended: Ended) -> None:
        """With sync flush a decision that a broker agreed to lies on the device already; every third is looked at."""
        if self.ledger.messages.flush == "sync" and ended.code == 0 and ended.index % 3 == 0:
            broker = next(broker for broker in self.cluster.brokers if broker.name == ended.broker)
            outcome = read_log(Device(broker.disk)).outcomes().get(ended.index)
            if outcome == PREPARED or (ended.committed and outcome not in (COMMITTED, None)):
                self.ledger.messages.unexpected.append(f"{ended} was agreed to before it was durable")

    def _on_resumed(self, resumed: Resumed) -> None:
        """With sync flush a resumed message lies on the device already."""
        if self.ledger.messages.flush == "sync":
            broker = next(broker for broker in self.cluster.brokers if broker.name == resumed.broker)
            halves = read_log(Device(broker.disk)).halves.values()
            if not any(half.key == resumed.key and half.physical_offset > resumed.place for half in halves):
                self.ledger.messages.unexpected.append(f"{resumed} was agreed to before it was durable")

    def _watch_removals(self, broker: BrokerNode) -> None:
        """Write down what the device says of the half messages of each log file that goes: a start may cut others at the end."""
        remove = broker.disk.remove

        def watched(path: str) -> None:
            if broker.running and path.startswith("commitlog/") and path[-20:] in broker.disk.list("commitlog")[:1]:
                log, end = read_log(Device(broker.disk)), int(path[-20:]) + SMALL["commit_log_file_bytes"]
                states, copied = log.states(), {one.half_offset for one in log.given_up}
                self.ledger.gone += [
                    Gone(broker.name, index, half.key, states[index], half.physical_offset in copied)
                    for index, half in log.halves.items()
                    if half.physical_offset < end
                ]
            remove(path)

        broker.disk.remove = watched  # type: ignore[method-assign]

    def _concerned(self) -> Concerned:
        known = {(half.broker, half.index): half.key for half in self.ledger.halves}
        return concerned(self.ledger.messages.hits, known, self.logs)

    def _on_start(self, broker: BrokerNode) -> None:
        """A broker has started on what its disk held: its index says what its log says."""
        index, log = broker.core.transactions.index, read_log(broker.disk)
        self._owed += len(index.unfinished)
        damaged = concerned(self.ledger.messages.hits, {}, {broker.name: log}).indexes
        for number, state in log.states().items():
            if (broker.name, number) in damaged:
                continue
            half, expected = index.half(number), (log.halves[number].physical_offset, state)
            if half is None or (half.physical_offset, int(half.state)) != expected:
                self.ledger.messages.unexpected.append(f"{broker.name} started with {half}, its log says {expected}")

    # ---------------------------------------------------------------- the end

    def _until(self, reached: Callable[[], bool], within_ms: int, otherwise: str) -> None:
        if not self.cluster.world.run_until(reached, within_ms):
            self.ledger.messages.unexpected.append(otherwise)

    def _quiet(self) -> None:
        """Run until every lane has ended and nothing is pending any more."""
        lanes = [task for producer in self.producers for task in producer.tasks]
        lanes += [operator.task for operator in self._operators]
        self._until(lambda: all(lane.done for lane in lanes), 60_000, "producers hang")
        self.ledger.messages.unexpected += [f"{lane.name} raised {lane.error!r}" for lane in lanes if lane.error is not None]
        self._nothing_pending()

    def _tidy(self) -> None:
        """When all is over operators resume what was given up; it is asked about once more."""
        tidying = [operator.tidy() for operator in self._operators]
        self._until(lambda: all(task.done for task in tidying), 60_000, "operators hang")
        self.ledger.messages.unexpected += [f"{task.name} raised {task.error!r}" for task in tidying if task.error is not None]
        self._nothing_pending()

    def _nothing_pending(self) -> None:
        rounds_ms = (self.ledger.checks_max + 4) * self.ledger.interval_ms + self.ledger.minimum_age_ms
        for _ in range(4 * rounds_ms // 500):
            if not any(broker.core.transactions.index.pending_count for broker in self.cluster.brokers):
                break
            self.cluster.run(ms=500)
        self.cluster.run(ms=1500)

    def _judged(self) -> list[str]:
        before = contents(self.cluster, self.reading, self._places())
        problems = self._after_a_clean_stop()
        after = contents(self.cluster, self.reading, self._places())
        firsts = {name: log.first for name, log in self.logs.items()}
        kept = [seen for seen in self.ledger.messages.seen if seen.physical_offset >= firsts[seen.place.broker]]
        messages = replace(self.ledger.messages, seen=kept)  # what is older than messages are kept may be gone
        found = {
            "unexpected": messages.unexpected,
            "offsets": offsets_unique_and_dense(messages, before),
            "reads": reads_stable(messages, before),
            "restart": _changed(before, after),
        }
        damaged = self._concerned()
        self.ledger.damaged |= damaged.indexes
        problems += check_transactions(self.ledger, self.logs, before) + check_operators(self.ledger, self.logs)
        problems += check_late(self.ledger, self.logs)
        problems += [f"{name}: {problem}" for name, those in found.items() for problem in those[:20]]
        return of_the_others(problems, damaged) if messages.hits else problems

    def _after_a_clean_stop(self) -> list[str]:
        """Stop every broker, compare what it leaves with its log, and start it again."""
        problems = []
        settings = StoreSettings(**{**SMALL, **STORE})
        for broker in self.cluster.brokers:
            self.cluster.stop(broker)
            log = self.logs[broker.name] = read_log(broker.disk)
            damage = self.ledger.messages.damage_of(broker.name)
            problems += [f"indexes: {broker.name}: {problem}" for problem in indexes_of(broker, damage.places)]
            problems += [f"index: {broker.name}: {problem}" for problem in table_differs(broker.disk, log)]
            problems += judge_fsck(broker.disk, fsck(broker.disk, settings), damage, transactions=bool(damage.places))
            self.cluster.restart(broker)
            self._on_start(broker)
        self.cluster.run(ms=1000)
        return problems

    def count(self, verdict: TxVerdict) -> None:
        """Write down how much happened."""
        states = [state for log in self.logs.values() for state in log.states().values()]
        verdict.halves, verdict.committed, verdict.rolled_back = len(states), states.count(8), states.count(12)
        verdict.owed = self._owed
        verdict.given_up = sum(len(log.given_up) for log in self.logs.values())
        verdict.gone = len(self.ledger.gone)
        copied = {broker: {one.half_offset for one in log.given_up} for broker, log in self.logs.items()}
        verdict.late_commits = sum(one.half_offset in copied[broker] for broker, log in self.logs.items() for one in log.visible)
        verdict.late_rollbacks = sum(len(log.late_rollbacks) for log in self.logs.values())
        verdict.open_checks = sum(asked.answer == -1 for asked in self.ledger.asked)
        verdict.given_up_for = [one.reason for log in self.logs.values() for one in log.given_up]
        verdict.by_hand = sum(one.code == 0 for one in self.ledger.by_hand)
        verdict.resumed = sum(one.code == 0 for one in self.ledger.resumes)
        verdict.checks, verdict.refused = len(self.ledger.asked), sum(one.code != 0 for one in self.ledger.ended)


def _changed(before: Contents, after: Contents) -> list[str]:
    """Return which queues hold something else after a clean restart."""
    return [
        f"{place} was changed by a clean restart"
        for place in sorted({*before, *after})
        if place not in before or place not in after
        or {offset: seen.record for offset, seen in before[place].messages.items()}
        != {offset: seen.record for offset, seen in after[place].messages.items()}
    ]  # fmt: skip
