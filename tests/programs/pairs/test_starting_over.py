"""A slave whose copy cannot go on starts over with ``--resync``, and only then: what it had is kept, and everything is copied."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from halfmoon import AsyncProducer, Message
from halfmoon.cli import servers
from halfmoon.errors import StoreError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, Programs, both, broker, kill, start, stop
from halfmoon.programs.pairs import slave as slave_module
from halfmoon.programs.pairs.member import Member
from halfmoon.programs.pairs.slave import Slave, slave
from halfmoon.programs.pairs.starting_over import KEPT
from halfmoon.store.layout import STARTING_OVER
from halfmoon.store.log import earlier_copy
from halfmoon.store.log.earlier_copy import COPY
from tests.programs.pairs.test_member import Pair, log_end, pair  # noqa: F401
from tests.programs.test_embedded import settings
from tests.programs.test_standby import slave_of
from tests.waiting import soon

FILE_BYTES = 4 * 1024 * 1024


def files_of(root: Path) -> dict[str, int]:
    """Return the files below a directory, with their sizes."""
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}


def core_of(program: Program) -> Any:
    """Return what stores in a program now."""
    return program.stored


def problem(program: Program) -> str:
    """Return why a slave copies nothing; empty: it does."""
    member = program.pair_member
    core = None if member is None or member.present is None else member.present.standby
    return "" if core is None else core.problem or ""


async def send_files(producer: AsyncProducer, count: int) -> None:
    """Send messages that fill files of the log."""
    for _ in range(count * FILE_BYTES // 1_000_000 + 1):
        await producer.send(Message("orders", os.urandom(1_000_000)))


async def has_everything(master: Program, of: Program) -> None:
    """Wait until a slave has the log of its master."""
    assert master.broker is not None
    log = master.broker.store
    await soon(lambda: (core := core_of(of)) is not None and core.store.end_offset == log.end_offset and not problem(of))


class Cluster:
    """A master, and a slave of it that was stopped before the master deleted the files that follow its log."""

    def __init__(self, root: Path, programs: Programs) -> None:
        self.root, self.programs, self.own = root, programs, slave_of(programs)

    @property
    def master(self) -> Program:
        return self.programs[1]

    async def slave(self, *, resync: bool, settings: ServerSettings | None = None) -> Program:
        """Start the slave."""
        program = await slave(settings or self.own, self.root / "slave", resync=resync)
        await start((program,))
        return program


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    programs = await both(settings(), tmp_path / "master")
    await start(programs)
    cluster = Cluster(tmp_path, programs)
    program = await cluster.slave(resync=False)
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        await producer.send(Message("orders", b"first"))
        await has_everything(cluster.master, program)
        await stop((program,))
        await send_files(producer, 3)
    assert cluster.master.broker is not None
    cluster.master.broker.store.log.segments.drop_before(FILE_BYTES)
    yield cluster
    await kill(programs)


async def test_without_resync_it_says_what_to_do_and_keeps_its_log(cluster: Cluster) -> None:
    before = files_of(cluster.root / "slave" / "commitlog")
    program = await cluster.slave(resync=False)
    await soon(lambda: f"the oldest file of the master begins at {FILE_BYTES}: start it with --resync" in problem(program))
    await stop((program,))
    assert files_of(cluster.root / "slave" / "commitlog") == before
    assert not (cluster.root / "slave" / COPY).exists()


async def test_with_resync_it_keeps_what_it_had_and_copies_everything(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    root = cluster.root / "slave"
    before = files_of(root / "commitlog")
    identity = (root / "config" / "epochs.json").read_text()
    program = await cluster.slave(resync=True)
    shown: list[Program] = []
    assert isinstance(program.pair_member, Slave)
    program.pair_member.on_program = shown.append
    await has_everything(cluster.master, program)
    assert files_of(root / COPY / "commitlog") == before
    assert (root / COPY / "config" / "epochs.json").read_text() == identity
    assert (root / "config" / "epochs.json").read_text() != identity
    assert core_of(program).store.min_offset == FILE_BYTES
    assert shown == [program.pair_member.program], "monitoring watches the new one"
    kept = files_of(root / COPY)
    said = f"starting over: {len(kept)} files of the earlier copy, {sum(kept.values())} bytes, are kept in quarantine/copy: this"
    assert [said in record.getMessage() for record in caplog.records if "starting over" in record.getMessage()] == [True]
    await stop((program,))
    successor = await broker(settings(), root)
    assert successor.broker is not None
    assert successor.broker.store.end_offset == cluster.master.broker.store.end_offset  # type: ignore[union-attr]
    await kill((successor,))


async def test_resync_changes_nothing_where_the_copy_can_go_on(cluster: Cluster) -> None:
    program = await cluster.slave(resync=True)
    await has_everything(cluster.master, program)
    await stop((program,))
    kept = files_of(cluster.root / "slave" / COPY)
    end = core_of(program).store.end_offset
    async with AsyncProducer(group="P", nameserver=cluster.programs[0].address) as producer:
        await producer.send(Message("orders", b"more"))
    for _ in range(2):
        program = await cluster.slave(resync=True)
        assert core_of(program).store.end_offset >= end
        await has_everything(cluster.master, program)
        assert core_of(program).store.min_offset == FILE_BYTES
        await stop((program,))
    assert files_of(cluster.root / "slave" / COPY) == kept


async def test_a_second_copy_is_not_kept_beside_the_first_and_people_read_why(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    (cluster.root / "slave" / COPY).mkdir(parents=True)
    program = await cluster.slave(resync=True)
    await soon(lambda: "quarantine/copy in its directory holds an earlier copy: once nobody needs that" in problem(program))
    assert core_of(program).store.min_offset == 0
    assert "starting over" not in caplog.text
    (cluster.root / "slave" / COPY).rmdir()
    await has_everything(cluster.master, program)
    await stop((program,))


@pytest.mark.parametrize("moved", [0, 1, 3, 6])
async def test_a_start_finishes_what_a_kill_has_cut_short_with_or_without_resync(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    root, names = cluster.root / "slave", earlier_copy._MOVED
    before = files_of(root / "commitlog")
    (root / STARTING_OVER).write_bytes(b"the log ends at 5")
    (root / COPY).mkdir(parents=True)
    for name in names[:moved]:
        if (root / name).exists():
            (root / name).rename(root / COPY / name)
    with pytest.raises(StoreError, match="was to start over, and that is not finished"):
        await broker(settings(), root)
    program = await cluster.slave(resync=False)
    await has_everything(cluster.master, program)
    assert files_of(root / COPY / "commitlog") == before
    assert not (root / STARTING_OVER).exists()
    await stop((program,))


async def test_a_disk_that_cannot_keep_it_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = earlier_copy._move, [OSError(28, "No space left on device")] * 2

    def move(disk: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(disk)

    monkeypatch.setattr(earlier_copy, "_move", move)
    program = await cluster.slave(resync=True)
    await has_everything(cluster.master, program)
    assert caplog.text.count("cannot start over, and tries again each second: [Errno 28] No space left on device") == 1
    await stop((program,))


async def test_a_slave_that_cannot_start_after_its_copy_was_moved_tries_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program, real, failures = await cluster.slave(resync=True), slave_module.standby, [OSError(24, "Too many open files")] * 2

    async def fails(*arguments: Any) -> Program:
        if failures:
            raise failures.pop()
        return await real(*arguments)

    monkeypatch.setattr(slave_module, "standby", fails)
    await has_everything(cluster.master, program)
    assert caplog.text.count("cannot start over, and tries again each second: [Errno 24] Too many open files") == 1
    assert caplog.text.count("are kept in quarantine/copy") == 1
    await stop((program,))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_slave_that_ends_while_its_copy_is_moved_waits_for_that(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real, begun, goes_on = earlier_copy._move, Event(), Event()

    def move(disk: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return real(disk)

    monkeypatch.setattr(earlier_copy, "_move", move)
    program = await cluster.slave(resync=True)
    await soon(begun.is_set, "it to begin")
    ending = asyncio.ensure_future(program.kill() if how == "kill" else stop((program,)))
    await asyncio.sleep(0.1)
    assert not ending.done()
    goes_on.set()
    await ending
    assert not (cluster.root / "slave" / STARTING_OVER).exists()
    program = await cluster.slave(resync=True)
    await has_everything(cluster.master, program)
    await stop((program,))


# ---------------------------------------------------------------- pairs


async def left_behind(pair: Pair) -> tuple[Member, str]:  # noqa: F811
    """Return a master alone, whose follower was stopped before files that it lacks were deleted; and the follower's id."""
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000) as producer:
        await producer.send(Message("orders", b"both"))
        assert second.lease is not None
        identity = second.lease.member
        await second.stop()
        await send_files(producer, 3)
    await pair.until(lambda: not first.program.broker.copies.pair.is_complete)  # type: ignore[union-attr]
    first.program.broker.store.log.segments.drop_before(FILE_BYTES)  # type: ignore[union-attr]
    return first, identity


async def test_a_member_that_was_left_behind_says_so_and_with_resync_joins_as_another(pair: Pair) -> None:  # noqa: F811
    first, identity = await left_behind(pair)
    second = await pair.begin("b")
    await pair.until(lambda: "start it with --resync" in (second.unready() or ""))
    await second.stop()
    second = await pair.begin("b", resync=True)
    await pair.complete(first)
    await pair.until(lambda: log_end(first) == log_end(second))
    assert second.lease is not None
    assert second.lease.member != identity
    assert (pair.root / "b" / COPY / "commitlog").is_dir()
    await first.abort()
    await pair.until(lambda: second.is_master)
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000) as producer:
        await producer.send(Message("orders", b"after"))


async def test_a_member_that_may_take_the_lease_does_not_start_over(
    pair: Pair,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await left_behind(pair)
    monkeypatch.setattr("halfmoon.broker.pairs.lease.Lease.may_start_over", False)
    second = await pair.begin("b", resync=True)
    await pair.until(lambda: KEPT in (second.unready() or ""))
    assert not (pair.root / "b" / COPY).exists()


async def test_a_member_finishes_what_a_kill_has_cut_short(pair: Pair) -> None:  # noqa: F811
    first, identity = await left_behind(pair)
    (pair.root / "b" / STARTING_OVER).write_bytes(b"the log ends at 5")
    second = await pair.begin("b")
    await pair.complete(first)
    assert second.lease is not None
    assert second.lease.member != identity
    assert (pair.root / "b" / COPY / "config").is_dir()


async def test_a_member_that_follows_is_not_touched_by_resync(pair: Pair) -> None:  # noqa: F811
    first = await pair.begin("a", resync=True)
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b", resync=True)
    await pair.complete(first)
    await first.abort()
    await pair.until(lambda: second.is_master)
    again = await pair.begin("a", resync=True)
    await pair.complete(second)
    await pair.until(lambda: log_end(again) == log_end(second))
    assert not any((pair.root / name / COPY).exists() for name in "ab")


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("command", [("broker",), ("broker", "--broker-name", "broker-b")])
def test_resync_is_for_slaves(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert servers.run_server(command[0], [*command[1:], "--resync"]) == 2
    assert "--resync is for a slave: give --slave-of or --lease, or leave it out" in capsys.readouterr().err


@pytest.mark.slow
async def test_a_process_that_is_killed_while_it_starts_over_goes_on_at_the_next_start(cluster: Cluster, tmp_path: Path) -> None:
    own = ["--nameserver", cluster.programs[0].address, "--broker-port", "0", "--data", str(tmp_path / "slave")]
    small = settings().store
    for key, value in {"mappedFileSizeCommitLog": FILE_BYTES, "maxHashSlotNum": small.hash_slots, "maxIndexNum": 4000}.items():
        own += ["--set", f"{key}={value}"]
    own += ["--slave-of", "broker-a", "--resync"]
    process = subprocess.Popen([sys.executable, "-m", "halfmoon.cli.main", "broker", *own], stdout=subprocess.DEVNULL)
    await soon(lambda: (tmp_path / "slave" / COPY).exists(), "it to begin", within_s=120)
    process.kill()
    process.wait()
    program = await cluster.slave(resync=False)
    await has_everything(cluster.master, program)
    await stop((program,))
