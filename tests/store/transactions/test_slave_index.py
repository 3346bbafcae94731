"""An index that failed on a slave is opened again, less and less often, and keeps no log files meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from halfmoon.instant import instant
from halfmoon.store.transactions.slave_index import PAUSE_MAX_MS, PAUSE_MS
from halfmoon.store.transactions.state_table import StateTable
from tests.store.transacting import disk_of
from tests.store.transactions.test_copied import Slave, copy_all, master_of


def refuse(*arguments: Any, **more: Any) -> None:
    raise OSError("planted")


def test_an_index_that_fails_again_is_opened_less_and_less_often() -> None:
    slave, opened = Slave(disk_of()), list[int]()
    for _ in range(12):
        slave.index.stop_for(OSError("planted"))
        slave.recover()
        opened.append(slave.now)
    pauses = [later - earlier for earlier, later in pairwise(opened)]
    assert (pauses[:3], pauses[-1]) == ([2 * PAUSE_MS, 4 * PAUSE_MS, 8 * PAUSE_MS], PAUSE_MAX_MS)


def test_an_index_that_cannot_be_opened_keeps_no_log_files_and_is_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = master_of(90), Slave(disk_of())
    copy_all(master, slave)
    slave.save()
    slave.index.stop_for(OSError("planted"))
    with monkeypatch.context() as patch:
        patch.setattr(StateTable, "cut", refuse)
        keeper = slave.transactions
        keeper.tick(instant(slave.now).steady)
        slave.now += PAUSE_MS
        keeper.tick(instant(slave.now).steady)
        assert (keeper.index, keeper.fault) == (None, "the transaction index cannot be opened: planted")
        assert all(pin.what != "transactions" for pin in slave.store.maintenance.pins)
        master.ops([2])
        copy_all(master, slave)
    slave.recover()
    slave.check()
