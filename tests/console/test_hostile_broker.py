"""One broker that answers nonsense, or refuses everything, takes no page of the console: the others are shown, and it is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from halfmoon.console.page import Page
from halfmoon.console.pages import ALL
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.wire.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable, encode_register_body
from halfmoon.wire.command import Command, decode, encode, reply_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.route import RegisterBroker

Answer = Callable[[Command], Command]

MENU = sorted(page.path for page in ALL if isinstance(page, Page) and page.menu)
ASKS_ALL = ["/batches", "/brokers", "/clients", "/delays", "/groups", "/transactions", "/transactions/expired"]
"""Pages that ask every broker."""

NAME = "broker-hostile"

KINDS: dict[str, Answer] = {
    "refuses": lambda asked: reply_command(asked, 1, "no " * 100_000),
    "answers nonsense": lambda asked: reply_command(asked, 0, None, body=b"[" * 1000),
    "answers another thing": lambda asked: reply_command(asked, 0, None, body=b'{"a":1}' if asked.code % 2 else b"7"),
}


@asynccontextmanager
async def registered(nameserver: str, answer: Answer) -> AsyncIterator[None]:
    """Have a hostile broker in a cluster."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inbox = Inbox()
        while data := await reader.read(1 << 16):
            inbox.feed(data)
            for frame in inbox.frames():
                writer.write(encode(answer(decode(frame.header, frame.body, frame.serialization))))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    request = RegisterBroker(broker_name=NAME, broker_addr=address, cluster_name="DefaultCluster", broker_id=0)
    table = TopicConfigTable(topic_config_table={"hostile": TopicConfig(topic_name="hostile")})
    connections = Connections()
    reply = await connections.call(nameserver, request, encode_register_body(RegisterBrokerBody(table)), 5_000)
    assert reply.code == 0
    try:
        yield
    finally:
        await connections.close()
        server.close()


def test_every_page_that_the_menu_has_is_looked_at() -> None:
    assert set(MENU) | {"/transactions/expired"} >= set(ASKS_ALL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_one_hostile_broker_takes_no_page_and_is_named(site, kind: str) -> None:
    async with registered(site.nameserver, KINDS[kind]):
        for path in dict.fromkeys([*MENU, *ASKS_ALL]):
            answer = await site.get(path)
            assert answer.status_code == 200, (path, answer.text[-400:])
            if path in ASKS_ALL and kind == "refuses":
                assert NAME in answer.text or "127.0.0.1:" in answer.text, path
                assert len(answer.text) < 100_000, path
