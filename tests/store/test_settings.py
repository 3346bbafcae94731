"""Settings of the store."""

from __future__ import annotations

import pytest

from halfmoon.store.settings import ASYNC_FLUSH, SYNC_FLUSH, StoreSettings


@pytest.mark.parametrize(("flush", "sync"), [(SYNC_FLUSH, True), (ASYNC_FLUSH, False)])
def test_the_flush_mode_says_whether_a_send_waits_for_the_device(flush: str, sync: bool):
    assert StoreSettings(flush_disk_type=flush).sync_flush is sync


def test_a_file_of_a_queue_holds_whole_entries():
    assert StoreSettings().queue_file_bytes % 20 == 0
