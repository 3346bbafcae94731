"""A client keeps its route while a name server that has just started knows less of it, and no longer."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.missing_brokers import ANSWER_MS, KEPT_MS, SILENT_MS
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.errors import ConnectFailed, HalfmoonError, NoRoute
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from tests.client.scripted import SILENT, Reply, Scripted, Seen, route, routes

GONE, REFUSED = Reply(17), ConnectFailed("refused", "")
BOTH = {"broker-a": 4, "broker-b": 4}
PERIOD_MS = 30_000


class Scene:
    """A client that knows topic ``t`` on two brokers, and what its name server and the brokers say from now on."""

    def __init__(self) -> None:
        self.script = Scripted()
        self.changes: list[str] = []
        self.table = RouteTable(NameServers(["ns:1"], Random(1)), Random(1), self.changes.append)
        self.says: dict[str, Reply | Exception] = {}
        self.script.on(GetTopicStatsInfo, self._broker)
        self.named(t=route(BOTH))
        self.script.run(self.table.publish_info("t"))
        self.changes.clear()

    def _broker(self, seen: Seen) -> Reply | Exception:
        return self.says.get(seen.address, Reply())

    def named(self, **topics: TopicRouteData) -> None:
        """From now on the name server knows these topics."""
        self.script.on(GetRouteinfoByTopic, routes(**topics))

    def queues(self) -> dict[str, int]:
        """The queues that messages are sent to, by broker, after one more look; nothing: no route."""
        try:
            self.script.run(self.table.refresh("t"))
            return self.script.run(self.table.publish_info("t")).write_counts
        except NoRoute:
            return {}

    def after(self, ms: int) -> dict[str, int]:
        """Look each 30 s for so long, and return what is known then."""
        for _ in range(ms // PERIOD_MS):
            self.script.run_for(PERIOD_MS)
            self.queues()
        return self.queues()


@pytest.mark.parametrize("names", [{}, {"t": route({"broker-a": 4})}, {"t": route({"broker-b": 4})}])
def test_a_key_keeps_its_queue_while_a_fresh_name_server_knows_less(names: dict[str, TopicRouteData]) -> None:
    scene = Scene()
    scene.named(**names)
    assert scene.queues() == BOTH
    scene.named(t=route(BOTH))
    assert scene.queues() == BOTH
    assert scene.changes == []


@pytest.mark.parametrize("names", [{}, {"t": route({"broker-a": 4})}])
def test_what_no_name_server_names_for_long_is_given_up_though_it_answers(names: dict[str, TopicRouteData]) -> None:
    scene = Scene()
    scene.named(**names)
    assert scene.queues() == scene.after(KEPT_MS - PERIOD_MS) == BOTH
    assert scene.after(PERIOD_MS) == ({"broker-a": 4} if names else {})
    assert scene.changes == ["t"]


def test_the_time_begins_anew_once_a_broker_was_named_again() -> None:
    scene = Scene()
    for _ in range(3):
        scene.named()
        assert scene.queues() == scene.after(KEPT_MS - PERIOD_MS) == BOTH
        scene.named(t=route(BOTH))
        assert scene.queues() == BOTH


def test_a_topic_that_the_brokers_say_is_deleted_is_forgotten_at_once() -> None:
    scene = Scene()
    scene.says = {"broker-a:1": GONE, "broker-b:1": GONE}
    scene.named()
    assert scene.queues() == {}
    assert scene.table.known("t") is None
    assert scene.changes == ["t"]


def test_a_topic_deleted_on_one_broker_is_left_on_the_other() -> None:
    scene = Scene()
    scene.says = {"broker-b:1": GONE}
    scene.named(t=route({"broker-a": 4}))
    assert scene.queues() == {"broker-a": 4}


def test_a_broker_that_is_gone_is_given_up_at_once_where_another_is_named() -> None:
    scene = Scene()
    scene.says = {"broker-b:1": REFUSED}
    scene.named(t=route({"broker-a": 4}))
    assert scene.queues() == {"broker-a": 4}


def test_a_broker_that_left_is_told_as_absent_to_who_knew_it_and_one_that_answers_is_not() -> None:
    scene = Scene()
    answer = route({"broker-a": 4})
    answer.absent_brokers = ["broker-b"]
    scene.named(t=answer)
    assert scene.queues() == BOTH
    assert scene.table.known("t").absent == ()
    scene.says = {"broker-b:1": REFUSED}

    assert scene.queues() == {"broker-a": 4}
    assert scene.table.known("t").absent == ("broker-b",)


def test_a_broker_that_restarts_keeps_its_route_for_a_while_where_nothing_else_is_known() -> None:
    scene = Scene()
    scene.says = {"broker-a:1": REFUSED, "broker-b:1": REFUSED}
    scene.named()
    assert scene.queues() == scene.after(KEPT_MS - PERIOD_MS) == BOTH
    assert scene.after(PERIOD_MS) == {}


def test_a_broker_that_may_not_tell_us_lives() -> None:
    scene = Scene()
    scene.says = {"broker-b:1": Reply(16)}
    scene.named(t=route({"broker-a": 4}))
    assert scene.queues() == BOTH


def test_what_listens_there_now_and_is_no_broker_is_not_kept() -> None:
    scene = Scene()
    scene.says = {"broker-b:1": Reply(3)}
    scene.named(t=route({"broker-a": 4}))
    assert scene.queues() == {"broker-a": 4}


def test_a_master_that_registers_after_its_slave_stays_the_one_to_send_to() -> None:
    scene = Scene()
    slave_first = route(BOTH, slaves_only=("broker-b",))
    scene.named(t=slave_first)
    assert scene.queues() == BOTH
    assert scene.table.brokers["broker-b"] == {0: "broker-b:1", 1: "broker-b:2"}


@pytest.mark.parametrize("moved", [BrokerData("c", "broker-b", {0: "elsewhere:1"}), BrokerData("c", "renamed", {0: "broker-b:1"})])
def test_a_broker_that_is_named_otherwise_is_not_missing(moved: BrokerData) -> None:
    scene = Scene()
    asked = len(scene.script.asked(GetTopicStatsInfo))
    data = route({"broker-a": 4})
    data.broker_datas.append(moved)
    data.queue_datas.append(QueueData(moved.broker_name, 2, 2, 6))
    scene.named(t=data)
    assert scene.queues() == {"broker-a": 4, moved.broker_name: 2}
    assert len(scene.script.asked(GetTopicStatsInfo)) == asked


def test_fewer_queues_of_a_broker_that_is_named_are_believed() -> None:
    scene = Scene()
    scene.named(t=route({"broker-a": 4, "broker-b": 1}))
    assert scene.queues() == {"broker-a": 4, "broker-b": 1}


def test_a_dead_broker_costs_one_wait_however_many_topics_miss_it() -> None:
    scene = Scene()
    topics = {f"t{number}": route(BOTH) for number in range(200)}
    scene.named(**topics)
    for topic in topics:
        scene.script.run(scene.table.publish_info(topic))
    scene.says = {"broker-b:1": SILENT}
    scene.named(**{topic: route({"broker-a": 4}) for topic in topics})
    begin = scene.script.now
    scene.script.run(scene.table.refresh_all(TroubleLog()))
    assert scene.script.now - begin < ANSWER_MS + SILENT_MS
    assert [seen.address for seen in scene.script.asked(GetTopicStatsInfo)].count("broker-b:1") == 1
    assert {name for topic in topics for name in _known(scene, topic)} == {"broker-a"}


def _known(scene: Scene, topic: str) -> set[str]:
    known = scene.table.known(topic)
    return set(known.brokers) if known is not None else set()


def test_nothing_is_remembered_of_topics_and_brokers_that_are_given_up() -> None:
    scene = Scene()
    scene.says = {"broker-b:1": REFUSED}
    scene.named()
    assert scene.after(KEPT_MS + PERIOD_MS) == {}
    assert scene.table._missing._since == {}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_restarts_a_route_is_whole_while_its_brokers_live_and_true_in_the_end(seed: int) -> None:
    """A walk: the name server restarts and learns brokers one by one; topics are deleted and brokers die, each for good."""
    chance, scene = Random(seed), Scene()
    names = {f"broker-{letter}": chance.randint(1, 8) for letter in "abcd"}
    scene.named(t=route(names))
    scene.queues()
    living = dict(names)
    for _ in range(chance.randint(2, 8)):
        if len(living) > 1 and chance.random() < 0.2:
            gone = chance.choice(sorted(living))
            del living[gone]
            scene.says[f"{gone}:1"] = chance.choice([GONE, REFUSED])
            scene.named(t=route(living))
            assert scene.queues() == living
        known: dict[str, int] = {}
        for name in chance.sample(sorted(living), len(living)):
            scene.named(**({"t": route(known)} if known else {}))
            scene.script.run_for(chance.randint(0, KEPT_MS // 4 - PERIOD_MS // 2))
            assert scene.queues() == living
            known[name] = living[name]
        scene.named(t=route(living))
        assert scene.queues() == living
    assert {queue.broker_name for queue in scene.script.run(scene.table.read_queues("t"))} == set(living)
    assert MessageQueue("t", sorted(living)[0], 0) in scene.script.run(scene.table.publish_info("t")).queues


def test_a_name_server_that_does_not_answer_changes_nothing() -> None:
    scene = Scene()
    scene.script.on(GetRouteinfoByTopic, SILENT)
    with pytest.raises(HalfmoonError):
        scene.script.run(scene.table.refresh("t"))
    assert scene.script.run(scene.table.publish_info("t")).write_counts == BOTH
