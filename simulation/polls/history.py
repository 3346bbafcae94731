"""One simulated history of pull consumers from a seed: applications poll, iterate, commit, seek, close and die; and the verdict.

verdict = simulate_polls(seed=7)
assert verdict.problems == []

The consumers are our own client. ``join``, ``leave`` (a close in the middle of the work, as after a ``break`` or an exception) and
``crash`` happen to them, ``seek`` to one of their queues, ``lose`` to a connection, ``interrupt`` (a Ctrl-C after which it goes on)
to an application that is just being handed messages; ``broker`` kills a broker and starts it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from halfmoon.client.core.consume.member import HeldQueue
from halfmoon.client.core.consume.pull_consumer import PullConsumerCore
from halfmoon.effects import Op, sleep
from halfmoon.errors import HalfmoonError, NotRunning
from halfmoon.model import ConsumeFrom, Message, MessageQueue, SendResult
from halfmoon.testing.clients import SimProducer, SimPullConsumer
from halfmoon.testing.cluster import BrokerNode, Cluster
from simulation.history import BROKER
from simulation.ledger import Ledger
from simulation.members import Member, MemberHistory
from simulation.polls.checkers import PollLedger, Tenure, check_polls
from simulation.verdict import Verdict, judging

TOPIC, GROUP, QUEUES = "orders", "C_polls", 3
KINDS = ("join", "leave", "crash", "seek", "lose", "broker", "interrupt")
PEACEFUL = {"join", "leave", "seek", "interrupt"}
"""With these alone every answer and every one-way request arrives."""

STEPS = 10
CLIENT: dict[str, Any] = {"heartbeat_ms": 1000, "request_timeout_ms": 1000, "route_refresh_ms": 5000, "persist_offsets_ms": 500}
LOOK_MS = 10
"""How often the brokers' progress is looked at."""

LATELY_MS = 300
"""So long ago a member may have been told the progress at which it begins a queue."""

SETTLE_MS = 120_000
"""So long nobody confirms anything before what is left counts as lost."""


@dataclass
class PollVerdict(Verdict):
    """What came of a history of pull consumers."""

    workload = "polls"
    counts = "{acknowledged} acknowledged, {given} given, {again} again, {sought} seeks, {tenures} tenures of queues"
    acknowledged: int = 0
    given: int = 0
    again: int = 0
    """Messages that were given once more."""
    sought: int = 0
    tenures: int = 0


def simulate_polls(
    seed: int,
    *,
    steps: int = STEPS,
    flush: str | None = None,
    kinds: tuple[str, ...] | None = None,
    make_core: Callable[..., PullConsumerCore] = PullConsumerCore,
    from_end: bool = False,
    **options: Any,
) -> PollVerdict:
    """Run the history of a seed and judge it.

    ``steps`` is the number of events; ``kinds`` (of `KINDS`) are drawn from the seed when not given; ``make_core`` makes the
    consumers, ``options`` go to `Cluster`. ``from_end``: the group begins behind what is there by then, as consumers do by default,
    and not at the first message. What a core raises becomes a problem, as do errors that it logs.
    """
    chance = Random(f"polls {seed}")
    drawn = sorted({"join", "leave", chance.choice(KINDS), chance.choice(KINDS), chance.choice(("seek", "crash"))})
    verdict = PollVerdict(seed, flush or chance.choice(("sync", "async")), list(kinds) if kinds is not None else drawn)
    messages = Ledger(verdict.flush)
    ledger = PollLedger(unexpected=messages.unexpected)
    # of a log that is longer than the memory: a queue's first message is not in it, or each group would begin there
    store = {"memory_bytes": 1000} if from_end else {}
    options = {"brokers": chance.choice((1, 2)), "broker": BROKER, "store": store, **options}
    with judging(verdict, messages, **options) as cluster:
        _History(cluster, messages, ledger, chance, verdict.kinds, make_core, from_end=from_end).run(steps)
        verdict.problems = check_polls(ledger)
    verdict.acknowledged, verdict.tenures = sum(map(len, ledger.wanted.values())), len(ledger.tenures)
    verdict.given = sum(len(tenure.given) for tenure in ledger.tenures)
    verdict.again = verdict.given - len({(tenure.queue, offset) for tenure in ledger.tenures for offset in tenure.given})
    verdict.sought = sum(tenure.sought is not None for tenure in ledger.tenures)
    return verdict


class _History(MemberHistory["_Member"]):
    def __init__(
        self, cluster: Cluster, messages: Ledger, ledger: PollLedger, chance: Random, kinds: list[str],
        make_core: Callable[..., PullConsumerCore], *, from_end: bool,
    ) -> None:  # fmt: skip
        super().__init__(cluster, messages, chance, kinds)
        self.ledger, self.make_core, self.from_end = ledger, make_core, from_end
        self.consume_from = ConsumeFrom.LAST_OFFSET if from_end else ConsumeFrom.FIRST_OFFSET
        self.peaceful = set(kinds) <= PEACEFUL
        self.expression = chance.choice(("*", "*", "A"))
        self.quiet = False
        self.progress: defaultdict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)
        """Every progress that was stored, and when, in order."""
        for broker in cluster.brokers:
            self._watch_progress(broker)

    def run(self, steps: int) -> None:
        cluster = self.cluster
        self.create_topics(TOPIC, queues=QUEUES, wait=False)
        cluster.run(ms=500)
        for i in range(2):
            producer = SimProducer(cluster, f"producer-{i}", **CLIENT)
            message = partial(self._message, f"p{i}")
            sending = self.keep_sending(producer, f"p{i}", message, self._stored, lambda random: random.choice((1, 5, 20, 200)))
            producer.driver.start(sending, f"p{i}")
        if self.from_end:
            self._begin_at_the_end()
        else:
            for _ in range(self.chance.randint(1, 2)):
                self.join()
        cluster.timeline.after(LOOK_MS, self._look)
        self.let_happen(steps, (50, 2_500))
        cluster.run(ms=1_000)
        self.plan.closing = True
        cluster.run(ms=1_500)
        self._read_the_rest()
        cluster.run(ms=1_000)

    def _read_the_rest(self) -> None:
        """Let members go on until all is read, or nothing is any more: who takes its time has much before it."""
        read_one = True
        while read_one and (left := len(self.ledger.unread())):
            read_one = self.cluster.timeline.run_until(lambda: len(self.ledger.unread()) < left, SETTLE_MS)

    def _begin_at_the_end(self) -> None:
        """Have the group's first member begin while nothing is sent, so that everybody knows where that is."""
        self.cluster.run(ms=3_000)
        self.quiet = True
        self.cluster.run(ms=1_000)
        for queue, offsets in self.ledger.wanted.items():
            self.ledger.passed[queue] = max(offsets) + 1
        self.join()
        self.cluster.run(ms=2_000)
        self.quiet = False

    def _message(self, name: str, number: int, random: Random) -> Message | None:
        return None if self.quiet else Message(TOPIC, f"{name}/{number}".encode(), tag=random.choice("AAB"))

    def _stored(self, message: Message, result: SendResult) -> None:
        if self.expression in ("*", message.tag):
            self.ledger.acknowledged(result.queue, result.queue_offset, message.body)

    def member(self, number: int) -> _Member:
        """Let a consumer join."""
        return _Member(self, f"member-{number}")

    def stored(self, queue: MessageQueue) -> int | None:
        """Return the group's progress in a queue, 0 for none; None while the broker does not run."""
        core = self.broker(queue.broker_name).core
        return None if core is None else core.offsets.get(GROUP, queue.topic, queue.queue_id) or 0

    def kill_broker(self, broker: BrokerNode) -> None:
        """Kill a broker, which forgets what it has not saved, and start it again."""
        super().kill_broker(broker)
        self._watch_progress(broker)

    def _watch_progress(self, broker: BrokerNode) -> None:
        """Write down each progress that a broker stores, and what it begins with."""
        put = broker.core.offsets.put

        def note(queue: MessageQueue) -> None:
            self.progress[queue].append((self.cluster.timeline.now, self.stored(queue) or 0))

        def watched(group: str, topic: str, queue_id: int, offset: int) -> None:
            put(group, topic, queue_id, offset)
            if (group, topic) == (GROUP, TOPIC):
                note(MessageQueue(topic, broker.name, queue_id))

        broker.core.offsets.put = watched
        for i in range(QUEUES):
            note(MessageQueue(TOPIC, broker.name, i))

    def lowest_told(self, queue: MessageQueue) -> int:
        """Return the lowest progress that a member which has begun a queue just now may have been told.

        It changes within a millisecond: who lost a queue leaves its own, and who has it, too, stores what is ahead of that.
        """
        _, lowest = self.progress[queue][-1]
        for at_ms, offset in reversed(self.progress[queue]):
            lowest = min(lowest, offset)
            if at_ms < self.cluster.timeline.now - LATELY_MS:
                break
        return lowest

    def _look(self) -> None:
        """Write down what brokers hold, and which queues have come to whom."""
        for broker in self.cluster.brokers:
            for queue in (MessageQueue(TOPIC, broker.name, i) for i in range(QUEUES)):
                if (stored := self.stored(queue)) is not None:
                    self.ledger.seen(queue, stored, self.cluster.timeline.now)
        for member in self.members:
            member.look()
        self.cluster.timeline.after(LOOK_MS, self._look)


class _Member(Member):
    """A pull consumer and its application, which polls or iterates, works, commits and seeks."""

    client: SimPullConsumer

    def __init__(self, history: _History, name: str) -> None:
        super().__init__(history.cluster, name)
        self.history, self._wants_to_seek, self._interrupted = history, False, False
        self._random = history.cluster.timeline.split(f"works {name}")
        self._auto = self._random.random() < 0.7
        self._slow_ms = self._random.choice((5, 50, 800))
        self._in_hand: list[tuple[MessageQueue, int, Tenure]] = []
        self._done: dict[Tenure, int] = {}
        self._tenures: dict[HeldQueue, Tenure] = {}
        history.cluster.timeline.note(name, f"joins, {'auto' if self._auto else 'own'} commit, {self._slow_ms} ms")
        self.client = SimPullConsumer(
            history.cluster, TOPIC, expression=history.expression, name=name, make_core=history.make_core, group=GROUP,
            consume_from=history.consume_from, auto_commit=self._auto, auto_commit_ms=self._random.choice((1, 1_000)),
            batch_max=self._random.choice((2, 10, 32)), **CLIENT,
        )  # fmt: skip
        self.client.driver.start(self._work(), name)

    # ---------------------------------------------------------------- the application

    def _work(self) -> Op[None]:
        while not self.client.core.running:
            yield from sleep(10)
        try:
            while not self.gone:
                yield from self._round()
        except NotRunning:
            pass

    def _round(self) -> Op[None]:
        """Poll once, or take some steps of an iteration; do with what comes what applications do."""
        random, core = self._random, self.client.core
        count_max, steps = (1, random.randint(1, 8)) if random.random() < 0.6 else (None, 1)
        for _ in range(steps):
            if self._auto:
                self._confirm()
            handed = yield from core.hand_out(random.choice((0, 100, 400)), count_max=count_max)
            if self._interrupted and handed.messages:
                self._interrupted = False
                core.take_back(handed)
                continue
            for message in handed.messages:
                tenure = self._tenure(core.held[core.wire_queue(message.queue)])
                tenure.given.append(message.queue_offset)
                self._in_hand.append((message.queue, message.queue_offset, tenure))
            if handed.messages:
                yield from sleep(random.randint(0, self._slow_ms))
            if self.gone:
                return
        if not self._auto or random.random() < 0.2:
            self._confirm()
            yield from core.commit(persist=random.random() < 0.7)
        if self._wants_to_seek and not self.gone:
            self._wants_to_seek = False
            yield from self._seek()

    def _confirm(self) -> None:
        for queue, offset, tenure in self._in_hand:
            self.history.ledger.confirm(queue, offset)
            self._done[tenure] = offset + 1
        self._in_hand.clear()

    def _seek(self) -> Op[None]:
        """Go elsewhere in a queue, some way back or on. What lies before may then stay unread: so the application says."""
        core, ledger = self.client.core, self.history.ledger
        if not (mine := core.assignment()):
            return
        queue = self._random.choice(mine)
        offset = max(0, core.position(queue) + self._random.randint(-20, 8))
        passed, ledger.passed[queue] = ledger.passed[queue], max(ledger.passed[queue], offset)
        try:
            yield from core.seek(queue, offset)
        except NotRunning:
            raise
        except HalfmoonError as exc:
            ledger.passed[queue] = passed
            self.cluster.timeline.note(self.name, f"does not seek: {exc}")
            return
        self.cluster.timeline.note(self.name, f"seeks to {queue}@{offset}")
        self._in_hand = [entry for entry in self._in_hand if entry[0] != queue]
        if (held := core.held.get(core.wire_queue(queue))) is not None:
            self._tenure(held).sought = offset

    # ---------------------------------------------------------------- what is noted of it

    def look(self) -> None:
        """Note the queues that it has now."""
        if not self.gone:
            for held in self.client.core.held.values():
                self._tenure(held)

    def _tenure(self, held: HeldQueue) -> Tenure:
        tenure = self._tenures.get(held)
        if tenure is None:
            tenure = self._tenures[held] = Tenure(self.name, held.queue, self.history.lowest_told(held.queue))
            self.history.ledger.tenures.append(tenure)
        return tenure

    def go(self, *, crash: bool) -> None:
        """Leave, whatever the application does just now: by a close, or as a killed process."""
        self.gone = True
        self.cluster.timeline.note(self.name, "is killed" if crash else "closes")
        if crash:
            self.end()
            return
        mine = [self._tenures[held] for held in self.client.core.held.values() if held in self._tenures]

        def later() -> None:
            self.cluster.timeline.after(50, lambda: self._closed(mine))

        self.client.stop().then(later)

    def _closed(self, mine: list[Tenure]) -> None:
        for tenure in mine:
            if self.history.peaceful and self._auto and tenure in self._done:
                stored = self.history.stored(tenure.queue)
                assert stored is not None
                self.history.ledger.closed.append((self.name, tenure.queue, self._done[tenure], stored))
        self.end()

    # ---------------------------------------------------------------- what happens to it

    def interrupt(self, chance: Random) -> None:
        """Interrupt the application as it is handed messages the next time."""
        self._interrupted = True

    def seek(self, chance: Random) -> None:
        """Have the application go elsewhere in a queue when it has done what it does."""
        self._wants_to_seek = True
