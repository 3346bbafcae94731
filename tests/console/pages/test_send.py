"""Messages are sent as a form says, filled in from a stored one where the query names it, and once."""

from __future__ import annotations

import pytest

from halfmoon import AsyncProducer, Message
from tests.console.conftest import Site
from tests.topics import new_topic
from tests.waiting import soon


async def stored(site: Site, topic: str, key: str) -> list[dict[str, str]]:
    return list((await site.json("/messages", topic=topic, key=key))["rows"])


async def test_a_message_is_sent_with_tag_keys_properties_and_body(site: Site, topic: str):
    sent = {"topic": topic, "tag": "new", "keys": "k1 k2", "properties": "a=1\r\nb=x=y", "body": " 订单\r\n{} "}
    answer = await site.post("/messages/send", **sent)
    assert site.said(answer).startswith(f"The message is stored in {topic}: ")
    [row] = await stored(site, topic, "k2")
    facts = await site.json("/message", topic=topic, id=row["msg_id"])
    assert (facts["message"]["tag"], facts["message"]["keys"]) == ("new", ["k1", "k2"])
    assert {name: facts["message"]["properties"][name] for name in "ab"} == {"a": "1", "b": "x=y"}
    assert facts["body"]["text"] == " 订单\n{} "
    entry = site.services.audit.read(1)[0]
    assert (entry.action, entry.fields["topic"], "body" in entry.fields) == ("messages send", topic, False)


async def test_a_message_is_sent_later(site: Site, topic: str):
    answer = await site.post("/messages/send", topic=topic, keys="later", body="x", delay="2h")
    assert f"stored in {topic}, to be delivered in 2h" in site.said(answer)
    [row] = (await site.json("/delays", topic=topic))["messages"]
    assert row["keys"] == "later"


async def test_a_stored_message_fills_the_form_in_and_its_copy_has_an_id_of_its_own(site: Site, topic: str):
    async with AsyncProducer(group="P_send", nameserver=site.nameserver) as producer:
        text = await producer.send(Message(topic, b'{"order": 1}', tag="new", keys=["k1"], properties={"shop": "moon"}))
        raw = await producer.send(Message(topic, b"\xff\x00", keys=["raw"]))
    edit = (await site.json("/messages/send", topic=topic, **{"from": text.msg_id}))["edit"]
    assert edit == {"tag": "new", "keys": "k1", "properties": "shop=moon", "body": '{"order": 1}'}
    page = await site.text("/messages/send", topic=topic, **{"from": raw.msg_id})
    assert "The body is not plain text" in page

    answer = await site.post("/messages/send", topic=topic, origin_topic=topic, keys="raw copy", **{"from": raw.msg_id})
    assert site.said(answer)
    await soon(lambda: True)
    [row] = await stored(site, topic, "copy")
    assert row["msg_id"] != raw.msg_id
    assert (await site.get("/message/body", topic=topic, id=row["msg_id"])).content == b"\xff\x00"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": ""}, "topic is missing"), ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "belongs to RocketMQ itself"),
        ({"delay": "soon"}, "delay: soon is not a duration (examples: 10s, 5m, 2h)"), ({"properties": "x"}, "NAME=VALUE"),
        ({"body": None}, "from is missing"),
    ],
)  # fmt: skip
async def test_a_form_that_cannot_be_sent_is_refused_in_words(site: Site, topic: str, fields: dict[str, str], words: str):
    sent = {name: value for name, value in {"topic": topic, "body": "x", **fields}.items() if value is not None}
    answer = await site.post("/messages/send", **sent)
    assert answer.status_code >= 400
    assert words in site.said(answer)


async def test_viewers_send_nothing_and_see_no_form(site: Site):
    topic = new_topic(site.nameserver)
    site.log_in("eve", "viewer")
    assert (await site.get("/messages/send")).status_code == 403
    assert (await site.post("/messages/send", topic=topic, body="x")).status_code == 403
    assert "/messages/send" not in await site.text("/messages", topic=topic)
