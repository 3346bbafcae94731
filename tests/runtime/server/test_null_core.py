"""A server without a core yet."""

from __future__ import annotations

import asyncio

from halfmoon.runtime.clock import Clock
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.server import Server
from tests.waiting import soon


async def test_a_server_without_a_core_starts_connects_answers_nothing_and_stops() -> None:
    server = Server(NullCore(), [("127.0.0.1", 0)], Clock())
    (address,) = await server.start()
    reader, writer = await asyncio.open_connection(*address)
    await soon(lambda: server.connection_count)
    await server.stop(1_000)
    assert await reader.read() == b""
    writer.close()
