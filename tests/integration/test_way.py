"""The way of a send, and of a half message and its commit, through the broker: as `docs/architecture.md` tells it, stop by stop."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import FrameType, ModuleType
from typing import Any

import pytest

from halfmoon import hot
from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.server.server import Server
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.command import Command, decode, encode, request_command
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id
from tests.broker.half import half_properties
from tests.broker.talk import send_header

DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"
WARM = 60
"""Exchanges before one is watched: files have their descriptors, and queues are open."""

SHORTEST_OF = 5
"""Exchanges that are watched: into some a timer rings."""

Ask = Callable[[Any, bytes], Awaitable[Command]]


def told(heading: str) -> list[str]:
    """The stops that the document names behind a heading."""
    text = DOCUMENT.read_text().split(heading)[1]
    return re.findall(r"[\w.]+", text.split("```")[1])


class Watch:
    """The functions of ours that run while it is on, in order: what the twin replaces as `hot.…`, and no comprehensions."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> Watch:
        self.calls.clear()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "call" and (found := re.search(r"/src/halfmoon/(.+)\.py$", frame.f_code.co_filename)):
            module, name = found[1], frame.f_code.co_qualname
            if "<" not in name and name.count(".") < 3 and not name.startswith("BusyPolling."):  # which looks when the loop wakes
                self.calls.append(f"hot.{name}" if module.startswith("columns/") else name)
        elif event == "c_call" and _is_native(what):
            self.calls.append(f"hot.{what.__qualname__}")


def _is_native(function: Any) -> bool:
    """Whether it is a function of the twin, or a method of one of its classes."""
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    return module.partition(".")[0] == "halfmoon_native"


async def walked(root: Path, exchange: Callable[[Ask, int], Awaitable[None]]) -> tuple[list[str], int]:
    """Return what one exchange passes that a turn that brings nothing does not, each once, and how many that one does."""
    broker = Broker(BrokerSettings(), StoreSettings(), RealDisk(root), Random(1), Clock().instant())
    server = Server(broker, [("127.0.0.1", 0)], Clock())
    [address] = await server.start()
    reader, writer = await asyncio.open_connection(*address)

    async def ask(header: Any, body: bytes) -> Command:
        frame = encode(request_command(header, body, opaque=7))
        with watch:
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4), "big")
            data = await reader.readexactly(size)
        passed.extend(watch.calls)
        head = int.from_bytes(data[1:4], "big")
        return decode(data[4 : 4 + head], data[4 + head :], data[0])

    watch, passed = Watch(), []
    for number in range(WARM):
        await exchange(ask, number)
    with watch:
        server.turn()
    idle = set(watch.calls)
    ways = []
    for number in range(SHORTEST_OF):
        passed.clear()
        await exchange(ask, WARM + number)
        ways.append([name for name in dict.fromkeys(passed) if name not in idle])
    writer.close()
    await server.stop()
    return min(ways, key=len), len(idle)


async def send(ask: Ask, number: int) -> None:
    reply = await ask(send_header("T", properties=f"UNIQ_KEY\x01{number:032}\x02WAIT\x01true\x02", queue_id=1), bytes(1024))
    assert reply.code == 0


async def half_and_commit(ask: Ask, number: int) -> None:
    reply = await ask(send_header("T", properties=half_properties(f"{number:032}"), queue_id=1, sys_flag=4), bytes(1024))
    assert reply.code == 0
    sent = reply.header(SendMessageReply)
    place = parse_offset_msg_id(sent.msg_id).physical_offset
    ending = EndTransaction(
        producer_group="orders", tran_state_table_offset=sent.queue_offset, commit_log_offset=place, commit_or_rollback=8,
        msg_id=f"{number:032}",
    )  # fmt: skip
    assert (await ask(ending, b"")).code == 0


@pytest.mark.skipif(hot.NATIVE is None, reason="the page tells the way through the compiled twin")
@pytest.mark.parametrize(
    ("heading", "exchange"), [("### The way of one send", send), ("### The way of half and commit", half_and_commit)]
)
async def test_the_way_is_as_it_is_told(tmp_path: Path, heading: str, exchange: Callable[[Ask, int], Awaitable[None]]):
    stops, idle = await walked(tmp_path, exchange)
    if hot.NATIVE is None:  # what the twin does at once is several functions in Python
        stops = [stop for stop in stops if not stop.startswith("hot.") or stop in told(heading)]
    assert stops == told(heading)
    count, housekeeping = map(int, re.findall(r"(\d+) stops.* (\d+) of housekeeping", DOCUMENT.read_text().split(heading)[1])[0])
    assert (count, housekeeping) == (len(told(heading)), idle)
