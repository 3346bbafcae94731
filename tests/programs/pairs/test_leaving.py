"""The directory of a pair's member starts no plain broker before it has left the pair."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from halfmoon import AsyncProducer, Message
from halfmoon.cli import servers
from halfmoon.errors import StoreLocked, UsageError
from halfmoon.programs.backup import back_up
from halfmoon.programs.embedded import both, broker, kill
from halfmoon.programs.pairs.leaving import leave_pair
from halfmoon.store.epochs import PATH
from tests.programs.pairs.test_member import Pair, pair  # noqa: F401
from tests.programs.test_embedded import settings

REFUSED = (
    r"this directory belongs to a pair \(broker DefaultCluster/broker-a, epoch 1\): start it with --lease; or, to leave the pair"
    r" for good, with --leave-pair"
)


async def member_directory(pair: Pair) -> Path:  # noqa: F811
    """Return the directory of a member that has served and stopped."""
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"of the pair"))
    await first.stop()
    return pair.root / "a"


async def test_a_members_directory_is_no_plain_brokers_and_none_of_a_serve(pair: Pair) -> None:  # noqa: F811
    data = await member_directory(pair)
    before = (data / PATH).read_bytes()
    with pytest.raises(UsageError, match=REFUSED):
        await broker(settings(), data)
    with pytest.raises(UsageError, match=REFUSED):
        await both(settings(), data)
    assert (data / PATH).read_bytes() == before


@pytest.mark.parametrize("command", ["broker", "serve"])
async def test_the_commands_refuse_it_in_one_line(
    pair: Pair,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    data = await member_directory(pair)
    with pytest.raises(UsageError, match=REFUSED):
        await servers._programs(command, settings(), data, 1, None, is_slave=False)


async def test_who_leaves_the_pair_serves_alone_and_may_come_back_as_the_last_master(pair: Pair) -> None:  # noqa: F811
    data = await member_directory(pair)
    second = await pair.begin("b")  # has nothing, and does not serve
    await second.stop()
    leave_pair(settings(), data)
    assert json.loads((data / PATH).read_bytes())["pair"] == ""
    for _ in range(2):
        alone = await broker(settings(), data)
        assert alone.broker is not None
        assert alone.broker.store.end_offset > 0
        await kill((alone,))
    pair.leases.stored = None  # the record is removed
    again = await pair.begin("a")
    await pair.until(lambda: again.is_master)
    with pytest.raises(StoreLocked):
        leave_pair(settings(), data)


async def test_a_copy_that_left_the_pair_goes_on_where_the_last_master_is_lost_for_good(pair: Pair) -> None:  # noqa: F811
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"x"))
    await second.abort()
    await first.abort()
    pair.leases.stored = None
    second = await pair.begin("b")
    await pair.until(lambda: "this is a copy: start the last master first" in (second.unready() or ""))
    await second.stop()
    leave_pair(settings(), pair.root / "b")
    alone = await broker(settings(), pair.root / "b")
    await kill((alone,))
    second = await pair.begin("b")
    await pair.until(lambda: second.is_master)


async def test_a_restored_backup_of_a_member_may_be_a_plain_broker(pair: Pair, tmp_path: Path) -> None:  # noqa: F811
    data = await member_directory(pair)
    await asyncio.to_thread(back_up, data, tmp_path / "restored")
    alone = await broker(settings(), tmp_path / "restored")
    await kill((alone,))


async def test_leaving_does_nothing_to_other_directories(tmp_path: Path) -> None:
    leave_pair(settings(), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    plain = settings()._replace(broker=replace(settings().broker, port=0))
    await kill((await broker(plain, tmp_path / "plain"),))
    before = (tmp_path / "plain" / PATH).read_bytes()
    leave_pair(plain, tmp_path / "plain")
    assert (tmp_path / "plain" / PATH).read_bytes() == before
