"""MemoryBus behaves as a broker does: the same stories, told to a bus and to a real broker over sockets, end alike."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from halfmoon import Admin, TransactionProducer
from halfmoon.errors import BrokerError, HalfmoonError
from halfmoon.events import Consumers, Event, Publisher, local_transaction
from halfmoon.events.consuming.on import Handler
from halfmoon.events.errors import PublishFailed
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState, StoredMessage
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.command import Command
from tests.events.outcomes.network import END_TRANSACTION, SEND, Network, is_half, is_plain
from tests.waiting import until

CHECKS_MAX = 3
WAIT_S = 20
SETTINGS = {
    "transactionTimeOut": 700,
    "transactionCheckInterval": 400,
    "transactionCheckMax": CHECKS_MAX,
    "messageDelayLevel": " ".join(["1s"] * 18),
}
"""Of a broker that asks soon, gives up soon, and gives back soon what was not consumed."""

STATES = {"PREPARED": "unknown", "COMMITTED": "committed", "ROLLED_BACK": "rolled back", "EXPIRED": "expired"}
_numbers = itertools.count(1)


class OnBus:
    """On a MemoryBus: time passes when somebody waits."""

    def __init__(self) -> None:
        self.bus = MemoryBus(checks_max=CHECKS_MAX, check_interval_s=30)

    def create_topics(self, *topics: str) -> None:
        """A bus has every topic."""

    def publisher(self, group: str, **options: Any) -> Publisher:
        return Publisher(group, transport=self.bus, **options)

    def consumers(self, *handlers: Handler, **settings: Any) -> Consumers:
        return Consumers(*handlers, bus=self.bus, **settings)

    def lose(self, what: str, phase: str) -> None:
        self.bus.fail_next(phase, stored=what == "answer")

    def lose_decisions(self) -> None:
        self.bus.lose_second_phase()

    def heal(self) -> None:
        self.bus.heal()

    def die(self, publisher: Publisher) -> None:
        self.bus.kill(publisher)

    def state(self, event_id: str) -> str:
        bus = self.bus
        return next(
            (one.state.value for one in bus.pending + bus.committed + bus.rolled_back + bus.expired if one.id == event_id), ""
        )

    def resume(self, event_id: str) -> None:
        self.bus.resume(next(one for one in self.bus.expired if one.id == event_id))

    def unknowing(self, group: str) -> Callable[[], None]:
        """Add a member that answers *unknown* to every check, as other clients do; return what ends it."""
        member = self.bus.transport(group)
        member.start(lambda stored: LocalTransactionState.UNKNOWN)
        return partial(self.bus.kill, member)

    def wait_rounds(self, count: int) -> None:
        self.bus.advance(10 + 30 * count)

    def checks_of(self, events: list[Event]) -> int:
        ids = {event.id for event in events}
        return sum(one.checks for one in self.bus.committed if one.id in ids)

    def quiet(self) -> None:
        """Let everything happen that is going to."""
        self.bus.advance(3600)

    def dead_letters(self, group: str) -> list[StoredMessage]:
        return [one.message for one in self.bus.dead_letters if one.group == group]

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(20):
            if true():
                return
            self.bus.advance(10)
        assert true()

    def close(self) -> None:
        pass


class OnBroker:
    """On a real broker, behind a network that loses what it is told to."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.network = Network(cluster.nameserver, cluster.broker)
        self.network.__enter__()
        self.admin = Admin(nameserver=cluster.nameserver)
        self.admin.start()
        self.topic = ""

    def create_topics(self, *topics: str) -> None:
        """Make topics of one queue; requests to the first one are what may be lost."""
        self.topic = topics[0]
        for topic in topics:
            self.admin.create_topic(topic, queue_count=1)

    def publisher(self, group: str, **options: Any) -> Publisher:
        return Publisher(group, self.network.nameserver, **{"timeout_ms": 600, **options})

    def consumers(self, *handlers: Handler, **settings: Any) -> Consumers:
        return Consumers(*handlers, nameserver=self.cluster.nameserver, rebalance_ms=200, route_refresh_ms=200, **settings)

    def lose(self, what: str, phase: str) -> None:
        once = iter([True])
        wanted = is_half if phase == "prepare" else is_plain

        def first(command: Command) -> bool:
            return self.topic in str(command.fields) and wanted(command) and next(once, False)

        self.network.lose(what, SEND, first)

    def lose_decisions(self) -> None:
        self.network.lose("request", END_TRANSACTION, lambda command: command.fields.get("fromTransactionCheck", "false") != "true")

    def heal(self) -> None:
        self.network.heal()

    def die(self, publisher: Publisher) -> None:
        publisher.transport.close(0)

    def state(self, event_id: str) -> str:
        if any(one.msg_id == event_id and not one.resumed for one in self.admin.expired_transactions()):
            return "expired"
        try:
            return STATES[self.admin.transaction(event_id).state]
        except BrokerError:
            return ""

    def resume(self, event_id: str) -> None:
        self.admin.resume_half(next(one.offset_msg_id for one in self.admin.expired_transactions() if one.msg_id == event_id))

    def unknowing(self, group: str) -> Callable[[], None]:
        member = TransactionProducer(
            group=group, nameserver=self.network.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
        )
        member.start()
        return member.close

    def wait_rounds(self, count: int) -> None:
        begun = self._counter("rounds")
        self.until(lambda: self._counter("rounds") >= begun + count)

    def checks_of(self, events: list[Event]) -> int:
        return sum(self.admin.transaction(event.id).checks_sent for event in events)

    def _counter(self, name: str) -> int:
        return self.admin.transaction_stats()[0].counters[name]

    def quiet(self) -> None:
        """Let everything happen that is going to, in a while."""
        time.sleep(0.5)

    def dead_letters(self, group: str) -> list[StoredMessage]:
        return [one.message for one in self.admin.dead_letters(group)]

    def until(self, true: Callable[[], bool]) -> None:
        until(true, within_s=WAIT_S)

    def close(self) -> None:
        self.network.close()
        self.admin.close()


class Story:
    """One publisher group, its data, one consumer; what happens is told to the one or the other."""

    def __init__(self, ways: OnBus | OnBroker) -> None:
        self.ways = ways
        number = next(_numbers)
        self.group, self.topic = f"P_story{number}", f"TP_STORY{number}"
        self.data: set[str] = set()
        self.said: list[str] = []
        """What the check answers next: nothing here is the truth."""
        self.got: list[str] = []
        self._lock = threading.Lock()
        ways.create_topics(self.topic)
        self.listening = ways.consumers(Handler(group=f"S_story{number}", topic=self.topic, code="EC_A", function=self._consume))
        self.publishers = [self.member()]
        self.listening.start()

    def member(self, *, knows: bool = True, **options: Any) -> Publisher:
        """Add a member of the group; one that does not ``know`` answers *not mine* to every check."""
        made = self.ways.publisher(self.group, **{"tries_max": 0, **options})
        if knows:
            made.check(self.topic)(self._check)
        made.start()
        return made

    @property
    def events(self) -> Publisher:
        return self.publishers[-1]

    def _check(self, event: Event, context: Any) -> None:
        if self.said:
            raise LookupError(self.said.pop())
        if event.id not in self.data:
            context.set_rollback_only()

    def _consume(self, event: Event) -> None:
        with self._lock:
            self.got.append(event.id)

    def order(self, *, ends: str = "commits", transactional: bool = True, swallow: bool = False) -> Event:
        """Publish inside a transaction that ``commits``, ``rolls back``, or whose commit ``fails`` after or ``fails before`` it."""
        event = self.events.event(self.topic, "EC_A", {"n": 1}, transactional=transactional)

        def commit() -> None:
            if ends in ("commits", "fails"):
                self.data.add(event.id)
            if ends.startswith("fails"):
                raise ConnectionError("no answer from the database")

        try:
            with local_transaction(commit=commit):
                try:
                    self.events.publish(event)
                except PublishFailed:
                    if not swallow:
                        raise
                if ends == "rolls back":
                    raise KeyError("sold out")
                if ends == "dies":
                    self.ways.die(self.events)
                    raise KeyError("nobody hears this")
        except (KeyError, ConnectionError, PublishFailed):
            pass
        return event

    def die(self, *, knows: bool = True) -> None:
        self.ways.die(self.events)
        self.publishers.append(self.member(knows=knows))

    def ends(self, event: Event, state: str) -> None:
        """Wait until the event is in a state, and was handed to the consumer once if it was committed, else never."""
        self.ways.until(lambda: self.ways.state(event.id) == state)
        self.ways.until(lambda: event.id in self.got or state != "committed")
        marker = self.events.event(self.topic, "EC_A", {"n": 2})
        self.ways.heal()
        if self.events.transport and not getattr(self.events.transport, "dead", False):
            self.events.publish(marker)
            self.ways.until(lambda: marker.id in self.got)
        assert self.got.count(event.id) == (state == "committed")

    def close(self) -> None:
        self.listening.close()
        for one in self.publishers:
            one.close(flush_ms=200)


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return SETTINGS


@pytest.fixture(params=["bus", pytest.param("broker", marks=pytest.mark.slow)])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    ways: Any = OnBus() if request.param == "bus" else OnBroker(request.getfixturevalue("cluster"))
    made = Story(ways)
    yield made
    made.close()
    ways.close()


def test_dead_before_the_commit(story: Story):
    event = story.order(ends="dies")
    story.publishers.append(story.member())
    story.ends(event, "rolled back")


def test_dead_after_the_commit(story: Story):
    story.ways.lose_decisions()
    event = story.order()
    story.die()
    story.ends(event, "committed")


@pytest.mark.parametrize("lost", [False, True], ids=["", "the decision is lost"])
@pytest.mark.parametrize(
    ("ends", "state"),
    [("commits", "committed"), ("rolls back", "rolled back"), ("fails", "committed"), ("fails before", "rolled back")],
)
def test_an_event_follows_its_transaction(story: Story, ends: str, state: str, lost: bool):
    if lost:
        story.ways.lose_decisions()
    story.ends(story.order(ends=ends), state)


@pytest.mark.parametrize(("what", "state"), [("request", ""), ("answer", "rolled back")])
def test_without_an_answer_to_the_half_message_nothing_is_ordered(story: Story, what: str, state: str):
    story.ways.lose(what, "prepare")
    event = story.order()
    assert event.id not in story.data
    story.ends(event, state)


def test_the_answer_is_lost_and_the_caller_commits_all_the_same(story: Story):
    story.ways.lose("answer", "prepare")
    story.ends(story.order(swallow=True), "committed")


@pytest.mark.parametrize("what", ["answer", "request"])
def test_a_repeat_after_a_loss_is_the_same_message(story: Story, what: str):
    story.publishers.append(story.member(tries_max=1))
    story.ways.lose(what, "prepare")
    story.ends(story.order(), "committed")


@pytest.mark.parametrize("before", [False, True])
def test_members_without_a_check_do_not_keep_the_one_that_has_it_from_being_asked(story: Story, before: bool):
    story.ways.lose_decisions()
    event = story.order()
    others = [story.member(knows=False) for _ in range(4)]
    story.publishers[0:0] = others
    if before:  # one more for each check that may be counted: they say so in more rounds than would be enough to expire
        story.die(knows=False)
        story.ways.wait_rounds(CHECKS_MAX + 3)
        assert story.ways.state(event.id) == "unknown"
    story.die()
    story.ends(event, "committed")


def test_the_member_that_published_is_asked_first(story: Story):
    for _ in range(4):
        story.publishers.insert(0, story.member(knows=False))
    story.ways.lose_decisions()
    events = [story.order() for _ in range(5)]
    story.ways.until(lambda: all(story.ways.state(event.id) == "committed" for event in events))
    assert story.ways.checks_of(events) == 5


def test_no_check_says_anything(story: Story):
    story.ways.lose_decisions()
    event = story.order()
    story.die(knows=False)
    end = story.ways.unknowing(story.group)
    story.ends(event, "expired")
    end()
    story.die()
    story.ways.resume(event.id)
    story.ends(event, "committed")


def test_the_database_cannot_be_asked_for_longer_than_checks_are_sent(story: Story):
    story.said = ["no database"] * (CHECKS_MAX + 2)
    story.ways.lose_decisions()
    event = story.order()
    story.ways.until(lambda: not story.said)
    story.ends(event, "committed")


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_a_plain_event_inside_a_transaction(story: Story, ends: str):
    event = story.order(ends=ends, transactional=False)
    marker = story.events.event(story.topic, "EC_A")
    story.events.publish(marker)
    story.ways.until(lambda: marker.id in story.got)
    assert (event.id in story.got) is (ends == "commits")


@pytest.mark.parametrize(("what", "arrives"), [("request", False), ("answer", True)])
def test_a_plain_event_that_times_out(story: Story, what: str, arrives: bool):
    event, marker = (story.events.event(story.topic, "EC_A") for _ in range(2))
    story.ways.lose(what, "send")
    with pytest.raises(HalfmoonError):
        story.events.publish(event)
    story.events.publish(marker)
    story.ways.until(lambda: marker.id in story.got)
    assert (event.id in story.got) is arrives


REFUSED: dict[str, dict[str, Any]] = {
    "topic with a slash": {"topic": "bad/topic"},
    "no topic": {"topic": ""},
    "long topic": {"topic": "t" * 128},
    "topic of brokers": {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"},
    "default topic": {"topic": "TBW102"},
    "retry topic": {"topic": "%RETRY%x"},
    "dead letters": {"topic": "%DLQ%x"},
    "several codes": {"code": "A||B"},
    "code with a space": {"code": "A B"},
    "no code": {"code": ""},
    "every code": {"code": "*"},
    "separator in a code": {"code": "A\x01"},
    "5 MiB": {"payload": "x" * 5 * 1024 * 1024},
    "4 MiB with its quotes": {"payload": "x" * (4 * 1024 * 1024 - 1)},
    "key with a space": {"key": "a b"},
    "separator in a key": {"key": "a\x02b"},
    "long key": {"key": "k" * 40_000},
    "separator in a header": {"headers": {"a": "x\x01y"}},
    "header of the protocol": {"headers": {"KEYS": "x"}},
    "header of a half message": {"headers": {"TRAN_MSG": "true"}},
    "header of a delay": {"headers": {"DELAY": "3"}},
    "large headers": {"headers": {f"a{number}": "x" * 1000 for number in range(40)}},
    "header without a name": {"headers": {"": "x"}},
    "half a character": {"headers": {"a": "\ud800"}},
    "half a character in a payload": {"payload": "\ud800"},
    "no payload": {"payload": None},
    "4 MiB": {"payload": "x" * (4 * 1024 * 1024 - 2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("transactional", [False, True])
def test_what_a_broker_refuses_a_bus_refuses_in_the_same_words(cluster: LocalCluster, transactional: bool):
    def said_by(events: Publisher) -> dict[str, str]:
        said = {}
        for topic in ("TP_REFUSED", "%RETRY%x", "%DLQ%x"):
            events.check(topic)(lambda event, context: None)
        for name, odd in REFUSED.items():
            given = {"topic": "TP_REFUSED", "code": "EC_A", "payload": {"n": 1}, **odd}
            try:
                with local_transaction():
                    events.publish(
                        given.pop("topic"), given.pop("code"), given.pop("payload"), transactional=transactional, **given
                    )
                said[name] = ""
            except Exception as exc:
                causes = exc, exc.__cause__, exc.__context__
                said[name] = " <- ".join(f"{type(each).__name__}: {each}" for each in causes if each is not None)
        return {name: re.sub(r"\b[0-9A-F]{32}\b", "ID", text) for name, text in said.items()}

    with Publisher("P_refused", cluster.nameserver, tries_max=0) as on_broker:
        wanted = said_by(on_broker)
    with Publisher("P_refused", transport=MemoryBus(), tries_max=0) as on_bus:
        assert said_by(on_bus) == wanted
    taken = {name for name, text in wanted.items() if not text}
    assert taken == {"no payload", "4 MiB", "retry topic", "dead letters"}
