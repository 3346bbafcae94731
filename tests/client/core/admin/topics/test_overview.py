"""Figures of topics: of many in one request, added up over brokers, and unknown where a broker does not report them."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.topics.overview import ONE_BY_ONE_MAX, TOPICS_AT_ONCE, topic_overview
from halfmoon.errors import ConnectFailed, PeerError
from halfmoon.model import MessageQueue
from halfmoon.results import TopicOverview
from halfmoon.wire.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    GroupList,
    TopicFigures,
    TopicFiguresTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    from_json,
    to_json,
)
from halfmoon.wire.headers.admin import ViewBrokerStatsData
from halfmoon.wire.headers.topic import GetTopicFigures, GetTopicStatsInfo, QueryTopicConsumeByWho
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import REFUSED, Reply, Scripted

NOT_SUPPORTED = Reply(3, remark="request type 31050 not supported")


def figures(*rows: TopicFigures, answered: int = 1) -> Reply:
    return Reply(body=to_json(TopicFiguresTable(list(rows), answered)))


def apache(script: Scripted) -> None:
    """Have the brokers answer as Apache's do: about one topic after the other."""
    script.on(GetTopicFigures, NOT_SUPPORTED)
    table = TopicStatsTable({MessageQueue("orders", "broker-a", 0): TopicOffset(min_offset=2, max_offset=12)})
    script.on(GetTopicStatsInfo, lambda seen: Reply(body=to_json(table)) if seen.address == "broker-a:1" else Reply(17))
    script.on(QueryTopicConsumeByWho, Reply(body=to_json(GroupList(["C_shop"]))))
    data = BrokerStatsData(stats_minute=BrokerStatsItem(60, 1.5, 1.0))
    script.on(ViewBrokerStatsData, Reply(body=to_json(data)))


def test_figures_of_all_brokers_are_added_up():
    script = Scripted()
    core = admin(script, namespace="ns")
    one = TopicFigures("ns%orders", 5, 1.0, 500, ["ns%C_b", "ns%C_a"])
    two = TopicFigures("ns%orders", 2, 0.5, 100, ["ns%C_a"])
    script.on(GetTopicFigures, lambda seen: figures(one if seen.address == "broker-a:1" else two, answered=2))

    found = script.run(topic_overview(core, ["orders", "gone"]))

    assert found == [TopicOverview("orders", 7, 1.5, 600, ["C_a", "C_b"]), TopicOverview("gone")]
    assert len(script.asked(GetTopicFigures)) == 2  # one for each broker


def test_the_number_of_requests_for_thousands_of_topics_is_bounded():
    script = Scripted()
    core = admin(script)
    names = [f"t{number}" for number in range(5000)]

    def answer(seen):
        asked = from_json(TopicList, seen.body).topic_list
        assert len(asked) <= TOPICS_AT_ONCE
        return figures(*(TopicFigures(name, 1, 0.0, 10, []) for name in asked[:700]), answered=min(700, len(asked)))

    script.on(GetTopicFigures, answer)

    found = script.run(topic_overview(core, names))

    assert [row.name for row in found] == names
    assert {row.messages for row in found} == {2}
    assert len(script.asked(GetTopicFigures)) == 2 * 8


def test_a_broker_of_apache_is_asked_one_by_one_and_reports_no_size():
    script = Scripted()
    core = admin(script)
    apache(script)

    assert script.run(topic_overview(core, ["orders"])) == [TopicOverview("orders", 10, 1.5, None, ["C_shop"])]


def test_nothing_stored_since_the_start_of_an_apache_broker_is_no_rate_that_is_unknown():
    script = Scripted()
    core = admin(script)
    apache(script)
    script.on(ViewBrokerStatsData, Reply(1, remark="The stats <TOPIC_PUT_NUMS> <orders> not exist"))

    assert script.run(topic_overview(core, ["orders"]))[0].in_per_second == 0.0


def test_topics_that_an_apache_broker_was_not_asked_about_are_unknown_and_the_broker_is_named():
    script = Scripted()
    core = admin(script)
    apache(script)
    failing: list[str] = []

    found = script.run(topic_overview(core, [f"t{number}" for number in range(ONE_BY_ONE_MAX + 1)], failing=failing))

    assert found[-2].messages == 10
    assert found[-1] == TopicOverview(f"t{ONE_BY_ONE_MAX}")
    assert failing == [f"{name}: reports topics one by one, and was asked about 200 of 201" for name in ("broker-a", "broker-b")]


def test_a_broker_that_does_not_answer_is_named_or_an_error():
    script = Scripted()
    core = admin(script)
    row = TopicFigures("orders", 5, 1.0, 500, [])
    script.on(GetTopicFigures, lambda seen: REFUSED if seen.address == "broker-b:1" else figures(row))
    failing: list[str] = []

    assert script.run(topic_overview(core, ["orders"], failing=failing))[0].messages == 5
    assert failing[0].startswith("broker-b: ")
    with pytest.raises(ConnectFailed):
        script.run(topic_overview(core, ["orders"]))


def test_a_broker_that_answers_no_topic_does_not_keep_us_asking():
    script = Scripted()
    core = admin(script)
    script.on(GetTopicFigures, figures(answered=0))

    with pytest.raises(PeerError, match="answered none of 1 topics"):
        script.run(topic_overview(core, ["orders"]))
