"""Brokers that are killed with -9 again and again, under a load of everything that users do, and while they start."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from halfmoon import Admin, Message, Producer
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import fsck
from tests.integration.load import TOPICS, Load
from tests.interop.ours import Serve
from tests.waiting import until

pytestmark = pytest.mark.slow

SOON = {
    "transactionTimeOut": 1000, "transactionCheckInterval": 500, "transactionCheckMax": 1000, "mappedFileSizeCommitLog": 1 << 20,
}  # fmt: skip
"""Checks within seconds; log files small enough that a kill hits the change of one."""


@pytest.mark.parametrize(("flush", "kills"), [("ASYNC_FLUSH", 13), ("SYNC_FLUSH", 7)])
def test_kills_under_mixed_load_leave_what_the_ledger_says(tmp_path: Path, flush: str, kills: int):
    server = Serve(tmp_path / "store", settings={**SOON, "flushDiskType": flush})
    server.start()
    try:
        create_topics(server)
        load = Load(server.nameserver, seed=kills)
        with load.running():
            for _ in range(kills):
                load.more(30)
                time.sleep(random.uniform(0, 0.1))
                server.kill()
                server.start()
            load.more(30)
        problems = load.problems()
    finally:
        server.stop()

    assert problems == []
    assert len(load.acknowledged) > 10 * kills
    assert load.outcomes
    assert load.by_hand
    assert load.delayed
    assert list(fsck(RealDisk(tmp_path / "store"))) == []


def test_kills_while_it_recovers_cost_nothing(tmp_path: Path):
    server = Serve(tmp_path / "store", settings={**SOON, "messageIndexEnable": "true"})
    server.start()
    try:
        create_topics(server)
        load = Load(server.nameserver, seed=1)
        with load.running():
            load.more(100)
        with Producer(group="P_bulk", nameserver=server.nameserver) as producer:  # so that a recovery takes a while
            for number in range(80):
                producer.send_batch([Message("bulk", bytes(1000), keys=[f"k{number}-{at}"]) for at in range(500)])
        server.kill()
        for name in ("consumequeue", "index"):
            shutil.rmtree(tmp_path / "store" / name)
        (tmp_path / "store" / "checkpoint").unlink()
        for _ in range(10):
            process = server.begin()
            until(lambda process=process: holds_lock(process.pid, tmp_path / "store"), "the recovery to begin")
            time.sleep(random.uniform(0, 0.2))
            server.kill()
        server.start()
        problems = load.problems()
        with Admin(nameserver=server.nameserver) as admin:
            bulk = sum(ends.max_offset - ends.min_offset for ends in admin.topic_stats("bulk").values())
            assert admin.messages_by_key("bulk", "k79-499")
    finally:
        server.stop()

    assert problems == []
    assert bulk == 40_000
    assert list(fsck(RealDisk(tmp_path / "store"))) == []


def create_topics(server: Serve) -> None:
    with Admin(nameserver=server.nameserver) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, queue_count=2)


def holds_lock(pid: int, data: Path) -> bool:
    """Whether a process has taken the directory, which it does right before it reads the store."""
    with suppress(OSError):  # it opens and closes files meanwhile
        return any(Path(os.readlink(link)) == data / "lock" for link in Path(f"/proc/{pid}/fd").iterdir())
    return False
