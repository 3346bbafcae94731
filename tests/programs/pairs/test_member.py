"""Two members of a pair in this event loop: one serves, the other follows, and takes over."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message
from halfmoon.broker.pairs.record import decode_record
from halfmoon.errors import HalfmoonError
from halfmoon.programs.embedded import Program, kill, name_server, start
from halfmoon.programs.monitoring import Monitoring
from halfmoon.programs.pairs.member import Member
from halfmoon.settings.http import HttpSettings
from tests.programs.pairs.leases import MemoryLeases
from tests.programs.test_embedded import settings

LEASE_MS = 1000


def free_port() -> int:
    """Return a port that is free, and the one above it, where slaves copy."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken, suppress(OSError, OverflowError):
            port: int = taken.getsockname()[1]
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


class Pair:
    """Two members with a name server. ``acknowledged`` are the bodies whose send was answered with success."""

    def __init__(self, root: Path, names: Program, **changed: Any) -> None:
        self.root, self.names, self.leases, self.changed = root, names, MemoryLeases(), changed
        self.members: dict[str, Member] = {}

    async def begin(self, name: str, *, resync: bool = False, **changes: Any) -> Member:
        """Start a member. ``changes``: other settings of its broker or its store."""
        found = settings()
        of_store = {key: changes.pop(key) for key in list(changes) if hasattr(found.store, key)}
        changes = {**self.changed, **changes}
        fixed = {"nameserver": self.names.address, "port": free_port(), "lease_ms": LEASE_MS}
        own = replace(found.broker, **{**fixed, **changes})
        member = self.members[name] = Member(
            found._replace(broker=own, store=replace(found.store, **of_store)), self.root / name, self.leases, resync=resync
        )
        await member.start()
        return member

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(60):
            while not what():
                await asyncio.sleep(0.01)

    async def registered(self, name: str, ids: set[int]) -> None:
        """Wait until the name server knows these members of a broker."""
        async with AsyncAdmin(nameserver=self.names.address) as admin, asyncio.timeout(60):
            while name not in (table := (await admin.cluster()).broker_addr_table) or {*table[name].broker_addrs} != ids:
                await asyncio.sleep(0.02)

    async def complete(self, master: Member) -> None:
        await self.until(lambda: master.lease is not None and master.is_master and master.program.broker.copies.pair.is_complete)


def log_end(member: Member) -> int:
    """Return where the log of a member ends."""
    assert member.program is not None
    core = member.program.broker or member.program.standby
    assert core is not None
    return core.store.end_offset


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    names = await name_server(settings(), None)
    await start((names,))
    pair = Pair(tmp_path, names)
    yield pair
    for member in pair.members.values():
        await member.abort()
    await kill((names,))


async def test_the_first_serves_alone_the_second_follows_and_is_waited_for(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        for number in range(10):
            await producer.send(Message("orders", b"%d" % number))
        second = await pair.begin("b")
        await pair.complete(first)
        for number in range(10):
            await producer.send(Message("orders", b"%d" % number))
    assert log_end(first) == log_end(second)
    await first.abort()
    await pair.until(lambda: second.is_master)
    assert second.lease.epoch == 2  # type: ignore[union-attr]
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"after"))


async def test_a_complete_pair_serves_on_while_the_lease_is_down_and_takes_nobody_over(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    pair.leases.is_down = True
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 3 * LEASE_MS / 1000:
            await producer.send(Message("orders", b"x"))
            await asyncio.sleep(0.01)
    assert first.is_master
    assert not second.is_master
    assert first.program.broker.copies.fault == "the lease of the pair: it cannot be read: memory: down"  # type: ignore[union-attr]


async def test_a_master_without_follower_ends_before_its_lease_does(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    pair.leases.is_down = True
    lease = first.lease
    await pair.until(lambda: not first.is_master)
    assert lease is not None
    assert not lease.may_serve(first.clock.instant().steady)
    pair.leases.is_down = False
    await pair.until(lambda: first.is_master)
    assert first.lease is not None
    assert first.lease.epoch == 2


async def test_during_a_planned_switch_no_send_fails_and_no_message_is_stored_twice(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    results = []
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000) as producer:
        results.append(await producer.send(Message("orders", b"before")))
        first.program.broker.copies.is_switching = True  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while not second.is_master:
                results += await asyncio.gather(*(producer.send(Message("orders", b"meanwhile")) for _ in range(3)))
                await asyncio.sleep(0.01)
        results.append(await producer.send(Message("orders", b"after")))
    places = Counter((result.queue, result.queue_offset) for result in results)
    assert set(places.values()) == {1}
    ends = Counter(queue for queue, _ in places)
    assert {queue: second.program.broker.store.queue_max(queue.topic, queue.queue_id) for queue in ends} == ends  # type: ignore[union-attr]
    await pair.complete(second)
    await pair.until(lambda: log_end(first) == log_end(second))


async def test_a_clean_stop_gives_the_lease_to_the_follower_at_once(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    await first.stop()
    await pair.until(lambda: second.is_master)
    released = [record for text in pair.leases.written if not (record := decode_record(text, first.name)).address]
    assert [record.holder for record in released] == [second.lease.member]  # type: ignore[union-attr]
    await second.stop()
    again = await pair.begin("b")
    await pair.until(lambda: again.is_master)


async def test_a_master_whose_disk_failed_gives_the_lease_away_and_takes_part_again_once_it_is_started_again(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000) as producer:
        results = [await producer.send(Message("orders", b"%d" % number)) for number in range(10)]
        monitoring = Monitoring(HttpSettings())
        monitoring.members.append(first)
        first.program.broker.store.health.sync_failed(OSError(EIO, "Input/output error"))  # type: ignore[union-attr]
        await pair.until(lambda: second.is_master)
        assert not first.is_master
        results.append(await producer.send(Message("orders", b"after")))
    places = Counter((result.queue, result.queue_offset) for result in results)
    assert set(places.values()) == {1}
    released = [record for text in pair.leases.written if not (record := decode_record(text, first.name)).address]
    assert [record.holder for record in released] == [second.lease.member], "it did not wait for the end of the lease"  # type: ignore[union-attr]
    assert "Input/output error" in str(first.unready())
    assert b"Input/output error" in b"".join((await monitoring.healthy({})).body)
    await second.abort()
    await asyncio.sleep(3 * LEASE_MS / 1000)
    assert (first.program, first.is_master) == (None, False), "it takes part no more"
    await first.stop()
    second, again = await pair.begin("b"), await pair.begin("a")
    await pair.complete(second)
    await pair.until(lambda: log_end(again) == log_end(second))


async def test_a_master_that_is_alone_keeps_the_lease_though_its_disk_failed(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        sent = await producer.send(Message("orders", b"x"))
    broker = first.program.broker  # type: ignore[union-attr]
    assert broker is not None
    broker.store.health.sync_failed(OSError(EIO, "Input/output error"))
    await asyncio.sleep(3 * LEASE_MS / 1000)
    assert first.is_master
    assert broker.store.queue_max(sent.queue.topic, sent.queue.queue_id) == 1


async def test_a_clean_stop_leaves_the_lease_to_nobody_who_is_gone(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    copies = first.program.broker.copies  # type: ignore[union-attr]
    await second.abort()
    await pair.until(lambda: copies.pair is not None and copies.pair.follower is None)
    await first.stop()
    released = [record for text in pair.leases.written if not (record := decode_record(text, first.name)).address]
    assert [record.holder for record in released] == [first.lease.member]  # type: ignore[union-attr]
    again = await pair.begin("a")
    await pair.until(lambda: again.is_master)


async def test_a_master_whose_disk_failed_gives_the_lease_to_nobody_who_is_gone(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    broker = first.program.broker  # type: ignore[union-attr]
    assert broker is not None
    await second.abort()
    await pair.until(lambda: broker.copies.pair is not None and broker.copies.pair.follower is None)
    broker.store.health.sync_failed(OSError(EIO, "Input/output error"))  # the record names the other still
    await asyncio.sleep(3 * LEASE_MS / 1000)
    assert first.is_master


async def test_what_only_the_old_master_had_is_cut_and_kept_aside(pair: Pair, tmp_path: Path) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"both"))
        await pair.until(lambda: log_end(first) == log_end(second))
        feeding = first.program.broker.copies.feeding  # type: ignore[union-attr]
        feeding.wake = lambda: None  # nothing more is sent to the follower
        feeding._chunks = lambda slave, stop: iter(())
        with pytest.raises(HalfmoonError):
            await producer.send(Message("orders", b"one"), timeout_ms=200)
        assert log_end(first) > log_end(second)
    end = log_end(second)
    await first.abort()
    await pair.until(lambda: second.is_master)
    again = await pair.begin("a")
    await pair.complete(second)
    assert log_end(again) == log_end(second)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"more"))
    await pair.until(lambda: log_end(again) == log_end(second) > end)
    assert list((tmp_path / "a" / "quarantine").iterdir())


async def test_what_was_made_beside_the_log_is_there_after_a_takeover(pair: Pair) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        await admin.create_topic("made", queue_count=3)
        await admin.create_group("C_made")
    await first.abort()
    await pair.until(lambda: second.is_master)
    core = second.program.broker  # type: ignore[union-attr]
    assert core is not None
    assert "made" in core.topics.names()
    assert core.groups.get("C_made") is not None
