"""Dead letters and their replays: our operations against our brokers, in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.admin import dead_letters as dead_letters_module
from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.dead_letters import dead_letter, dead_letters
from halfmoon.client.core.admin.replay import replay_dead_letter
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import AdminSettings, settings_of
from halfmoon.errors import NoPermission, QueryNotFound, UsageError
from halfmoon.model import ConsumeFrom, ConsumeStatus, Message
from halfmoon.wire.headers.offset import OffsetReply, SearchOffsetByTimestamp
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from simulation.clients import SimProducer, SimPushConsumer, nameservers
from simulation.cluster import Cluster
from tests.client.queue_of import Queues
from tests.client.scripted import Reply, Scripted, route, routes

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
        self.cluster.world.run_until(lambda: task.done, 60_000)
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
    assert len(house.letters(begin_ms=house.cluster.world.now - 3_200)) == 2
