"""Pull consumers that poll, iterate, commit, seek, close and die: nothing is lost or skipped; and the checkers bite."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import pytest

from halfmoon.client.core.consume.member import GroupMember, HeldQueue
from halfmoon.client.core.consume.pull import max_offset
from halfmoon.client.core.consume.pull_consumer import HandedOut, PullConsumerCore
from halfmoon.effects import Op
from halfmoon.model import MessageQueue, StoredMessage
from simulation.history import History, simulate
from simulation.polls import GROUP, TOPIC, PollLedger, Polls, Tenure, check_polls
from tests.client.queue_of import Taking
from tests.simulation.faulty import finds, planted, verdict_on

SEEDS = range(1, 13)
KEPT = (
    61092,  # a member closes, and leaves progress that is behind, in the millisecond in which another begins its queue
    61253,  # such progress is replaced in the next millisecond, and was told in between
    61287,  # a slow member reads for longer than two minutes
)
BITE = range(1, 9)


history = partial(verdict_on, Polls)


@pytest.mark.parametrize("seed", [*SEEDS, *KEPT])
def test_what_an_application_has_not_confirmed_is_given_again_and_nothing_else_whatever_happens(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_is_where_polls_take_what_is_there(seed: int) -> None:
    assert simulate(Polls, seed, make_core=Taking).problems == []


@pytest.mark.parametrize("seed", range(21, 25))
def test_members_that_come_go_and_seek_lose_nothing_and_keep_what_was_confirmed(seed: int) -> None:
    assert simulate(Polls, seed, kinds=("join", "leave", "seek"), steps=15).problems == []


@pytest.mark.parametrize("seed", [31, 32])
def test_a_group_that_begins_at_the_end_loses_nothing_of_what_comes_from_then_on(seed: int) -> None:
    assert simulate(Polls, seed, kinds=("join", "leave", "crash", "interrupt"), from_end=True, steps=6).problems == []


def test_a_member_may_have_been_told_any_progress_that_was_stored_lately_however_shortly_and_none_from_before() -> None:
    history = History(Polls, 1)
    history.make_world(brokers=1)
    polls, cluster = Polls(history), history.cluster
    broker, queue = cluster.brokers[0], MessageQueue(TOPIC, cluster.brokers[0].name, 0)
    polls.watch_progress(broker)

    assert polls.lowest_told(queue) == 0
    broker.core.offsets.put(GROUP, TOPIC, 0, 47)
    cluster.run(ms=1_000)
    assert polls.lowest_told(queue) == 47
    for offset in (11, 53):
        broker.core.offsets.put(GROUP, TOPIC, 0, offset)
    assert polls.lowest_told(queue) == 11
    cluster.run(ms=250)
    assert polls.lowest_told(queue) == 11
    cluster.run(ms=100)
    assert polls.lowest_told(queue) == 53


def test_histories_of_pull_consumers_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict["given"] for verdict in verdicts) > 3_000
    assert sum(verdict["again"] for verdict in verdicts) > 50
    assert sum(verdict["seeks"] for verdict in verdicts) > 5
    assert sum(verdict["tenures of queues"] for verdict in verdicts) > 150


# ---------------------------------------------------------------- planted faults


class GivesIsDone(PullConsumerCore):
    """Takes what it hands out for consumed."""

    def _next_ready(self, count_max: int | None) -> HandedOut:
        handed = super()._next_ready(count_max)
        self._confirm()
        return handed


class FetchedIsGiven(PullConsumerCore):
    """Takes a whole poll out for an iteration that is given one message of it after the other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._giver: HeldQueue | None = None
        self._rest: deque[StoredMessage] = deque()

    def _next_ready(self, count_max: int | None) -> HandedOut:
        if not self._rest:
            self._giver, messages = super()._next_ready(None)
            self._rest.extend(messages)
        return HandedOut(self._giver, [self._rest.popleft() for _ in range(min(len(self._rest), count_max or len(self._rest)))])


class ConfirmsAtTheClose(PullConsumerCore):
    """Takes what was handed out last for consumed when it closes."""

    def stop(self) -> Op[None]:
        self._confirm()
        yield from super().stop()


class ConfirmsAtARebalance(PullConsumerCore):
    """Takes what was handed out of a queue for consumed when the queue goes to another."""

    def _remove(self, held: HeldQueue) -> Op[None]:
        self._confirm()
        yield from super()._remove(held)


class CommitsWithoutBeingAsked(PullConsumerCore):
    """Knows no difference between auto commit and commits of the application's own."""

    def hand_out(self, timeout_ms: int | None = None, *, count_max: int | None = None) -> Op[HandedOut]:
        self._confirm()
        self._note_consumed()
        return (yield from super().hand_out(timeout_ms, count_max=count_max))


class ForgetsAtTheClose(PullConsumerCore):
    """Leaves to the next tick what was confirmed, and has none when it closes."""

    def stop(self) -> Op[None]:
        self.running = False
        for held in list(self.held.values()):
            self._let_go(held)
        self.held.clear()
        yield from self._leave()


class KeepsWhatWasFetched(PullConsumerCore):
    """Seeks, and hands out what it had fetched before."""

    def _let_go(self, held: HeldQueue) -> None:
        GroupMember._let_go(self, held)
        self._ready = deque((Heir(one, self) if one is held else one, messages) for one, messages in self._ready)


class Heir(HeldQueue):
    """Stands for what was held before a seek, as if it were held still."""

    def __init__(self, old: HeldQueue, core: PullConsumerCore) -> None:
        super().__init__(old.queue, old.next_offset)


class TakenIsDone(Taking):
    """Takes for consumed what was taken."""

    def _settle(self) -> None:
        super()._settle()
        self._confirm()


class GivesTwice(PullConsumerCore):
    """Hands out the last message of what it hands out once more, now and then."""

    count = 0

    def _next_ready(self, count_max: int | None) -> HandedOut:
        held, messages = super()._next_ready(count_max)
        self.count += 1
        return HandedOut(held, messages + messages[-1:] if self.count % 5 == 0 else messages)


class Drops(PullConsumerCore):
    """Loses a message of what a pull brought, now and then."""

    count = 0

    def _next_ready(self, count_max: int | None) -> HandedOut:
        held, messages = super()._next_ready(count_max)
        self.count += 1
        return HandedOut(held, messages[1:] if self.count % 10 == 0 else messages)


class ForgetsInterrupts(PullConsumerCore):
    """Takes for given what an interrupt kept from the application."""

    def take_back(self, handed: HandedOut) -> None:
        pass


class BeginsAnewAtTheEnd(PullConsumerCore):
    """Stores nothing before something is confirmed, so that whoever comes next begins behind what was given."""

    def start_offset(self, queue: MessageQueue) -> Op[int]:
        stored = yield from self.offsets.fetch(queue)
        return stored if stored >= 0 else (yield from max_offset(self.routes, queue))


class BeginsAtTheBegin(PullConsumerCore):
    """Does not ask where a queue was left."""

    def start_offset(self, queue: MessageQueue) -> Op[int]:
        yield from ()
        return 0


class SkipsTheFirst(PullConsumerCore):
    """Begins one message behind where a queue was left."""

    def start_offset(self, queue: MessageQueue) -> Op[int]:
        return (yield from super().start_offset(queue)) + 1


PLANTED = [
    planted("ahead", make_core=GivesIsDone),
    planted("ahead", make_core=TakenIsDone),
    planted("ahead", make_core=FetchedIsGiven),
    planted("ahead", make_core=ForgetsInterrupts, kinds=("interrupt",)),
    planted("lost", make_core=BeginsAnewAtTheEnd, kinds=("join", "leave", "crash"), from_end=True),
    planted("ahead", make_core=ConfirmsAtTheClose),
    planted("ahead", make_core=ConfirmsAtARebalance),
    planted("ahead", make_core=CommitsWithoutBeingAsked),
    planted("kept", make_core=ForgetsAtTheClose),
    planted("again", make_core=KeepsWhatWasFetched, kinds=("seek",), steps=20),
    planted("again", make_core=GivesTwice, kinds=()),
    planted("skipped", make_core=Drops, kinds=()),
    planted("begun", make_core=BeginsAtTheBegin),
    planted("lost", make_core=SkipsTheFirst),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_a_planted_fault_of_pull_consumers_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Polls, BITE, checker, **{"kinds": ("join", "leave"), **options})


# ---------------------------------------------------------------- checkers


QUEUE = MessageQueue("orders", "broker-a", 0)


def ledger(*given: int, stored: int | None = 0) -> PollLedger:
    facts = PollLedger()
    for offset in range(3):
        facts.acknowledged(QUEUE, offset, b"")
    facts.tenures.append(Tenure("m1", QUEUE, stored, given=list(given)))
    for offset in given:
        facts.confirm(QUEUE, offset)
    return facts


def checkers(facts: PollLedger) -> list[str]:
    return [name for name, problems in check_polls(facts).items() if problems]


def test_every_message_once_and_in_order_is_well() -> None:
    assert checkers(ledger(0, 1, 2)) == []


def test_messages_that_are_left_out_repeated_or_already_committed_are_found() -> None:
    assert checkers(ledger(0, 2)) == ["lost", "skipped"]
    assert checkers(ledger(0, 1, 1, 2)) == ["again"]
    assert checkers(ledger(0, 1, 2, stored=1)) == ["begun"]


def test_progress_ahead_of_what_was_confirmed_and_progress_that_a_close_forgot_are_found() -> None:
    facts = ledger(0)
    facts.seen(QUEUE, 2, 100)
    facts.confirm(QUEUE, 1)
    facts.confirm(QUEUE, 2)
    facts.closed.append(("m1", QUEUE, 3, 2))
    assert checkers(facts) == ["ahead", "kept"]


def test_what_lies_before_a_seek_need_not_be_read() -> None:
    facts = ledger()
    facts.passed[QUEUE] = 3
    assert checkers(facts) == []
