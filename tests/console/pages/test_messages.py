"""Messages in the console: found by key, time, place and id; shown in full with their lives; sent again."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from halfmoon import AsyncProducer, AsyncTransactionProducer, Message
from halfmoon.console.pages import messages as pages
from halfmoon.errors import RequestTimeout, UsageError
from halfmoon.model import MessageQueue, PullResult, PullStatus
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies import TopicOffset
from tests.client.messages import message
from tests.console.conftest import Site
from tests.store.driving import use_offsets_up
from tests.topics import new_topic

ATTACK = "<script>alert(1)</script>\u202e\x1b[31m"
PAGE_BYTES_MAX = 500_000


async def send(site, *sent):
    async with AsyncProducer(group="P_console", nameserver=site.nameserver) as producer:
        return [await producer.send(each) for each in sent]


def text_of(html: str) -> str:
    """Return what a page shows, without markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


# ---------------------------------------------------------------- found


async def test_the_page_asks_for_a_topic_and_shows_nothing_before(site):
    assert 'name="topic"' in await site.text("/messages")
    assert (await site.json("/messages"))["rows"] == []


async def test_a_message_of_a_pending_transaction_is_not_found_and_it_is_said_where_it_is(site):
    topic = new_topic(site.nameserver)
    async with AsyncTransactionProducer(group="P_console_pending", nameserver=site.nameserver) as producer:
        producer.on_check(topic, lambda message: None)
        half = await producer.prepare(Message(topic, b"paid", keys="o-1"))
        html = await site.text("/messages", topic=topic, key="o-1")
        await half.commit()

    assert "No message was found." in html
    assert 'it is among the <a href="/transactions">pending transactions</a>' in html
    assert "pending transactions" not in await site.text("/messages", topic=topic, key="o-1")


async def test_messages_are_found_by_a_key_and_lead_to_the_message(site):
    topic = new_topic(site.nameserver)
    results = await send(site, *(Message(topic, b"paid %d" % n, tag="new", keys=["all", f"o-{n}"]) for n in range(3)))

    facts, html = await site.json("/messages", topic=topic, key="o-1"), await site.text("/messages", topic=topic, key="o-1")

    [found] = facts["rows"]
    assert (found["keys"], found["tag"], found["start"], found["size_bytes"]) == ("all o-1", "new", "paid 1", 6)
    assert (found["broker"], found["queue_id"], found["queue_offset"]) == ("broker-a", 0, 1)
    assert found["msg_id"] == results[1].msg_id
    assert f"/message?topic={topic}&amp;id={results[1].offset_msg_id}" in html
    assert len((await site.json("/messages", topic=topic, key="all"))["rows"]) == 3
    assert (await site.json("/messages", topic=topic, key="all", since="2000-01-01"))["rows"]
    assert (await site.json("/messages", topic=topic, key="all", since="2100-01-01T00:00Z"))["rows"] == []


async def test_messages_are_found_by_time_over_all_queues_in_its_order(site):
    topic = new_topic(site.nameserver, queue_count=3)
    results = await send(site, *(Message(topic, b"%d" % n) for n in range(7)))

    rows = (await site.json("/messages", topic=topic, since="10m"))["rows"]

    assert sorted(each["offset_msg_id"] for each in rows) == sorted(each.offset_msg_id for each in results)
    assert [each["store_ms"] for each in rows] == sorted(each["store_ms"] for each in rows)
    newest = (await site.json("/messages", topic=topic))["rows"]
    assert {each["offset_msg_id"] for each in newest} == {each["offset_msg_id"] for each in rows}
    assert [each["store_ms"] for each in newest] == sorted((each["store_ms"] for each in rows), reverse=True)
    assert (await site.json("/messages", topic=topic, since="2100-01-01"))["rows"] == []


class Queues:
    """An administration client of a topic whose queues hold messages stored at some times; ``silent`` ones do not answer."""

    def __init__(self, times: list[list[int]], silent: tuple[int, ...] = ()) -> None:
        self.times, self.silent = times, silent

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return {MessageQueue(topic, "b", n): TopicOffset(0, len(t), t[-1]) for n, t in enumerate(self.times)}

    async def search_offset(self, queue: MessageQueue, ms: int) -> int:
        if queue.queue_id in self.silent:
            raise RequestTimeout("b", 3000)
        return next((n for n, at in enumerate(self.times[queue.queue_id]) if at >= ms), 0)

    async def messages_at(self, queue: MessageQueue, offset: int, count: int) -> PullResult:
        times = self.times[queue.queue_id]
        found = [message(n) for n in range(offset, min(len(times), offset + count))]
        for each in found:
            each.store_ms = times[each.queue_offset]
        return PullResult(PullStatus.FOUND, offset + len(found), 0, len(times), found)


async def since(admin: Any, ms: int) -> dict[str, Any]:
    return await pages.since_of(admin, "orders", ms)


async def test_a_search_by_time_shows_no_message_beyond_one_that_it_has_not_read():
    admin = Queues([list(range(1000, 1100)), [1010, 1090]])

    facts = await since(admin, 1000)

    assert [each["store_ms"] for each in facts["rows"]] == sorted([*range(1000, 1032), 1010])
    assert facts["more"] == "1970-01-01T00:00:01.031Z"
    assert (await since(admin, 1090))["more"] is None


async def test_more_messages_in_one_millisecond_than_are_read_lead_to_the_queues():
    facts = await since(Queues([[5000] * 100]), 5000)

    assert (len(facts["rows"]), facts["more"]) == (32, None)
    assert "read the queues one by one" in facts["said"]


async def test_a_queue_that_does_not_answer_is_named_and_too_many_queues_are_not_read():
    facts = await since(Queues([[5000], [5000]], silent=(1,)), 4000)

    assert (len(facts["rows"]), facts["said"].startswith("Not read: b/1:")) == (1, True)
    with pytest.raises(UsageError, match="300 queues have messages since then"):
        await since(Queues([[5000]] * 300), 4000)


async def test_a_queue_is_read_by_pages_the_newest_first_if_no_offset_is_given(site):
    topic = new_topic(site.nameserver)
    await send(site, *(Message(topic, b"%d" % n) for n in range(70)))
    place = {"topic": topic, "broker": "broker-a", "queue": "0"}

    newest = await site.json("/messages", **place)
    older = await site.json("/messages", **place, offset="6")

    assert [each["queue_offset"] for each in newest["rows"]] == list(range(38, 70))
    assert (newest["queue"]["before"], newest["queue"]["next"], newest["queue"]["max_offset"]) == (6, None, 70)
    assert [each["start"] for each in older["rows"]] == [str(n) for n in range(6, 38)]
    assert (older["queue"]["before"], older["queue"]["next"]) == (0, 38)
    beyond = await site.json("/messages", **place, offset=str(10**15))
    assert (beyond["rows"], beyond["queue"]["before"]) == ([], 38)
    html = await site.text("/messages", **place, offset="6")
    assert 'rel="prev"' in html
    assert "offset=38" in html


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"topic": "nix"}, "there is no topic nix"),
        ({"topic": "nix", "key": "k"}, "there is no topic nix"),
        ({"topic": "TBW102", "since": "yesterday"}, "since: 'yesterday' is not a time: give an age (10s"),
        ({"topic": "TBW102", "since": "9999-99-99"}, "since: '9999-99-99' is not a time"),
        ({"topic": "TBW102", "broker": "nobody", "queue": "0"}, "nobody"),
        ({"topic": "TBW102", "broker": "broker-a", "queue": "x"}, "queue must be a whole number"),
        ({"topic": "TBW102", "broker": "broker-a", "queue": "99999999999"}, "queue must be from 0"),
        ({"topic": "TBW102", "broker": "broker-a"}, "queue is missing"),
        ({"topic": "x" * 600}, "topic is 600 characters long"),
        ({"topic": ATTACK}, "there is no topic <script>alert(1)</script>\\u202e\\x1b[31m"),
    ],
)
async def test_what_cannot_be_looked_for_is_said_in_words(site, query, said):
    answer = await site.get("/messages", **query)

    assert 400 <= answer.status_code < 500 or "nobody" in said
    assert said in site.said(answer)
    assert len(answer.content) < 5_000


# ---------------------------------------------------------------- one


async def test_a_message_is_shown_by_either_id_with_its_properties_body_and_life(site):
    topic = new_topic(site.nameserver)
    body = json.dumps({"order": 7, "lines": ["<b>", 2]}).encode()
    [result] = await send(site, Message(topic, body, tag="new", keys="o-7", properties={"shop": "berlin"}))

    facts = await site.json("/message", topic=topic, id=result.msg_id)
    shown = text_of(await site.text("/message", topic=topic, id=result.msg_id))

    assert facts["message"] == (await site.json("/message", id=result.offset_msg_id))["message"]
    assert facts["message"]["properties"]["shop"] == "berlin"
    assert facts["body"]["text"] == body.decode()
    assert facts["body"]["json"] == json.dumps({"order": 7, "lines": ["<b>", 2]}, indent=2)
    assert [event["what"] for event in facts["life"]["events"]] == ["born", "stored"]
    assert all(text in shown for text in ("shop berlin", '"order": 7', "7b 22 6f 72", "stored broker-a broker-a/0@0", "tag new"))
    assert "when a group acknowledged a message is not kept" in shown


async def test_the_life_of_a_message_of_a_transaction_leads_to_its_transaction(site):
    topic = new_topic(site.nameserver)
    async with AsyncTransactionProducer(group="P_console_tx", nameserver=site.nameserver) as producer:
        producer.on_check(topic, lambda message: None)
        half = await producer.prepare(Message(topic, b"paid"))
        await half.commit()

    query = {"topic": topic, "id": half.message_id}
    events = {event["what"]: event for event in (await site.json("/message", **query))["life"]["events"]}
    html = await site.text("/message", **query)

    assert list(events) == ["born", "half", "committed"]
    assert f'<a href="/transaction?id={events["half"]["detail"]}">its transaction: COMMITTED</a>' in html


async def test_a_body_is_downloaded_as_it_was_sent_and_never_shown_as_a_page(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, ATTACK.encode() * 1000, keys="k"))

    answer = await site.get("/message/body", topic=topic, id=result.msg_id)

    assert answer.content == ATTACK.encode() * 1000
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="message-body.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await site.get("/message/body.json", topic=topic, id=result.msg_id)).status_code == 404
    assert (await site.get("/message/body", topic=topic, id="nix")).status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (ATTACK.encode(), "alert(1)</script>\\u202e\\x1b[31m"),
        (b"<!--\"'><svg/onload=alert(1)>{{ 7 * 7 }}", "{{ 7 * 7 }}"),
        (bytes(range(256)) * 4, "The body is not text."),
        (b"[" * 20_000 + b"]" * 20_000, "It is nested too deep to be shown as JSON."),
        (b"[" * 100_000 + b"]" * 100_000, "It is too large to be shown as JSON."),
        (
            json.dumps([{"order": n, "quotes": '"&<>\'"' * 9} for n in range(40_000)]).encode()[:4_100_000],
            "only its beginning is shown",
        ),
        (b'[{"a": "' + b'\\"&<' * 990_000 + b'"}]', "only its beginning is shown"),
    ],
    ids=["script", "markup", "binary", "deep", "large", "cut", "quotes"],
)
async def test_whatever_a_body_is_it_is_shown_as_text_on_a_small_page(site, body, said):
    topic = new_topic(site.nameserver)
    [result] = await send(
        site, Message(topic, body, tag=ATTACK, keys=ATTACK.replace(" ", ""), properties={"n" + ATTACK: ATTACK * 40})
    )

    for html in (await site.text("/message", topic=topic, id=result.msg_id), await site.text("/messages", topic=topic)):
        assert len(html.encode()) < PAGE_BYTES_MAX
        assert not any(raw in html for raw in ("<script>", "<svg/", "\u202e", "\x1b", "\x00"))
    assert said in text_of(await site.text("/message", topic=topic, id=result.msg_id))
    assert len((await site.get("/message.json", topic=topic, id=result.msg_id)).content) < PAGE_BYTES_MAX
    assert (await site.get("/message/body", topic=topic, id=result.msg_id)).content == body


async def test_keys_and_properties_of_the_largest_size_leave_pages_small(site):
    topic = new_topic(site.nameserver)
    large = Message(topic, b'"' * 40_000, tag='"' * 8_000, keys=" ".join(['"' * 20] * 300), properties={"p": '"' * 8_000})
    [result, *_] = await send(site, *[large] * 32)

    assert len(await site.text("/messages", topic=topic)) < PAGE_BYTES_MAX
    assert len(await site.text("/message", topic=topic, id=result.msg_id)) < PAGE_BYTES_MAX


@pytest.mark.parametrize(
    "name", ["nix", "7F00000100002A9F0000000000001000", "C0A8000100002A9F0000000000001000", ATTACK, "../x", "0" * 32]
)
async def test_an_id_of_no_message_is_said_in_words_and_no_stranger_is_asked(site, name):
    topic = new_topic(site.nameserver)

    answers = [await site.get("/message", id=name), await site.get("/message", topic=topic, id=name)]

    assert "no id of a broker of this cluster" in site.said(answers[0])
    assert "no message" in site.said(answers[1])
    assert all("<script>alert" not in answer.text for answer in answers)


async def test_a_message_that_is_gone_since_it_was_listed_is_said_to_be(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, b"paid"))
    gone = result.offset_msg_id[:16] + f"{1 << 50:016X}"

    answer = await site.get("/message", topic=topic, id=gone)

    assert f"no message {gone} in topic {topic}; it may be deleted by now" in site.said(answer)
    assert "no message" in site.said(await site.post("/message/resend", topic=topic, id=gone))


async def test_a_life_that_no_broker_tells_is_said_and_the_message_is_shown(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, b"paid"))

    async def silent(*_: object) -> Any:
        raise RequestTimeout("broker-a", 3000)

    site.answers(trace=silent)
    shown = text_of(await site.text("/message", topic=topic, id=result.msg_id))

    assert "The history is not known" in shown
    assert "paid" in shown


# ---------------------------------------------------------------- sent again


async def test_a_message_is_sent_again_to_its_topic_with_a_copy_that_names_it(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, b"paid", keys="o-7"))

    answer = await site.post("/message/resend", topic=topic, id=result.offset_msg_id, group="")

    assert f"all groups of topic {topic} get it" in site.said(answer)
    rows = (await site.json("/messages", topic=topic, broker="broker-a", queue="0"))["rows"]
    assert [each["msg_id"] for each in rows] == [result.msg_id] * 2
    copy = await site.json("/message", topic=topic, id=rows[1]["offset_msg_id"])
    assert copy["message"]["properties"]["ORIGIN_MESSAGE_ID"] == result.offset_msg_id


async def test_a_message_is_sent_again_to_one_group_alone(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, b"paid"))
    await site.admin.create_group(f"C_{topic}")

    answer = await site.post("/message/resend", topic=topic, id=result.offset_msg_id, group=f"C_{topic}")

    assert f"group C_{topic} alone gets it" in site.said(answer)
    assert len((await site.json("/messages", topic=topic, broker="broker-a", queue="0"))["rows"]) == 1
    assert (await site.json("/messages", topic=f"%RETRY%C_{topic}"))["rows"][0]["start"] == "paid"


async def test_a_form_sent_twice_sends_one_copy_and_viewers_and_unknown_groups_send_none(site):
    topic = new_topic(site.nameserver)
    [result] = await send(site, Message(topic, b"paid"))
    fields = {"topic": topic, "id": result.offset_msg_id}

    await site.post("/message/resend", once="twice", **fields)
    assert (await site.post("/message/resend", once="twice", **fields)).status_code == 409
    assert "not exist" in site.said(await site.post("/message/resend", group="C_nobody", **fields))
    site.log_in("vera", "viewer")
    assert (await site.post("/message/resend", **fields)).status_code == 403
    assert "Send again" not in await site.text("/message", **fields)
    assert len((await site.json("/messages", topic=topic, broker="broker-a", queue="0"))["rows"]) == 2


async def test_the_browser_steps_over_offsets_that_a_power_loss_used_up(site: Site, cluster: LocalCluster, topic: str):
    async with AsyncProducer(group="P_gap", nameserver=site.nameserver) as producer:
        for number in range(40):
            sent = await producer.send(Message(topic, b"%d" % number), key="one queue")
        use_offsets_up(cluster._programs[1].broker.store, topic, sent.queue.queue_id, 3000)
        for number in range(40, 42):
            await producer.send(Message(topic, b"%d" % number), key="one queue")
    place = {"topic": topic, "broker": sent.queue.broker_name, "queue": str(sent.queue.queue_id)}

    newest = await site.json("/messages", **place)
    older = await site.json("/messages", **place, offset=str(newest["queue"]["before"]))
    of_topic = await site.json("/messages", topic=topic)

    assert [row["start"] for row in newest["rows"]] == [f"{number}" for number in range(10, 42)]
    assert [row["start"] for row in older["rows"]][:10] == [f"{number}" for number in range(10)]
    assert older["queue"]["before"] is None
    assert [row["start"] for row in of_topic["rows"]][:32] == [f"{number}" for number in range(41, 9, -1)]
    behind_the_gap = await site.json("/messages", **place, offset="3040")
    assert behind_the_gap["queue"]["before"] == 8
