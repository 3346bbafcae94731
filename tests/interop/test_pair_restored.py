"""A pair of ours that lost both machines, as processes: one member is restored from a backup by the commands of `docs/pairs.md`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

import halfmoon
from halfmoon.model import SendStatus
from tests.interop.ours import COMMAND
from tests.interop.pairs import NAME, Pair
from tests.runtime.leases.systems import PostgresSystem
from tests.waiting import until

pytestmark = pytest.mark.slow


def back_up(source: Path, target: Path) -> None:
    done = subprocess.run([str(COMMAND), "backup", str(source), str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def send(pair: Pair, bodies: list[bytes]) -> None:
    with halfmoon.Producer(group="P", nameserver=pair.nameserver, send_timeout_ms=30_000) as producer:
        for body in bodies:
            assert producer.send(halfmoon.Message("orders", body)).status is SendStatus.SEND_OK


def remove_record(system: PostgresSystem) -> None:
    with psycopg.connect(system.url) as connection:
        connection.execute(f"DELETE FROM halfmoon_lease WHERE name = 'DefaultCluster/{NAME}'")


def received(pair: Pair, wanted: set[bytes]) -> set[bytes]:
    """Return what a new group consumes until it has all that is wanted."""
    found: set[bytes] = set()
    consumer = halfmoon.PushConsumer(
        group="G", nameserver=pair.nameserver, consume_from=halfmoon.ConsumeFrom.FIRST_OFFSET, route_refresh_ms=500
    )
    consumer.subscribe("orders")
    consumer.on_message(lambda messages: found.update(bytes(message.body) for message in messages))
    with consumer:
        until(lambda: wanted <= found, "all messages")
    return found


def test_nothing_that_was_acknowledged_before_the_backup_is_lost_and_the_second_member_fills_itself(tmp_path: Path) -> None:
    system = PostgresSystem()
    pair = Pair(tmp_path / "pair", system.url)
    try:
        for name in ("a", "b"):
            pair.start(name)
        pair.wait_complete()
        before = [b"before %d" % number for number in range(500)]
        send(pair, before)
        master = pair.master()
        assert master is not None
        back_up(pair.root / master, tmp_path / "backup")
        send(pair, [b"behind the backup"])
        pair.kill(master)
        pair.wait_taken_over(master)
        for name in [*pair.members]:
            pair.kill(name)
        for name in ("a", "b"):
            shutil.rmtree(pair.root / name)

        back_up(tmp_path / "backup", pair.root / "a")
        pair.start("a")
        pair.members["a"].wait_line("a restored backup, and the record is that of the master of epoch 2")
        pair.members.pop("a").stop()
        remove_record(system)
        pair.start("a")
        until(lambda: pair.master() == "a", "the restored member to be the master")
        pair.start("b")
        pair.wait_complete()
        send(pair, [b"after"])
        wanted = {*before, b"after"}
        assert received(pair, wanted) == wanted
        pair.kill("a")
        pair.wait_taken_over("a")
        send(pair, [b"at the second member"])
        found = received(pair, {b"at the second member"})
        assert found <= {*wanted, b"at the second member"}
    finally:
        pair.close()
        system.close()
