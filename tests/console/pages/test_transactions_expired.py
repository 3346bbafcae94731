"""Expired transactions in the console: the reason, and resuming one once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from halfmoon import AsyncTransactionProducer, LocalTransactionState, Message
from tests.console.conftest import Site


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    """Half messages expire after one check."""
    return {"transactionCheckInterval": 200, "transactionTimeOut": 100, "transactionCheckMax": 1}


@pytest.mark.slow
async def test_an_expired_transaction_is_shown_with_its_reason_and_resumed_once(site: Site, topic: str):
    producer = AsyncTransactionProducer(
        group="P_late", nameserver=site.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
    )
    async with producer:
        async with producer.half(Message(topic, b"x", keys=["<i>"])) as half:
            half.leave()
        async with asyncio.timeout(120):
            while not (rows := (await site.json("/transactions/expired"))["transactions"]):
                await asyncio.sleep(0.1)
    assert (rows[0]["msg_id"], rows[0]["resumed"], bool(rows[0]["reason"])) == (half.transaction_id, False, True)
    assert "&lt;i&gt;" in await site.text("/transactions/expired")
    assert "Resume makes it pending again" in await site.text("/transaction", id=half.transaction_id)

    again = await site.post("/transaction/resume", id=rows[0]["offset_msg_id"])
    assert "pending again" in site.said(again)
    assert (await site.json("/transactions/expired"))["transactions"][0]["resumed"]
    twice = await site.post("/transaction/resume", id=rows[0]["offset_msg_id"])
    assert (twice.status_code, bool(site.said(twice))) == (409, True)
    assert [each["msg_id"] for each in (await site.json("/transactions", group="P_late"))["transactions"]] == [half.transaction_id]


async def test_nobody_but_brokers_of_the_cluster_is_asked_to_resume_one(site: Site):
    asked: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(4))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        answer = await site.post("/transaction/resume", id=f"7F000001{port:08X}{0:016X}")

    assert (answer.status_code, asked) == (400, [])
    assert "is no id of a broker of this cluster" in site.said(answer)
