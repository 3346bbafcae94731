"""Histories of batch transactions in which every piece counts as a long one, so that all go the road by columns."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker import batchpublishing, send
from halfmoon.store import arrays, long_items
from halfmoon.testing.batchhistory import simulate_batches


@pytest.mark.slow
def test_pieces_by_columns_are_published_once_and_in_order(monkeypatch: pytest.MonkeyPatch):
    arrays.load()
    by_columns: list[bool] = []

    def counted(*given: Any) -> Any:
        found = long_items.long_items(*given)
        by_columns.append(found is not None)
        return found

    for module in (send, batchpublishing):
        monkeypatch.setattr(module, "LONG_BATCH_BYTES", 1)
    monkeypatch.setattr(long_items, "COUNT_MIN", 1)
    monkeypatch.setattr(send, "long_items", counted)

    for seed in range(1, 21):
        verdict = simulate_batches(seed)
        assert verdict.problems == [], verdict.summary()
    assert sum(by_columns) > 100
