"""Pages of consumer groups over a real broker: lag, members, what blocks, and progress moved just as its preview showed."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import pytest

from halfmoon import Admin, AsyncProducer, AsyncPushConsumer, ConsumeFrom, Message, MessageModel, MessageQueue
from halfmoon.client.core.admin.health import findings
from halfmoon.client.core.admin.health import group as health_of_group
from halfmoon.effects import Op, sleep
from halfmoon.errors import RequestNotSupported, RequestTimeout, UsageError
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies import SubscriptionGroupConfig
from tests.topics import new_topic
from tests.waiting import soon

_numbers = count()


@pytest.fixture
def name(cluster: LocalCluster) -> str:
    """A group of the test's own, which has never consumed."""
    name = f"C_{next(_numbers)}"
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_group(name)
    return name


async def send(cluster: LocalCluster, topic: str, messages: int) -> list[str]:
    async with AsyncProducer(group="P_groups", nameserver=cluster.nameserver) as producer:
        return [(await producer.send(Message(topic, b"%d" % number))).msg_id for number in range(messages)]


@asynccontextmanager
async def member(cluster: LocalCluster, name: str, topic: str, expression: str = "*", **settings: Any) -> AsyncIterator[Any]:
    """Run a consumer whose listener waits for ``released`` before its messages end."""
    consumer = AsyncPushConsumer(group=name, nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, **settings)
    consumer.subscribe(topic, expression)
    released = asyncio.Event()
    got: list[Any] = []

    @consumer.on_message
    async def listen(messages: Any) -> None:
        got.extend(messages)
        await released.wait()

    async with consumer:
        consumer.released, consumer.got = released, got  # type: ignore[attr-defined]
        try:
            yield consumer
        finally:
            released.set()


async def row(site: Any, name: str) -> dict[str, Any]:
    return next(row for row in (await site.json("/groups", search=name))["groups"] if row["name"] == name)


async def whats(site: Any, name: str) -> list[str]:
    return [finding["what"] for finding in (await site.json("/group", name=name))["findings"]]


async def error(site: Any, path: str, **query: str) -> str:
    answer = await site.get(f"{path}.json", **query)
    assert answer.status_code in (400, 404, 409)
    return str(answer.json()["error"])


def fields(page: str) -> dict[str, str]:
    """Return what the last form of a page hands on unseen, but for what every form has."""
    form = page[page.rindex("<form") :]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    return {key: html.unescape(value) for key, value in found if key not in ("csrf", "once")}


# ---------------------------------------------------------------- looking


async def test_groups_stand_a_hundred_on_a_page_and_are_found_by_a_part_of_their_name(site, cluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        for number in range(103):
            admin.create_group(f"C_many_{number:03}")

    first = await site.json("/groups", search="c_MANY", sort="name")
    assert [row["name"] for row in first["groups"]] == [f"C_many_{number:03}" for number in range(100)]
    assert first["total"] == 103
    second = await site.json("/groups", search="c_MANY", sort="name", after=first["next"])
    assert [row["name"] for row in second["groups"]] == ["C_many_100", "C_many_101", "C_many_102"]
    assert second["next"] is None
    page = await site.text("/groups", search="c_MANY", sort="name")
    assert "C_many_099%22%5D&amp;sort=name&amp;search=c_MANY" in page
    assert "never consumed" in page
    assert "There is no such group." in await site.text("/groups", search="nothing_like_it")


async def test_a_group_that_sleeps_says_how_much_waits(site, cluster, name, topic):
    async with member(cluster, name, topic) as consumer:
        consumer.released.set()
        await send(cluster, topic, 2)
        await soon(lambda: len(consumer.got) == 2)
    await send(cluster, topic, 3)

    found = await row(site, name)
    assert (found["members"], found["lag"], found["has_consumed"]) == (0, 3, True)
    assert 0 <= found["behind_ms"] < 60_000
    assert found["blocks"] == ["No member is online, and 3 messages wait."]
    facts = await site.json("/group", name=name)
    [orders] = [queue for queue in facts["queues"] if queue["topic"] == topic]
    assert (orders["broker_offset"], orders["consumer_offset"], orders["lag"]) == (5, 2, 3)
    assert orders["member"] is None
    page = await site.text("/group", name=name)
    assert "No member is online, and 3 messages wait." in page
    assert "Progress: 3 behind" in page


async def test_a_listener_that_hangs_is_named_with_the_message_that_it_hangs_on(site, cluster, name, topic, monkeypatch):
    monkeypatch.setattr(findings, "STALLED_MS", 100)
    monkeypatch.setattr(health_of_group, "SUSPECT_MS", 0)
    ids = await send(cluster, topic, 3)
    async with member(cluster, name, topic) as consumer:
        await soon(lambda: len(consumer.got) == 3)
        await asyncio.sleep(0.2)
        while [each["queues"] for each in (await site.json("/group", name=name))["members"]] != [2]:  # that of retries comes later
            await asyncio.sleep(0.05)
        [finding] = (await site.json("/group", name=name))["findings"]
        found = await row(site, name)
        place = {"broker": "broker-a", "queue": "0", "offset": str(finding["offset"])}
        listed_rows = await site.json("/messages", topic=topic, **place)
        page, listed = await site.text("/group", name=name), await site.text("/groups", search=name)
        [shown] = (await site.json("/group", name=name))["members"]

    assert finding["what"].startswith(f"Member {consumer.client_id} has 3 messages of queue 0 of {topic} at broker-a in process")
    assert (finding["severity"], listed_rows["rows"][0]["msg_id"]) == ("blocked", ids[0])
    assert found["blocks"][0].startswith(f"Member {consumer.client_id} has 3 messages")
    assert found["behind_ms"] is None
    assert "never consumed" in listed
    assert f'href="/messages?topic={topic}&amp;broker=broker-a&amp;queue=0&amp;offset=0">See the message' in page
    assert (shown["client_id"], shown["language"], shown["queues"], shown["in_process"]) == (consumer.client_id, "PYTHON", 2, 3)
    assert shown["subscriptions"] == [f"%RETRY%{name} *", f"{topic} *"]
    assert shown["since_ms"] > 1_700_000_000_000


async def test_members_that_subscribe_differently_are_shown_with_what_each_wants(site, cluster, name, topic):
    other = new_topic(cluster.nameserver)
    async with member(cluster, name, topic) as one, member(cluster, name, other, "paid") as two:
        found = [what for what in await whats(site, name) if what.startswith("Members subscribe differently.")]
        page = await site.text("/group", name=name)

    assert len(found) == 1
    assert f"{one.client_id}: %RETRY%{name} *, {topic} *" in found[0]
    assert f"{two.client_id}: %RETRY%{name} *, {other} paid" in found[0]
    assert f"{other} paid" in page


async def test_a_group_that_may_not_consume_and_a_topic_that_may_not_be_read_are_said(site, cluster, name, topic):
    await send(cluster, topic, 1)
    async with member(cluster, name, topic) as consumer:
        await soon(lambda: consumer.got)
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.create_group(name, config=SubscriptionGroupConfig(consume_enable=False))
            admin.create_topic(topic, queue_count=1, perm=2)
            await soon(lambda: admin.topic_route(topic).queue_datas[0].perm == 2)
        found = await whats(site, name)

    assert found[:2] == [
        "Broker broker-a does not let this group consume: consumeEnable is false.",
        f"Topic {topic} at broker-a may not be read: its permission lacks 4.",
    ]


async def test_dead_letters_are_counted_and_linked(site, cluster, name):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(f"%DLQ%{name}", queue_count=1)
    await send(cluster, f"%DLQ%{name}", 2)

    assert "2 messages went to the dead letters." in await whats(site, name)
    assert f'href="/dead-letters?group={name}">Read them' in await site.text("/group", name=name)


async def test_a_group_that_broadcasts_says_so(site, cluster, name, topic, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    async with member(cluster, name, topic, model=MessageModel.BROADCASTING) as consumer:
        consumer.released.set()
        found = await row(site, name)
        assert (await whats(site, name))[0].startswith("The group broadcasts")

    assert (found["model"], found["members"]) == ("broadcasting", 1)


async def test_a_member_that_does_not_say_how_it_is_leaves_the_page_whole(site, cluster, name, topic, monkeypatch):
    def refused(*_: Any, **__: Any) -> Op[Any]:
        yield from sleep(0)
        raise RequestNotSupported("request type 307 not supported")

    monkeypatch.setattr(site.admin.core, "consumer_running_info", refused)
    await send(cluster, topic, 1)
    async with member(cluster, name, topic) as consumer:
        await soon(lambda: consumer.got)
        facts = await site.json("/group", name=name)

    assert [finding["what"] for finding in facts["findings"]] == [
        f"Member {consumer.client_id} does not say how it is: request type 307 not supported (code 3 REQUEST_CODE_NOT_SUPPORTED)."
    ]
    assert [(each["client_id"], each["queues"]) for each in facts["members"]] == [(consumer.client_id, None)]


async def test_a_row_does_not_wait_for_members_that_never_answer(site, cluster, name, topic, monkeypatch):
    def silent(*_: Any, timeout_ms: int | None) -> Op[Any]:
        yield from sleep(600_000 if timeout_ms is None else timeout_ms)
        raise RequestTimeout("no answer")

    monkeypatch.setattr(site.admin.core, "consumer_running_info", silent)
    await send(cluster, topic, 1)
    async with member(cluster, name, topic) as consumer:
        await soon(lambda: consumer.got)
        found = await row(site, name)

    assert (found["lag"], found["members"], found["blocks"]) == (1, 1, [])


async def test_a_broker_that_does_not_answer_for_one_group_leaves_the_others(site, cluster, name, monkeypatch):
    asked = site.admin.core.group_stats

    def answered(group: str, **where: Any) -> Op[Any]:
        if group == name:
            raise RequestNotSupported("request type 208 not supported")
        return (yield from asked(group, **where))

    monkeypatch.setattr(site.admin.core, "group_stats", answered)
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_group(f"{name}_x")

    shown = (await site.json("/groups", search=name, sort="name"))["groups"]
    assert [(each["name"], "208" in each["error"]) for each in shown][:2] == [(name, True), (f"{name}_x", False)]
    assert "request type 208 not supported" in await site.text("/groups", search=name)


async def test_hostile_names_are_shown_as_text(site, cluster, name, topic):
    hostile = '<script>alert("1")</script>\u202e'
    answer = await site.get("/group", name=hostile)
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
    assert "\\u202e" in answer.text

    async with member(cluster, name, topic, instance_name="<script>alert(1)</script>"):
        page = await site.text("/group", name=name)
    assert "@&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page

    async def names(*, failing: list[str]) -> list[str]:
        return [hostile]

    site.answers(groups=names)
    page = await site.text("/groups")
    assert "&lt;script&gt;alert(" in page
    assert "<script>alert" not in page


async def test_a_group_of_no_broker_is_said(site):
    assert (
        await error(site, "/group", name="C_nobody")
        == "no broker knows a consumer group C_nobody (code 26 SUBSCRIPTION_GROUP_NOT_EXIST)"
    )
    assert (await error(site, "/group", name="x" * 10_000)).startswith("name is 10,000 characters long")


# ---------------------------------------------------------------- moving


async def at_rest(cluster: LocalCluster, name: str, topic: str, *, consumed: int, waiting: int) -> None:
    """Have a group consume some messages of a topic and go to sleep before others come."""
    async with member(cluster, name, topic) as consumer:
        consumer.released.set()
        await send(cluster, topic, consumed)
        await soon(lambda: len(consumer.got) == consumed)
    await send(cluster, topic, waiting)


def offset(cluster: LocalCluster, name: str, topic: str) -> int:
    with Admin(nameserver=cluster.nameserver) as admin:
        [(_, progress)] = admin.consume_stats(name, topic).items()
    return progress.consumer_offset


@pytest.mark.parametrize(
    ("query", "then", "again", "skipped"),
    [
        ({"to": "latest"}, 5, 0, 3),
        ({"to": "earliest"}, 0, 2, 0),
        ({"to": "time", "time": "2020-01-31T08:00"}, 0, 2, 0),
        ({"to": "offset", "broker": "broker-a", "queue": "0", "offset": "3"}, 3, 0, 1),
    ],
)
async def test_progress_moves_as_its_preview_has_shown(site, cluster, name, topic, query, then, again, skipped):
    await at_rest(cluster, name, topic, consumed=2, waiting=3)

    facts = await site.json("/group/reset", group=name, topic=topic, **query)
    queue = {"topic": topic, "broker_name": "broker-a", "queue_id": 0}
    assert facts["moves"] == [{"queue": queue, "now": 2, "then": then, "members": 0}]
    assert (facts["again"], facts["skipped"], facts["online"], facts["target"]) == (again, skipped, 0, "offsets")
    page = await site.text("/group/reset", group=name, topic=topic, **query)
    assert f"Messages consumed again: {again}. Skipped: {skipped}." in page
    assert "No member is online: the next one begins there." in page
    assert offset(cluster, name, topic) == 2

    done = await site.post("/group/reset", **fields(page), reason="stuck")

    assert offset(cluster, name, topic) == then
    assert f"Messages consumed again: {again}; skipped: {skipped}. Members online: 0." in done.text
    assert "Since the preview" not in done.text
    [entry] = [each for each in site.services.audit.read(5) if each.action == "group reset"]
    assert (entry.fields["group"], entry.fields["topic"], entry.fields["reason"]) == (name, topic, "stuck")
    assert entry.outcome.startswith("done: ")


async def test_what_came_since_the_preview_is_not_skipped_and_progress_that_moved_is_said(site, cluster, name, topic):
    await at_rest(cluster, name, topic, consumed=2, waiting=3)
    shown = fields(await site.text("/group/reset", group=name, topic=topic, to="latest"))
    await send(cluster, topic, 4)
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.reset_offsets(name, topic, {MessageQueue(topic, "broker-a", 0): 1})

    done = await site.post("/group/reset", **shown, reason="stuck")

    assert offset(cluster, name, topic) == 5
    assert "skipped: 4." in done.text
    assert "Since the preview, 1 of 1 queues had moved on." in done.text


async def test_members_that_are_online_go_on_from_where_they_were_moved(site, cluster, name, topic):
    async with member(cluster, name, topic) as consumer:
        consumer.released.set()
        ids = await send(cluster, topic, 3)
        await soon(lambda: len(consumer.got) == 3)
        page = await site.text("/group/reset", group=name, topic=topic, to="earliest")
        assert "Members online: 1." in page
        await site.post("/group/reset", **fields(page), reason="stuck")
        await soon(lambda: len(consumer.got) == 6)

    assert [message.msg_id for message in consumer.got] == [*ids, *ids]


async def test_brokers_that_move_to_a_time_only_are_given_the_time_that_was_shown(site, cluster, name, topic):
    """As Apache's before 5.0 do while members are online."""
    await at_rest(cluster, name, topic, consumed=2, waiting=3)
    moves, asked = site.admin.reset_offsets, []

    async def by_time(group: str, topic: str, to: Any, **options: Any) -> Any:
        asked.append(to)
        if isinstance(to, dict):
            raise UsageError("the broker moves a group with members online to a time only: stop the members, or give a time")
        return await moves(group, topic, to, **options)

    site.answers(reset_offsets=by_time)
    page = await site.text("/group/reset", group=name, topic=topic, to="time", time="2020-01-31T08:00:00+08:00")
    assert "messages stored before the button is pressed count as well" in page
    assert (await site.post("/group/reset", **fields(page), reason="stuck")).status_code == 200
    assert offset(cluster, name, topic) == 0
    assert asked[-1] == 1_580_428_800_000
    to = {"to": "offset", "broker": "broker-a", "queue": "0", "offset": "3"}
    assert "to a time only" in await error(site, "/group/reset", group=name, topic=topic, **to)


async def test_a_target_that_cannot_be_is_refused_in_words(site, name, topic):
    queue = {"to": "offset", "broker": "broker-a", "queue": "0"}
    for query, words in (
        ({"to": "never"}, "to must be one of"),
        ({"to": "time", "time": "tomorrow"}, "time: 'tomorrow' is not a time: give an age"),
        ({"to": "time", "time": "9999-01-01T00:00"}, "in the future"),
        ({"to": "time"}, "time is missing"),
        ({**queue, "offset": "99"}, "offset 99 is outside"),
        ({**queue, "offset": "-1"}, "offset must be from 0"),
        ({**queue, "broker": "elsewhere", "offset": "0"}, "has no queue elsewhere/0"),
    ):
        assert words in await error(site, "/group/reset", group=name, topic=topic, **query)


async def test_a_plan_that_no_preview_made_moves_nothing(site, cluster, name, topic):
    await at_rest(cluster, name, topic, consumed=2, waiting=0)
    queue = {"topic": topic, "broker_name": "broker-a", "queue_id": 0}
    for plan in ("", "[", "[[1,2,3]]", msgspec.json.encode([(queue, 2, "0")]).decode(), "x" * 1_100_000):
        answer = await site.post("/group/reset", group=name, topic=topic, target="offsets", plan=plan, reason="stuck")
        assert answer.status_code == 400
        assert "plan" in answer.text
    assert offset(cluster, name, topic) == 2


async def test_a_plan_moves_queues_of_its_topic_only(site, cluster, name, topic):
    other = new_topic(cluster.nameserver)
    plan = msgspec.json.encode([(MessageQueue(other, "broker-a", 0), None, 0)]).decode()

    answer = await site.post("/group/reset", group=name, topic=topic, target="offsets", plan=plan, reason="stuck")

    assert "has no queue broker-a/0" in html.unescape(answer.text)


async def test_the_topics_of_a_group_are_offered(site, cluster, name, topic):
    await at_rest(cluster, name, topic, consumed=1, waiting=0)

    assert (await site.json("/group/reset", group=name))["topics"] == [topic]
    assert f'<option value="{topic}">' in await site.text("/group/reset", group=name)
    assert (await site.json("/group/reset", group="C_nobody"))["topics"] == []


# ---------------------------------------------------------------- making and deleting


async def test_a_group_is_created_once_and_deleted_by_its_name(site, cluster):
    made = await site.post("/groups/create", name="C_made")
    assert "Consumer group C_made is created." in made.text
    assert "there is a consumer group C_made" in (await site.post("/groups/create", name="C_made")).text
    assert "contains illegal characters" in (await site.post("/groups/create", name="C made")).text

    assert "type the name exactly" in (await site.post("/group/delete", group="C_made", typed="C_mad", reason="unused")).text
    with Admin(nameserver=cluster.nameserver) as admin:
        assert "C_made" in admin.groups()
        assert "is deleted" in (await site.post("/group/delete", group="C_made", typed="C_made", reason="unused")).text
        assert "C_made" not in admin.groups()


async def test_a_viewer_sees_groups_and_changes_nothing(site, cluster, name, topic):
    await at_rest(cluster, name, topic, consumed=1, waiting=1)
    shown = fields(await site.text("/group/reset", group=name, topic=topic, to="latest"))
    site.log_in("eve", "viewer")

    assert "No member is online, and 1 message waits." in await site.text("/group", name=name)
    for path in ("/groups", "/group"):
        page = await site.text(path, name=name)
        assert 'method="post" action="/group' not in page
    assert (await site.get("/group/reset", group=name)).status_code == 403
    for path, sent in (
        ("/group/reset", shown),
        ("/groups/create", {"name": "C_eve"}),
        ("/group/delete", {"group": name, "typed": name, "reason": "no"}),
    ):
        answer = await site.post(path, **sent)
        assert answer.status_code == 403
        assert "eve is a viewer" in answer.text
    assert offset(cluster, name, topic) == 1
    with Admin(nameserver=cluster.nameserver) as admin:
        assert name in admin.groups()
        assert "C_eve" not in admin.groups()


async def test_the_part_that_is_fetched_again_and_again_is_what_the_page_has_of_it(site, name):
    part = await site.text("/group/state", name=name)

    def still(text: str) -> str:
        return re.sub(r">[^<]* ago<", "><", text)

    assert "No member is online" in part
    assert still(part) in still(await site.text("/group", name=name))
