"""Workload of pull consumers: applications poll, iterate, commit, seek, close and die; and its checkers.

An application is given messages and confirms them: by its next poll or step with auto commit, by a commit without. A group's stored
progress speaks of confirmed messages only; what was not confirmed is given again, to whoever comes next, and nothing is skipped.

The consumers are our own client. ``join``, ``leave`` (a close in the middle of the work, as after a ``break`` or an exception) and
``crash`` happen to them, ``seek`` to one of their queues, ``lose`` to a connection, ``interrupt`` (a Ctrl-C after which it goes on)
to an application that is just being handed messages; ``broker`` kills a broker and starts it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from halfmoon.client.core.consume.member import HeldQueue
from halfmoon.client.core.consume.pull_consumer import PullConsumerCore
from halfmoon.effects import Op, sleep
from halfmoon.errors import HalfmoonError, NotRunning
from halfmoon.model import ConsumeFrom, Message, MessageQueue, SendResult
from halfmoon.testing.clients import SimProducer, SimPullConsumer
from halfmoon.testing.cluster import BrokerNode
from simulation.history import BROKER, CLIENT, History
from simulation.members import MemberWorkload, SimulatedMember

TOPIC, GROUP, QUEUES = "orders", "C_polls", 3
PEACEFUL = {"join", "leave", "seek", "interrupt"}
"""With these alone every answer and every one-way request arrives."""

OURS: dict[str, Any] = {**CLIENT, "persist_offsets_ms": 500}
LOOK_MS = 10
"""How often the brokers' progress is looked at."""

LATELY_MS = 300
"""Longest time since a member may have been told the progress at which it begins a queue."""

SETTLE_MS = 120_000
"""Longest time without a confirmation until the remaining messages count as lost."""


@dataclass(eq=False)
class Tenure:
    """The time in which one member has one queue: from where it was begun, or sought in, until it goes or is sought in again.

    ``stored`` is the lowest offset that the broker had of the group shortly before the tenure began (None: not known), ``sought``
    the offset that was asked for; ``given`` are offsets in the order in which the application was given them.
    """

    member: str
    queue: MessageQueue
    stored: int | None = None
    sought: int | None = None
    given: list[int] = field(default_factory=list)


@dataclass
class PollLedger:
    """Facts of a history of pull consumers.

    ``wanted``: acknowledged messages that the group's filter takes, by queue and offset. ``confirmed``: by any application.
    ``passed``: up to where somebody has sought in a queue, so that what lies before may stay unread. ``ahead``: progress that was
    seen at a broker before the messages in front of it were confirmed. ``closed``: queue, what was confirmed, what was stored, of
    members that closed in peace.
    """

    wanted: defaultdict[MessageQueue, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    confirmed: defaultdict[MessageQueue, set[int]] = field(default_factory=lambda: defaultdict(set))
    open: defaultdict[MessageQueue, set[int]] = field(default_factory=lambda: defaultdict(set))
    passed: defaultdict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    tenures: list[Tenure] = field(default_factory=list)
    ahead: dict[tuple[MessageQueue, int], str] = field(default_factory=dict)
    closed: list[tuple[str, MessageQueue, int, int]] = field(default_factory=list)

    def acknowledged(self, queue: MessageQueue, offset: int, body: bytes) -> None:
        """Note that a message which the group wants is in a queue."""
        self.wanted[queue][offset] = body
        if offset not in self.confirmed[queue]:
            self.open[queue].add(offset)

    def confirm(self, queue: MessageQueue, offset: int) -> None:
        """Note that an application has finished a message."""
        self.confirmed[queue].add(offset)
        self.open[queue].discard(offset)

    def seen(self, queue: MessageQueue, stored: int, at_ms: int) -> None:
        """Note the progress of a group in a queue that a broker holds."""
        for offset in self.open[queue]:
            if self.passed[queue] <= offset < stored and (queue, offset) not in self.ahead:
                self.ahead[queue, offset] = f"{queue}@{offset} was not confirmed at {at_ms}, when the progress stored was {stored}"

    def unread(self) -> list[tuple[MessageQueue, int]]:
        """Return what somebody must still be given."""
        return sorted((queue, offset) for queue, found in self.open.items() for offset in found if offset >= self.passed[queue])


class Polls(MemberWorkload["_Member"]):
    """Producers, and applications with pull consumers.

    ``make_core`` makes the consumers. ``from_end``: the group begins behind what is there by then, as consumers do by default, and
    not at the first message.
    """

    NAME, STEPS = "polls", 10
    KINDS = ("join", "leave", "crash", "seek", "lose", "broker", "interrupt")
    SETTINGS = ("make_core", "from_end")
    GAP_MS = 50, 2_500
    make_core: Callable[..., PullConsumerCore] = PullConsumerCore
    from_end = False

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ledger = PollLedger()
        self.quiet = False
        self.progress: defaultdict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)
        """Every progress that was stored, and when, in order."""

    def draw(self) -> dict[str, Any]:
        chance, kinds = self.chance, self.KINDS
        self.draw_kinds({"join", "leave", chance.choice(kinds), chance.choice(kinds), chance.choice(("seek", "crash"))})
        self.history.draw_flush()
        # of a log that is longer than the memory: a queue's first message is not in it, or each group would begin there
        store = {"memory_bytes": 1000} if self.from_end else {}
        return {"brokers": chance.choice((1, 2)), "broker": BROKER, "store": store}

    def begin(self) -> None:
        self.consume_from = ConsumeFrom.LAST_OFFSET if self.from_end else ConsumeFrom.FIRST_OFFSET
        self.peaceful = set(self.history.kinds or ()) <= PEACEFUL
        self.expression = self.chance.choice(("*", "*", "A"))
        for broker in self.cluster.brokers:
            self.watch_progress(broker)
        self.history.create_topics(TOPIC, queues=QUEUES, wait=False)
        self.cluster.run(ms=500)
        for i in range(2):
            producer = SimProducer(self.cluster, f"producer-{i}", **OURS)
            sending = self.history.keep_sending(
                producer, f"p{i}", partial(self._message, f"p{i}"), self._stored, lambda random: random.choice((1, 5, 20, 200))
            )
            producer.driver.start(sending, f"p{i}")
        if self.from_end:
            self._begin_at_the_end()
        else:
            for _ in range(self.chance.randint(1, 2)):
                self.join()
        self.cluster.timeline.after(LOOK_MS, self._look)

    def end(self) -> None:
        self.cluster.run(ms=1_000)
        self.history.plan.closing = True
        self.cluster.run(ms=1_500)
        self._read_the_rest()
        self.cluster.run(ms=1_000)

    def problems(self) -> dict[str, list[str]]:
        return check_polls(self.ledger)

    def count(self) -> dict[str, int | str]:
        tenures = self.ledger.tenures
        given = sum(len(tenure.given) for tenure in tenures)
        return {
            "acknowledged": sum(map(len, self.ledger.wanted.values())), "given": given,
            "again": given - len({(tenure.queue, offset) for tenure in tenures for offset in tenure.given}),
            "seeks": sum(tenure.sought is not None for tenure in tenures), "tenures of queues": len(tenures),
        }  # fmt: skip

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
        core = self.history.broker(queue.broker_name).core
        return None if core is None else core.offsets.get(GROUP, queue.topic, queue.queue_id) or 0

    def kill_broker(self, broker: BrokerNode) -> None:
        """Kill a broker, which forgets what it has not saved, and start it again."""
        super().kill_broker(broker)
        self.watch_progress(broker)

    def watch_progress(self, broker: BrokerNode) -> None:
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


class _Member(SimulatedMember):
    """A pull consumer and its application, which polls or iterates, works, commits and seeks."""

    client: SimPullConsumer

    def __init__(self, workload: Polls, name: str) -> None:
        super().__init__(workload.cluster, name)
        self.workload, self._wants_to_seek, self._interrupted = workload, False, False
        self._random = workload.cluster.timeline.split(f"works {name}")
        self._auto = self._random.random() < 0.7
        self._slow_ms = self._random.choice((5, 50, 800))
        self._in_hand: list[tuple[MessageQueue, int, Tenure]] = []
        self._done: dict[Tenure, int] = {}
        self._tenures: dict[HeldQueue, Tenure] = {}
        workload.cluster.timeline.note(name, f"joins, {'auto' if self._auto else 'own'} commit, {self._slow_ms} ms")
        self.client = SimPullConsumer(
            workload.cluster, TOPIC, expression=workload.expression, name=name, make_core=workload.make_core, group=GROUP,
            consume_from=workload.consume_from, auto_commit=self._auto, auto_commit_ms=self._random.choice((1, 1_000)),
            batch_max=self._random.choice((2, 10, 32)), **OURS,
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
            self.workload.ledger.confirm(queue, offset)
            self._done[tenure] = offset + 1
        self._in_hand.clear()

    def _seek(self) -> Op[None]:
        """Go elsewhere in a queue, some way back or on. What lies before may then stay unread: so the application says."""
        core, ledger = self.client.core, self.workload.ledger
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
            tenure = self._tenures[held] = Tenure(self.name, held.queue, self.workload.lowest_told(held.queue))
            self.workload.ledger.tenures.append(tenure)
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
            if self.workload.peaceful and self._auto and tenure in self._done:
                stored = self.workload.stored(tenure.queue)
                assert stored is not None
                self.workload.ledger.closed.append((self.name, tenure.queue, self._done[tenure], stored))
        self.end()

    # ---------------------------------------------------------------- what happens to it

    def interrupt(self, chance: Random) -> None:
        """Interrupt the application as it is handed messages the next time."""
        self._interrupted = True

    def seek(self, chance: Random) -> None:
        """Have the application go elsewhere in a queue when it has done what it does."""
        self._wants_to_seek = True


def check_polls(ledger: PollLedger) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "lost": [f"{queue}@{offset} was confirmed by nobody" for queue, offset in ledger.unread()],
        "ahead": list(ledger.ahead.values()),
        "again": given_once(ledger),
        "skipped": nothing_is_skipped(ledger),
        "begun": begun_where_it_was_left(ledger),
        "kept": closes_keep_what_was_confirmed(ledger),
    }


def given_once(ledger: PollLedger) -> list[str]:
    """Check that an application is given each message of a queue once, in order, and nothing from before a seek."""
    return [
        f"{tenure.member} was given {tenure.queue}@{later} after {earlier}"
        for tenure in ledger.tenures
        for earlier, later in zip([-1 if tenure.sought is None else tenure.sought - 1, *tenure.given], tenure.given)
        if later <= earlier
    ]


def nothing_is_skipped(ledger: PollLedger) -> list[str]:
    """Check that no wanted message lies between two that follow each other, or between a seek and the first one."""
    problems = []
    for tenure in ledger.tenures:
        begin = tenure.given[:1] if tenure.sought is None else [tenure.sought - 1]
        for earlier, later in zip([*begin, *tenure.given], tenure.given):
            missed = [offset for offset in range(earlier + 1, later) if offset in ledger.wanted[tenure.queue]]
            problems += [f"{tenure.member} was given {tenure.queue}@{later} after {earlier}, without {missed}"] if missed else []
    return problems


def begun_where_it_was_left(ledger: PollLedger) -> list[str]:
    """Check that a member begins a queue at the progress stored: committed messages do not come again."""
    return [
        f"{tenure.member} began {tenure.queue} at {tenure.given[0]}, where {tenure.stored} was stored"
        for tenure in ledger.tenures
        if tenure.stored is not None and tenure.sought is None and tenure.given and tenure.given[0] < tenure.stored
    ]


def closes_keep_what_was_confirmed(ledger: PollLedger) -> list[str]:
    """Check that a member with auto commit that closes in peace stores all that its application confirmed."""
    return [
        f"{member} closed after it had confirmed {queue} up to {confirmed}, and {stored} was stored"
        for member, queue, confirmed, stored in ledger.closed
        if stored < confirmed
    ]
