"""Delayed messages in the console: real ones, counted, paged and cancelled, and brokers that keep no list of them."""

from __future__ import annotations

import time

import pytest

from halfmoon import Message, Producer
from halfmoon.client.core.admin import delay
from halfmoon.console.page import PAGE_SIZE
from halfmoon.errors import RequestNotSupported
from tests.console.conftest import Site

NONE_WAITS = "no message of this topic and id waits to be delivered"


def put_off(site: Site, *messages: Message) -> list[str]:
    with Producer(group="P_delays", nameserver=site.nameserver) as producer:
        return [producer.send(message).msg_id for message in messages]


async def cancel(site: Site, topic: str, id: str, **more):
    return await site.post("/delays/cancel", topic=topic, id=id, reason="sent in error", **more)


async def test_what_waits_is_listed_the_next_first_with_how_long_and_how_much(site: Site, topic: str):
    before = await site.json("/delays")
    late, soon, level = put_off(
        site,
        Message(topic, b"x", delay=7200, keys=["k1"], tag="A"),
        Message(topic, b"x", delay=1800),
        Message(topic, b"x", delay_level=18),
    )

    listed = await site.json("/delays", topic=topic)
    page = await site.text("/delays", topic=topic)

    assert [(each["msg_id"], each["level"]) for each in listed["messages"]] == [(soon, 0), (late, 0), (level, 18)]
    assert abs(listed["messages"][0]["due_ms"] - time.time() * 1000 - 1_800_000) < 300_000
    assert (listed["messages"][1]["keys"], listed["messages"][1]["tag"], listed["messages"][1]["topic"]) == ("k1", "A", topic)
    assert listed["total"] == before["total"] + 3
    assert listed["by_level"].keys() >= {"0", "18"}
    counts, earlier = listed["due_within"], before["due_within"]
    assert {seconds: counts[seconds] - earlier[seconds] for seconds in counts} == {"60": 0, "3600": 1, "86400": 3}
    assert f"Next hour <strong>{counts['3600']}</strong>" in page
    assert "in 29 min" in page
    assert page.count(">Cancel …</a>") == 2
    assert "on a level: fixed" in page


async def test_pages_together_are_all_that_waits(site: Site, topic: str):
    ids = put_off(site, *(Message(topic, b"x", delay=3600 + n) for n in range(2 * PAGE_SIZE + 1)))

    found, after = [], ""
    while after is not None:
        page = await site.json("/delays", topic=topic, after=after)
        found += [each["msg_id"] for each in page["messages"]]
        after = page["next"]

    assert found == ids
    assert 'rel="next"' in await site.text("/delays", topic=topic)
    assert (await site.get("/delays", after="x")).status_code == 400


async def test_one_is_cancelled_once_and_never_delivered(site: Site, topic: str):
    (id,) = put_off(site, Message(topic, b"x", delay=3600))

    first, second = await cancel(site, topic, id, of=topic), await cancel(site, topic, id)

    assert site.said(first) == f"{id} to {topic} is cancelled; it will not be delivered."
    assert str(first.url).endswith(f"/delays?topic={topic}")
    assert (second.status_code, NONE_WAITS in site.said(second)) == (409, True)
    assert (await site.json("/delays", topic=topic))["messages"] == []


async def test_what_was_delivered_or_waits_on_a_level_is_not_cancelled_and_that_is_said(site: Site, topic: str):
    delivered, level = put_off(site, Message(topic, b"x"), Message(topic, b"x", delay_level=18))

    for id in (delivered, level):
        assert NONE_WAITS in site.said(await cancel(site, topic, id))
    assert [each["msg_id"] for each in (await site.json("/delays", topic=topic))["messages"]] == [level]


@pytest.mark.parametrize("fields", [{"topic": "", "id": "x"}, {"topic": "T", "id": ""}])
async def test_a_form_without_a_topic_or_an_id_is_refused(site: Site, fields):
    assert (await site.post("/delays/cancel", **fields)).status_code == 400


async def test_a_viewer_sees_what_waits_and_cancels_nothing(site: Site, topic: str):
    (id,) = put_off(site, Message(topic, b"x", delay=3600))
    site.log_in("eve", "viewer")

    page, refused = await site.text("/delays", topic=topic), await cancel(site, topic, id)

    assert (id in page, "Cancel …" in page, refused.status_code) == (True, False, 403)
    assert [each["msg_id"] for each in (await site.json("/delays", topic=topic))["messages"]] == [id]


async def test_hostile_keys_and_tags_are_shown_and_not_obeyed(site: Site, topic: str):
    put_off(site, Message(topic, b"x", delay=3600, keys=["<script>alert(1)</script>"], tag='"\u202e<b>'))

    page = await site.text("/delays", topic=topic)

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page


async def test_brokers_that_keep_no_list_are_named(site: Site, monkeypatch):
    def refused(_admin, address, _request):
        raise RequestNotSupported("request type 31020 not supported", address)
        yield

    monkeypatch.setattr(delay, "ask_halfmoon", refused)

    page = await site.text("/delays")

    assert "keeps no list of delayed messages" in page
    assert "No message is delayed." not in page
    assert "in all, of every topic" not in page
