"""Backups of a broker that is sent to, and killed: a broker on any of them has every message up to the backup's end."""

from __future__ import annotations

import shutil
import time

import pytest

from halfmoon.programs.backup import back_up
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import fsck
from halfmoon.wire.ids import parse_offset_msg_id
from tests.integration.test_kill import Process, Sender, everything_stored, under_load
from tests.interop.process import free_port

BACKUPS = 3


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_message_before_the_end_of_a_backup_is_in_it_and_none_behind(tmp_path, flush):
    process = Process(tmp_path / "store", free_port(), flush)
    senders = [Sender(process.port, f"s{k}") for k in range(2)]
    for sender in senders:
        sender.start()
    for _ in range(BACKUPS):
        under_load(senders)
        made = back_up(tmp_path / "store", tmp_path / "backup", verify=True)
        assert made.running
        acked = {body: where for sender in senders for body, where in dict(sender.acked).items()}
        process.kill()
        process.start()
        under_load(senders)
        check(tmp_path / "backup", made.log_end, acked, flush)
    for sender in senders:
        sender.ended.set()
    for sender in senders:
        sender.join(60)
    process.stop()


def check(backup, log_end, acked, flush):
    """Start a broker on a copy of a backup: it has what was acknowledged below the end, at its place, and is sound afterwards."""
    copy = backup.with_name("restored")
    shutil.rmtree(copy, ignore_errors=True)
    back_up(backup, copy)
    restored = Process(copy, free_port(), flush)
    stored = everything_stored(restored.port)
    restored.stop()
    places = {message.body: (message.queue_id, message.queue_offset, message.offset_msg_id) for message in stored}
    below = {body: where for body, where in acked.items() if parse_offset_msg_id(where[2]).physical_offset < log_end}
    assert len(below) > 50
    assert {body: places.get(body) for body in below} == below
    assert all(message.physical_offset < log_end for message in stored)
    assert list(fsck(RealDisk(copy))) == []


@pytest.mark.slow
def test_a_backup_while_files_of_the_log_are_deleted_and_made_is_whole(tmp_path):
    process = Process(tmp_path / "store", free_port(), "ASYNC_FLUSH")
    sender = Sender(process.port, "s")
    sender.start()
    end = time.monotonic() + 60
    while len(list((tmp_path / "store").glob("commitlog/*"))) < 4:
        assert time.monotonic() < end
        time.sleep(0.05)
    made = back_up(tmp_path / "store", tmp_path / "backup", bytes_a_second=20_000_000, verify=True)
    sender.ended.set()
    sender.join(60)
    acked = dict(sender.acked)
    process.kill()
    check(tmp_path / "backup", made.log_end, acked, "ASYNC_FLUSH")
