"""Transactions in the console: why each is pending, what operators decide, and who may."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest

from halfmoon import AsyncTransactionProducer, LocalTransactionState, Message
from halfmoon.client.core.admin.batches import BatchesAt
from halfmoon.console.pages import transactions
from halfmoon.wire.bodies.batches import BatchAttempt, BatchId
from tests.console.conftest import Site


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    """The broker asks nobody by itself while these tests run."""
    return {"transactionCheckInterval": 600_000}


async def left(site: Site, topic: str, group: str, body: bytes = b"order", key: str = "k") -> str:
    """Leave a half message undecided by a producer that goes away; return its id."""
    producer = AsyncTransactionProducer(
        group=group, nameserver=site.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
    )
    async with producer, producer.half(Message(topic, body, keys=[key])) as half:
        half.leave()
    return half.transaction_id


async def test_a_transaction_whose_producer_died_says_so_and_is_decided_once(site: Site, topic: str):
    name = await left(site, topic, "P_dead", b"<script>alert(1)</script>\n\x1b[31m\xe2\x80\xae", "<b>key</b>")
    [row] = (await site.json("/transactions", group="P_dead"))["transactions"]
    assert (row["msg_id"], "nobody to ask" in row["why"]) == (name, True)
    page = await site.text("/transaction", id=name)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\x1b[31m\\u202e" in page
    assert "<b>key" not in await site.text("/transactions")
    place = row["offset_msg_id"]
    [link] = re.findall(r'href="/message/body[?]([^"]+)"', page)
    whole = await site.get("/message/body", **dict(parse_qsl(unescape(link))))
    assert whole.content == b"<script>alert(1)</script>\n\x1b[31m\xe2\x80\xae"

    assert "reason is missing" in site.said(await site.post("/transaction/decide", id=place, decision="commit"))
    assert "The decision cannot be undone." in await site.text("/transaction/decide", id=place, decision="commit")
    assert "no producer" in site.said(await site.post("/transaction/check", id=place))
    answers = await asyncio.gather(
        *(
            site.post("/transaction/decide", once=f"o{n}", follow=False, id=place, decision="commit", reason="checked")
            for n in range(2)
        )
    )
    assert {answer.status_code for answer in answers} == {303}
    again = await site.post("/transaction/decide", id=place, decision="commit", reason="checked")
    assert "was already committed" in site.said(again)
    other = await site.post("/transaction/decide", id=place, decision="rollback", reason="checked")
    assert (other.status_code, "decided: COMMITTED" in site.said(other)) == (409, True)
    assert [each.max_offset for each in (await site.admin.topic_stats(topic)).values()] == [1]
    assert (await site.json("/transactions", group="P_dead"))["transactions"] == []


async def test_a_viewer_looks_and_decides_nothing_and_a_form_sent_twice_is_carried_out_once(site: Site, topic: str):
    name = await left(site, topic, "P_viewer")
    site.log_in("eve", "viewer")
    assert "Roll back" not in await site.text("/transaction", id=name)
    for path in ("/transaction/decide", "/transaction/check", "/transaction/resume"):
        assert (await site.post(path, id=name, decision="commit", reason="checked")).status_code == 403
    site.log_in("admin")
    [before] = (await site.json("/transactions"))["brokers"]
    for status in (200, 409):
        answer = await site.post("/transaction/decide", once="same", id=name, decision="rollback", reason="checked")
        assert answer.status_code == status
    [stats] = (await site.json("/transactions"))["brokers"]
    assert stats["counters"]["rollbacks"] == before["counters"].get("rollbacks", 0) + 1
    assert "Time to decision" in await site.text("/transactions")


async def test_an_answer_of_unknown_is_the_reason_and_stands_in_the_history(site: Site, topic: str):
    producer = AsyncTransactionProducer(
        group="P_unsure", nameserver=site.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
    )
    async with producer:
        async with producer.half(Message(topic, b"x")) as half:
            half.leave()
        before = (await site.json("/transaction", id=half.transaction_id))["transaction"]
        assert "not due yet" in before["why"]
        assert "got a check" in site.said(await site.post("/transaction/check", id=half.transaction_id))
        async with asyncio.timeout(60):
            while (found := (await site.json("/transaction", id=half.transaction_id))["transaction"])["last_answer"] != "UNKNOWN":
                await asyncio.sleep(0.05)
    assert [each["answer"] for each in found["checks"]] == ["UNKNOWN"]
    assert "No transaction has expired." in await site.text("/transactions/expired")
    assert (await site.get("/transactions", after="damaged")).status_code == 400
    assert (await site.get("/transaction", id="none")).status_code == 404


async def test_a_broker_that_decided_nothing_says_so_and_draws_nothing(site: Site):
    (broker,) = (await site.json("/transactions"))["brokers"]
    page = await site.text("/transactions")

    assert (broker["decided"] == 0) == ("Nothing was decided since its start." in page)
    assert (broker["decided"] > 0) == ("<rect" in page)
    assert "not reported by this broker" not in page


async def test_the_live_parts_say_what_changed_and_hold_no_form(site: Site, topic: str):
    name = await left(site, topic, "P_live")
    listed = await site.text("/transactions/live", group="P_live")
    assert (name in listed, "csrf" in listed, "<html" in listed) == (True, False, False)
    assert 'data-live="/transactions/live?group=P_live"' in await site.text("/transactions", group="P_live")
    before = await site.text("/transaction/live", id=name, was="PREPARED")
    await site.post("/transaction/decide", id=name, decision="rollback", reason="checked")
    after = await site.text("/transaction/live", id=name, was="PREPARED")
    assert ("Pending for" in before, "It is" in before) == (True, False)
    assert ("Pending for" in after, "It is ROLLED_BACK now." in after, "csrf" in after) == (False, True, False)
    assert "No pending transaction matches." in await site.text("/transactions", group="P_live")


async def test_links_of_the_live_list_lead_to_its_page(site: Site, topic: str, monkeypatch: pytest.MonkeyPatch):
    names = [await left(site, topic, "P_paged") for _ in range(2)]
    monkeypatch.setattr(transactions, "PAGE_SIZE", 1)
    live = await site.text("/transactions/live", group="P_paged")
    [following] = re.findall(r'rel="next" href="/transactions[?]([^"]+)"', live)
    query = dict(parse_qsl(unescape(following)))
    second = await site.text("/transactions", **query)
    assert [name in second for name in names] == [False, True]
    assert 'href="/transactions?group=P_paged">First rows' in await site.text("/transactions/live", **query)


async def test_batches_are_paged_and_one_is_shown_with_its_attempts(site: Site, monkeypatch):
    ids = [BatchId(transactional_id=f"<i>{n:03}", attempts=[BatchAttempt(7, "one", age_ms=5000, count=3)]) for n in range(150)]

    async def batches(name: str | None, *, failing: list[str]) -> list[BatchesAt]:
        mine = [each for each in ids if name in (None, each.transactional_id)]
        return [BatchesAt(broker="broker-a", ids=mine), BatchesAt(broker="old", supported=False)]

    site.answers(batches=batches)
    first = await site.json("/batches")
    second = await site.json("/batches", after=first["next"])
    assert [each["transactional_id"] for part in (first, second) for each in part["batches"]] == [
        each.transactional_id for each in ids
    ]
    assert (second["next"], first["batches"][0]["attempts"], first["batches"][0]["oldest_ms"]) == (None, [], 5000)

    page = await site.text("/batches", id="<i>007")
    assert "&lt;i&gt;007" in page
    assert "<i>007" not in page
    assert "Undecided at broker-a" in page
    assert "Without batch transactions: old." in page


async def test_a_broker_that_has_no_batches_yet_says_so(site: Site):
    assert "There are no batch transactions." in await site.text("/batches")
