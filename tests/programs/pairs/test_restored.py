"""A pair whose members are both lost goes on from a backup; and a member may begin on a backup instead of an empty directory."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from halfmoon.programs.backup import back_up
from halfmoon.store.layout import RESTORED
from tests.programs.pairs.test_member import Pair, log_end, pair  # noqa: F401

BODIES = {b"%d" % number for number in range(50)}


async def send(pair: Pair, bodies: set[bytes]) -> None:  # noqa: F811
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000) as producer:
        for body in bodies:
            await producer.send(Message("orders", body))


async def messages(pair: Pair, wanted: set[bytes]) -> set[bytes]:  # noqa: F811
    """Return the bodies of the messages that there are, once all that are wanted came: a restored store may leave offsets out."""
    await pair.until(lambda: any(each.is_master and each.program.broker.registration.registered for each in pair.members.values()))
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        ends, found = await admin.topic_stats("orders"), set[bytes]()
    async with AsyncPullConsumer(group="G", nameserver=pair.names.address, auto_commit=False) as consumer:
        await consumer.assign(list(ends))
        for queue in ends:
            await consumer.seek(queue, 0)
        async with asyncio.timeout(60):
            while not (wanted <= found and all(consumer.position(queue) >= ends[queue].max_offset for queue in ends)):
                found |= {bytes(message.body) for message in await consumer.poll(timeout_ms=100)}
    return found


@pytest.mark.parametrize("source", ["a", "b"])
async def test_a_pair_goes_on_from_a_backup_of_either_member_once_the_record_is_removed(
    pair: Pair,  # noqa: F811
    source: str,
    tmp_path: Path,
) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    await send(pair, BODIES)
    await asyncio.to_thread(back_up, tmp_path / source, tmp_path / "backup")
    await send(pair, {b"behind the backup"})
    await first.abort()
    await pair.until(lambda: second.is_master)
    await second.abort()
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)

    await asyncio.to_thread(back_up, tmp_path / "backup", tmp_path / "c")
    restored = await pair.begin("c")
    await pair.until(lambda: "is a restored backup, and the record is that of the master of epoch 2" in (restored.problem or ""))
    assert "remove the record" in (restored.problem or "")
    await restored.stop()
    pair.leases.stored = None
    restored = await pair.begin("c")
    await pair.until(lambda: restored.is_master)
    empty = await pair.begin("d")
    await pair.complete(restored)
    assert log_end(empty) == log_end(restored)
    await send(pair, {b"after"})
    wanted = {*BODIES, b"after"}
    assert await messages(pair, wanted) == wanted
    await restored.abort()
    await pair.until(lambda: empty.is_master)
    assert await messages(pair, wanted) == wanted


async def test_a_member_that_begins_on_a_backup_copies_the_rest_and_takes_over_with_the_topics_of_its_master(
    pair: Pair,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    await send(pair, BODIES)
    await asyncio.to_thread(back_up, tmp_path / "a", tmp_path / "b")
    await send(pair, {b"behind the backup"})
    second = await pair.begin("b")
    await pair.complete(first)
    assert not (tmp_path / "b" / RESTORED).exists()
    await first.abort()
    await pair.until(lambda: second.is_master)
    wanted = {*BODIES, b"behind the backup"}
    assert await messages(pair, wanted) == wanted
    assert "its topics get another birth" not in caplog.text
