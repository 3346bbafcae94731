"""Dead letters and their replays: our operations against our brokers, in virtual time."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.admin import dead_letters as dead_letters_module
from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.dead_letters import PAGE_LOOKED_MAX, dead_letter, dead_letter_page, dead_letters
from halfmoon.client.core.admin.replay import replay_dead_letter
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import AdminSettings, settings_of
from halfmoon.errors import NoPermission, QueryNotFound, UsageError
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message
from halfmoon.testing.clients import SimProducer, SimPushConsumer, nameservers
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import PullMessage, ViewMessageById
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.ids import offset_msg_id, pack_host
from halfmoon.wire.properties import encode
from halfmoon.wire.record import encode_record
from tests.client.queue_of import Queues, pulled
from tests.client.scripted import Reply, Scripted, route, routes
from tests.store.driving import use_offsets_up

TIMES_MAX = 3


class House:
    """A cluster with a topic, a group whose listener fails until ``works``, and an administration client."""

    def __init__(self, *, brokers: int = 1, namespace: str = "", seed: int = 1, **consumer):
        self.cluster = Cluster(seed, brokers=brokers, broker={"delay_levels": "1s 1s 1s 1s"})
        self.names = {"namespace": namespace} if namespace else {}
        wire = f"{namespace}%orders" if namespace else "orders"
        for i in range(brokers):
            self.cluster.create_topic(wire, queues=1, broker=i)
        self.cluster.run(ms=300)
        self.producer = SimProducer(self.cluster, **self.names)
        self.works, self.got, self.level = False, [], -1
        self.consumer = SimPushConsumer(
            self.cluster, "orders", self.listen, group="C", consume_from=ConsumeFrom.FIRST_OFFSET, reconsume_max=TIMES_MAX,
            **self.names, **consumer,
        )  # fmt: skip
        settings = settings_of(AdminSettings, {"nameserver": nameservers(self.cluster), **self.names})
        self.admin = AdminCore(Instance(settings, "admin", Random(1)))

    def listen(self, messages, context):
        self.got += messages
        context.delay_level, context.reason = self.level, f"no {messages[0].keys[0] if messages[0].keys else 'key'}"
        return ConsumeStatus.CONSUME_SUCCESS if self.works else ConsumeStatus.RECONSUME_LATER

    def send(self, body, **more):
        task = self.producer.send(Message("orders", body, **more))
        self.cluster.run(ms=1500)
        return task.result()

    def do(self, operation):
        """Run an operation of the administration client."""
        task = self.cluster.client.start(operation, "admin")
        self.cluster.timeline.run_until(lambda: task.done, 60_000)
        return task.result()

    def letters(self, group="C", **choice):
        return self.do(dead_letters(self.admin, group, **choice))

    def replay(self, letter, **more):
        result = self.do(replay_dead_letter(self.admin, letter, **more))
        self.cluster.run(ms=1500)
        return result


def test_dead_letters_of_all_brokers_are_merged_the_oldest_first():
    house = House(brokers=2)
    for number in range(6):
        house.send(b"%d" % number, keys=[f"k{number}"])

    found = house.letters()

    assert [letter.message.body for letter in found] == [b"%d" % number for number in range(6)]
    assert {letter.message.broker_name for letter in found} == {"broker-a", "broker-b"}
    assert {letter.address for letter in found} == {broker.address for broker in house.cluster.brokers}
    assert [(letter.topic, letter.group, letter.tries, letter.reason) for letter in found[:1]] == [("orders", "C", 1, "no k0")]
    assert [letter.message.body for letter in house.letters(count_max=2)] == [b"0", b"1"]
    assert len(house.letters(group=None)) == 6
    assert house.letters(group="nobody") == []


@pytest.mark.parametrize(
    ("choice", "bodies"),
    [
        ({"key": "k1"}, [b"1"]),
        ({"reason": "NO K2"}, [b"2"]),
        ({"expression": "A || C"}, [b"0", b"2"]),
        ({"expression": "n BETWEEN 1 AND 5", "expression_type": "SQL92"}, [b"1", b"2"]),
        ({"begin_ms": 1}, [b"0", b"1", b"2"]),
        ({"key": "k1", "expression": "A"}, []),
    ],
)
def test_dead_letters_are_chosen_by_all_that_is_given(choice, bodies):
    house = House()
    for number, tag in enumerate("ABC"):
        house.send(b"%d" % number, keys=[f"k{number}"], tag=tag, properties={"n": str(number)})

    assert [letter.message.body for letter in house.letters(**choice)] == bodies


def test_times_are_from_the_first_on_and_before_the_last():
    house = House()
    for number in range(4):
        house.send(b"%d" % number)
    times = [letter.dead_lettered_ms for letter in house.letters()]

    found = house.letters(begin_ms=times[1], end_ms=times[3])

    assert [letter.message.body for letter in found] == [b"1", b"2"]


def test_none_of_several_dead_letters_of_one_millisecond_is_missed_where_the_broker_answers_any_of_them():
    script = Scripted()
    broker = Queues(script, retry=False)
    broker.fill(3, topic="%DLQ%C")  # all are stored at 2 ms
    broker.hold_ms = 1
    script.on(GetRouteinfoByTopic, routes(**{"%DLQ%C": route(1)}))
    script.on(SearchOffsetByTimestamp, lambda seen: Reply(header=OffsetReply(offset=int(seen.request.timestamp == 2))))
    admin = AdminCore(Instance(settings_of(AdminSettings, {"nameserver": "ns:1"}), "admin", Random(1)))

    result = script.run(dead_letters(admin, "C", begin_ms=2))

    assert [letter.message.queue_offset for letter in result] == [0, 1, 2]


@pytest.mark.parametrize(
    "choice", [{"expression": "||"}, {"expression": "a >", "expression_type": "SQL92"}, {"expression_type": "X"}]
)
def test_an_expression_that_does_not_parse_is_refused_before_anybody_is_asked(choice):
    with pytest.raises(UsageError):
        House().letters(**choice)


def test_one_is_found_by_the_brokers_id_and_by_the_senders():
    house = House()
    sent = house.send(b"x")
    [letter] = house.letters()

    by_broker = house.do(dead_letter(house.admin, letter.offset_msg_id))
    by_sender = house.do(dead_letter(house.admin, sent.msg_id, "C"))

    assert by_broker.offset_msg_id == by_sender.offset_msg_id == letter.offset_msg_id
    assert (by_broker.message.broker_name, by_broker.group) == ("broker-a", "C")
    for name, group in ((sent.offset_msg_id, None), ("nothing", None), ("nothing", "C"), (sent.msg_id, "D")):
        with pytest.raises(QueryNotFound):
            house.do(dead_letter(house.admin, name, group))


def test_a_namespace_hides_itself():
    house = House(namespace="shop")
    house.send(b"x", keys=["k"])

    [letter] = house.letters()
    house.works = True
    first, second = house.replay(letter), house.replay(letter)

    assert (letter.group, letter.topic, letter.message.topic) == ("C", "orders", "%DLQ%C")
    assert (first.already, second.already) == (False, True)
    assert [(one.body, one.topic, one.reconsume_times) for one in house.got] == [(b"x", "orders", 0), (b"x", "orders", 0)]
    assert len(house.letters(group=None)) == 1


def test_dead_letters_that_may_not_be_read_are_an_error_and_not_an_empty_list():
    house = House()
    house.send(b"x")
    (broker,) = house.cluster.brokers
    broker.core.topics.get("%DLQ%C").perm = 2
    broker.core.topics.epoch += 1

    with pytest.raises(NoPermission):
        house.letters()


def test_dead_letters_that_would_fill_the_memory_are_refused_with_a_word(monkeypatch):
    house = House()
    for _ in range(3):
        house.send(b"x" * 1000)
    monkeypatch.setattr(dead_letters_module, "BYTES_MAX", 2500)

    with pytest.raises(UsageError, match="ask for fewer"):
        house.letters()
    assert len(house.letters(begin_ms=house.cluster.timeline.now - 3_200)) == 2


# ---------------------------------------------------------------- page by page


class Stored(NamedTuple):
    """A dead letter as a broker stores it, or what is left of one that does not decode."""

    store_ms: int
    size: int = 10
    reason: str = ""
    damaged: bool = False


class Shelves:
    """Brokers with the dead letters of group C, by queue; they answer pulls with at most so many messages and bytes."""

    def __init__(self, queues, *, count_max=32, bytes_max=1 << 20, deleted=0):
        self.script, self.queues = Scripted(), queues
        self.count_max, self.bytes_max, self.deleted = count_max, bytes_max, deleted
        brokers = {}
        for broker, queue_id in queues:
            brokers[broker] = max(brokers.get(broker, 0), queue_id + 1)
        self.script.on(GetRouteinfoByTopic, routes(**{"%DLQ%C": route(brokers)}))
        self.script.on(GetMinOffset, lambda seen: Reply(header=OffsetReply(offset=min(deleted, len(self.of(seen))))))
        self.script.on(GetMaxOffset, lambda seen: Reply(header=OffsetReply(offset=len(self.of(seen)))))
        self.script.on(SearchOffsetByTimestamp, self.search)
        self.script.on(PullMessage, self.pull)
        self.admin = AdminCore(Instance(settings_of(AdminSettings, {"nameserver": "ns:1"}), "admin", Random(1)))

    def of(self, seen):
        return self.queues.get((seen.address.partition(":")[0], seen.request.queue_id), [])

    def search(self, seen):
        times = [letter.store_ms for letter in self.of(seen)]
        return Reply(header=OffsetReply(offset=bisect_left(times, seen.request.timestamp)))

    def pull(self, seen):
        letters, offset = self.of(seen), seen.request.queue_offset
        if offset < self.deleted:
            return pulled(21, self.deleted, b"", len(letters))
        found, room = b"", self.bytes_max
        end = offset
        while end < len(letters) and end < offset + min(seen.request.max_msg_nums, self.count_max):
            each = self.record(seen, end, letters[end])
            if found and len(each) > room:
                break
            found, room, end = found + each, room - len(each), end + 1
        return pulled(0 if found else 19, end, found, len(letters))

    def record(self, seen, offset, letter):
        properties = {"UNIQ_KEY": f"ID{offset}", **({"RECONSUME_REASON": letter.reason} if letter.reason else {})}
        data = encode_record(
            topic="%DLQ%C", queue_id=seen.request.queue_id, queue_offset=offset, physical_offset=offset * 100,
            body=b"x" * letter.size, properties=encode(properties), born_ms=1, born_host=pack_host("10.0.0.1:5"),
            store_ms=letter.store_ms, store_host=pack_host("10.0.0.2:10911"),
        )  # fmt: skip
        return bytes(len(data)) if letter.damaged else data

    def page(self, **choice):
        return self.script.run(dead_letter_page(self.admin, "C", **choice))

    def pages(self, **choice):
        found, after = [], ""
        while True:
            page = self.page(after=after, **choice)
            found.append(page)
            if page.next is None:
                return found
            after = page.next


def place(letter):
    return letter.message.broker_name, letter.message.queue_id, letter.message.queue_offset


LETTERS = st.lists(
    st.builds(
        Stored,
        st.integers(1, 30),
        st.sampled_from([0, 10, 3000]),
        st.sampled_from(["", "no", "slow"]),
        damaged=st.sampled_from([False] * 9 + [True]),
    ),
    max_size=80,
)
QUEUES = st.dictionaries(st.sampled_from([("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]), LETTERS, max_size=3)


@given(
    QUEUES, st.booleans(), st.integers(1, 40), st.sampled_from([1, 5000, 1 << 20]), st.sampled_from([1, 8, 32]), st.integers(0, 5),
    st.sampled_from([{}, {"reason": "NO"}, {"begin_ms": 12}, {"end_ms": 20}, {"begin_ms": 5, "end_ms": 15, "reason": "slow"}]),
)  # fmt: skip
def test_all_pages_together_are_all_dead_letters_in_order_and_none_is_twice(
    queues, newest, count, room, pulled_max, deleted, choice
):
    queues = {key: sorted(letters, key=lambda letter: letter.store_ms) for key, letters in queues.items()}
    shelves = Shelves(queues, count_max=pulled_max, bytes_max=7000, deleted=deleted)

    pages = shelves.pages(newest_first=newest, count_max=count, bytes_max=room, **choice)

    found = [letter for page in pages for letter in page.letters]
    wanted = {
        (broker, queue_id, offset): letter.store_ms
        for (broker, queue_id), letters in queues.items()
        for offset, letter in enumerate(letters)
        if offset >= deleted and not letter.damaged and choice.get("begin_ms", 0) <= letter.store_ms < choice.get("end_ms", 99)
        and choice.get("reason", "").casefold() in letter.reason
    }  # fmt: skip
    assert sorted(map(place, found)) == sorted(wanted)
    times = [letter.dead_lettered_ms for letter in found]
    assert times == sorted(times, reverse=newest)
    assert all(len(page.letters) <= count for page in pages)
    assert all(sum(len(letter.message.body) for letter in page.letters[1:]) <= room for page in pages)


def test_a_page_of_large_dead_letters_is_short_and_says_so_and_holds_few_of_them():
    shelves = Shelves({("broker-a", 0): [Stored(at, 4 << 20) for at in range(1, 12)]}, bytes_max=262_144)

    pages = shelves.pages()

    assert [len(page.letters) for page in pages] == [4, 4, 3]
    assert ["large" in page.short for page in pages] == [True, True, False]
    assert len(shelves.script.asked(PullMessage)) < 3 * len(shelves.queues["broker-a", 0])


def test_letters_that_a_broker_sends_few_at_a_time_are_read_once():
    shelves = Shelves({("broker-a", 0): [Stored(at) for at in range(1, 321)]}, count_max=8)

    assert len(shelves.page(count_max=320).letters) == 320
    assert len(shelves.script.asked(PullMessage)) == 40


def test_a_page_looks_at_so_many_for_those_that_match_and_says_so():
    letters = [Stored(at, reason="rare" if at == 1 else "") for at in range(1, 10_101)]
    shelves = Shelves({("broker-a", 0): letters})

    first, second = shelves.pages(reason="rare")

    assert (first.letters, len(second.letters), second.short) == ([], 1, "")
    assert "10,016 dead letters were looked at" in first.short


@pytest.mark.parametrize("newest", [True, False])
def test_a_record_that_does_not_decode_hides_no_other(newest):
    shelves = Shelves({("broker-a", 0): [Stored(at, damaged=at in (1, 7, 8)) for at in range(1, 11)]})

    [page] = shelves.pages(newest_first=newest)

    assert sorted(letter.message.queue_offset for letter in page.letters) == [1, 2, 3, 4, 5, 8, 9]


def test_what_dies_between_two_pages_is_on_none_of_them_when_the_newest_come_first():
    shelves = Shelves({("broker-a", 0): [Stored(at) for at in range(1, 5)]})
    first = shelves.page(count_max=2)
    shelves.queues["broker-a", 0].append(Stored(9))

    second = shelves.page(count_max=2, after=first.next)

    assert [letter.dead_lettered_ms for letter in [*first.letters, *second.letters]] == [4, 3, 2, 1]
    assert second.next is None


@pytest.mark.parametrize("after", ["x", "e30", "eyJhIjpbXX0", "\u2603", "eyIwQGJyb2tlci1hIjpbLTFdfQ" * 400])
def test_a_cursor_of_nobody_is_refused(after):
    with pytest.raises(UsageError):
        Shelves({}).page(after=after)


def test_a_page_of_a_group_without_dead_letters_is_empty():
    script = Scripted()
    script.on(GetRouteinfoByTopic, routes())
    admin = AdminCore(Instance(settings_of(AdminSettings, {"nameserver": "ns:1"}), "admin", Random(1)))

    page = script.run(dead_letter_page(admin, "C"))

    assert (page.letters, page.next, page.short) == ([], None, "")


def test_with_a_group_no_other_address_is_asked_than_its_brokers_have():
    shelves = Shelves({("broker-a", 0): []})
    elsewhere = offset_msg_id(pack_host("192.0.2.1:80"), 0)

    with pytest.raises(QueryNotFound):
        shelves.script.run(dead_letter(shelves.admin, elsewhere, "C"))
    assert shelves.script.asked(ViewMessageById) == []
    assert {seen.address for seen in shelves.script.seen} == {"ns:1", "broker-a:1"}


def test_with_a_group_its_dead_letter_is_found_by_the_brokers_id_and_no_other_groups_is():
    house = House()
    house.send(b"x")
    [letter] = house.letters()

    assert house.do(dead_letter(house.admin, letter.offset_msg_id, "C")).offset_msg_id == letter.offset_msg_id
    with pytest.raises(QueryNotFound):
        house.do(dead_letter(house.admin, letter.offset_msg_id, "D"))


def test_offsets_that_a_power_loss_used_up_are_stepped_over_however_many_they_are():
    cluster = Cluster(1)
    cluster.run(1_000)
    cluster.create_topic("%DLQ%C", queues=1)
    for number in range(5):
        cluster.send("%DLQ%C", b"%d" % number)
        cluster.run(100)
        if number == 2:
            use_offsets_up(cluster.brokers[0].core.store, "%DLQ%C", 0, 3 * PAGE_LOOKED_MAX)
    core = AdminCore(Instance(settings_of(AdminSettings, {"nameserver": cluster.nameservers[0].address}), "admin", Random(1)))

    for newest_first in (True, False):
        page = cluster.ask(dead_letter_page(core, "C", newest_first=newest_first))
        bodies = [letter.message.body for letter in page.letters]
        assert (sorted(bodies), page.short, page.next) == ([b"0", b"1", b"2", b"3", b"4"], "", None)
