"""Topics in the console: the list by pages, one with its queues and readers, and what is created, changed and deleted."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon import AsyncProducer, AsyncPullConsumer, Message
from halfmoon.console.page import PAGE_SIZE, Asked
from halfmoon.console.pages import topics as pages
from halfmoon.errors import RequestTimeout
from halfmoon.results import TopicOverview
from halfmoon.wire.bodies import ClusterInfo, QueueData, TopicRouteData
from tests.topics import new_topic

HOSTILE = [
    "<script>alert(1)</script>",
    "a\u202eb\x1b[31m\x00",
    "'\"><img src=x onerror=alert(1)>",
    "../../etc/passwd",
    "a b",
    "%00",
    "ä",
]


async def send(site, topic, count=1, **more):
    async with AsyncProducer(group="P_console", nameserver=site.nameserver) as producer:
        return [await producer.send(Message(topic, b"paid", **more)) for _ in range(count)]


@asynccontextmanager
async def reading(site, group, topic, count):
    """A consumer of a group that is online and has consumed a number of messages of a topic."""
    async with AsyncPullConsumer(group=group, nameserver=site.nameserver) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, 0)
        while count > 0:
            count -= len(await consumer.poll(1000))
        await consumer.commit()
        yield consumer


# ---------------------------------------------------------------- the list


class ManyTopics:
    """An administration client of a cluster of very many topics, that counts what it is asked."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.asked = names, {"topics": 0, "topic_route": 0}

    async def topics(self) -> list[str]:
        self.asked["topics"] += 1
        return list(self.names)

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({"broker-a": None}, {"c": ["broker-a"]})

    async def topic_route(self, name: str) -> TopicRouteData:
        self.asked["topic_route"] += 1
        await asyncio.sleep(0)
        return TopicRouteData(queue_datas=[QueueData("broker-a", 4, 4, 6)])

    async def topic_overview(self, names: list[str], *, failing: list[str]) -> list[TopicOverview]:
        return [TopicOverview(name, messages=7) for name in names]


def ask(admin: Any, **values: str) -> Any:
    return pages.topics(Asked(admin, values, "admin", SimpleNamespace()))


async def test_a_hundred_thousand_topics_are_a_hundred_a_page_and_only_these_are_asked_for():
    admin = ManyTopics([f"orders-{number:06}" for number in range(100_000)])

    first = await ask(admin)
    second = await ask(admin, after=first["next"])
    last = await ask(admin, after="orders-099899")

    assert [row["name"] for row in second["topics"]] == [f"orders-{number:06}" for number in range(100, 200)]
    assert (first["found"], first["next"], second["next"]) == (100_000, "orders-000099", "orders-000199")
    assert (len(last["topics"]), last["next"]) == (100, None)
    assert admin.asked == {"topics": 3, "topic_route": 3 * PAGE_SIZE}
    assert first["topics"][0] == {
        "name": "orders-000000", "messages": 7, "in_per_second": None, "size_bytes": None, "groups": None, "brokers": 1,
        "read_queues": 4, "write_queues": 4, "permission": "read and write",
    }  # fmt: skip


async def test_a_search_is_for_a_part_of_the_name_in_any_case_and_finds_system_topics_only_if_told():
    admin = ManyTopics(["%RETRY%C_order", "Orders", "RMQ_SYS_TRANS_HALF_TOPIC", "broker-a", "c", "payments"])

    assert [row["name"] for row in (await ask(admin, q="order"))["topics"]] == ["Orders"]
    assert [row["name"] for row in (await ask(admin, q="order", all="1"))["topics"]] == ["%RETRY%C_order", "Orders"]
    assert [row["name"] for row in (await ask(admin))["topics"]] == ["Orders", "payments"]
    assert (await ask(admin, all="1"))["found"] == 6
    assert (await ask(admin, q="<script>"))["topics"] == []


async def test_the_list_shows_topics_with_queues_and_permission_as_html_and_as_json(site):
    topic = new_topic(site.nameserver, queue_count=3)

    html, facts = await site.text("/topics", q=topic), await site.json("/topics", q=topic)

    assert f'<a href="/topic?name={topic}" title="{topic}">{topic}</a>' in html
    [row] = [row for row in facts["topics"] if row["name"] == topic]
    assert (row["messages"], row["brokers"], row["read_queues"], row["write_queues"]) == (0, 1, 3, 3)
    assert row["permission"] == "read and write"


# ---------------------------------------------------------------- one


async def test_a_topic_shows_its_queues_with_growth_and_who_reads_it(site):
    topic = new_topic(site.nameserver, queue_count=2)
    await send(site, topic, 5)
    async with reading(site, "C_reads", topic, 5):
        facts = await site.json("/topic", name=topic)
    html = await site.text("/topic", name=topic)

    assert sum(queue["max_offset"] for queue in facts["queues"]) == sum(queue["per_minute"] for queue in facts["queues"]) == 5
    assert (facts["messages"], facts["queue_count"], facts["not_reported"]) == (5, 2, [])
    assert facts["groups"] == [{"group": "C_reads", "lag": 0, "online": 1}]
    assert [broker["write_queue_nums"] for broker in facts["brokers"]] == [2]
    assert "/group?name=C_reads" in html
    assert f"/messages?topic={topic}&amp;broker=broker-a&amp;queue=1" in html
    question = await site.text("/topic/delete", name=topic)
    assert f"Topic {topic} is deleted with 5 messages, also those that groups have not consumed yet." in question
    assert "Groups that read it: C_reads (0 behind)." in question


async def test_a_group_that_went_offline_is_behind_and_has_nobody_online(site):
    topic = new_topic(site.nameserver)
    await send(site, topic)
    async with reading(site, "C_sleeps", topic, 1):
        pass
    await send(site, topic, 3)

    assert (await site.json("/topic", name=topic))["groups"] == [{"group": "C_sleeps", "lag": 3, "online": 0}]


async def test_a_topic_of_many_queues_is_shown_a_hundred_queues_at_a_time(site):
    topic = new_topic(site.nameserver, queue_count=230)

    first = await site.json("/topic", name=topic)
    second = await site.json("/topic", name=topic, after=first["next"])
    last = await site.json("/topic", name=topic, after=second["next"])

    assert (len(first["queues"]), first["queue_count"]) == (100, 230)
    assert ([queue["queue_id"] for queue in last["queues"]], last["next"]) == (list(range(200, 230)), None)
    assert "broker-a%20000099%22%5D&amp;name=" in await site.text("/topic", name=topic)


async def test_what_no_broker_says_is_said(site):
    topic = new_topic(site.nameserver)

    async def silent(*_: object) -> Any:
        raise RequestTimeout("broker-a", 3000)

    site.answers(topic_stats=silent, groups=silent)
    facts = await site.json("/topic", name=topic)

    assert [text.partition(":")[0] for text in facts["not_reported"]] == ["offsets of queues", "which groups read it"]
    assert "Not reported: offsets of queues" in await site.text("/topic", name=topic)


# ---------------------------------------------------------------- changes


async def test_a_topic_is_created_changed_and_deleted_and_each_is_said(site):
    name = f"made_{Random().randrange(10**12)}"
    answer = await site.post("/topics/create", name=name, queues="4", perm="6")
    assert site.said(answer) == f"Topic {name} has 4 queues on each broker."
    assert (await site.json("/topics", q=name))["found"] == 1

    answer = await site.post("/topic/change", name=name, broker="", read_queues="4", write_queues="2", perm="4")
    assert site.said(answer) == f"Topic {name} has 4 queues to read and 2 to write on broker-a: read only."
    assert [
        (each["read_queue_nums"], each["write_queue_nums"], each["perm"])
        for each in (await site.json("/topic", name=name))["brokers"]
    ] == [(4, 2, 4)]

    answer = await site.post("/topic/delete", name=name, typed=name, reason="unused")
    assert site.said(answer) == f"Topic {name} and its messages are deleted."
    assert (await site.json("/topics", q=name))["found"] == 0
    assert (await site.get("/topic", name=name)).status_code != 200


async def test_a_topic_is_not_deleted_unless_its_name_is_typed_exactly(site):
    topic = new_topic(site.nameserver)

    for typed in ("", topic[:-1], topic.upper(), f" {topic}"):
        answer = await site.post("/topic/delete", name=topic, typed=typed, reason="unused")
        assert site.said(answer) == f"to confirm, type the name exactly: {topic}"
    assert (await site.json("/topic", name=topic))["name"] == topic


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/topics/create", {"name": ""}, "name is missing"),
        ("/topics/create", {"name": "a b"}, "contains illegal characters"),
        ("/topics/create", {"name": "x" * 128}, "longer than topic max length 127"),
        ("/topics/create", {"name": "x" * 1_000_000}, "name is 1,000,000 characters long"),
        ("/topics/create", {"name": "new", "queues": "0"}, "queues must be from 1 to 65,535"),
        ("/topics/create", {"name": "new", "queues": "many"}, "queues must be a whole number"),
        ("/topics/create", {"name": "new", "perm": "9"}, "perm must be one of"),
        ("/topics/create", {"name": "SCHEDULE_TOPIC_XXXX"}, "belongs to RocketMQ itself"),
        (
            "/topic/delete",
            {"name": "RMQ_SYS_TRANS_HALF_TOPIC", "reason": "no"},
            "belongs to RocketMQ itself",
        ),
        ("/topic/change", {"name": "nix", "read_queues": "1", "write_queues": "1", "perm": "6"}, "there is no topic nix"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(site, path, fields, said):
    answer = await site.post(path, **fields)

    assert answer.status_code >= 400
    assert said in site.said(answer)
    assert len(answer.content) < 5_000


async def test_a_topic_that_exists_is_not_created_and_keeps_its_queues(site):
    topic = new_topic(site.nameserver, queue_count=3)

    answer = await site.post("/topics/create", name=topic, queues="9", perm="6")

    assert "already" in site.said(answer)
    assert [broker["read_queue_nums"] for broker in (await site.json("/topic", name=topic))["brokers"]] == [3]


async def test_a_broker_that_does_not_hold_the_topic_is_not_given_it(site):
    topic = new_topic(site.nameserver)

    answer = await site.post("/topic/change", name=topic, broker="broker-z", read_queues="1", write_queues="1", perm="6")

    assert "no master is known of broker-z: nothing was changed" in site.said(answer)


async def test_viewers_see_no_form_and_may_change_nothing(site):
    topic = new_topic(site.nameserver)
    site.log_in("vera", "viewer")

    for path, query in (("/topics", {}), ("/topic", {"name": topic})):
        assert 'class="change"' not in await site.text(path, **query)
    assert (await site.post("/topic/delete", name=topic, typed=topic)).status_code == 403
    assert (await site.post("/topics/create", name="made_by_vera")).status_code == 403
    assert (await site.json("/topics", q="made_by_vera"))["found"] == 0


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_refused_or_not_found_and_shown_as_text(site, name):
    for answer in (
        await site.get("/topic", name=name),
        await site.get("/topics", q=name),
        await site.post("/topics/create", name=name),
        await site.post("/topic/delete", name=name, typed=name, reason="unused"),
    ):
        assert answer.status_code < 500, answer.text
        shown = re.sub(r'value="[^"]*"', "", answer.text)  # what was typed stands in its box again
        assert not any(raw in shown for raw in ("<script>alert", "<img src=x", "\x1b", "\x00", "\u202e"))
