"""Reading a log by time passes over files that are far away, and over nothing that may be meant."""

from __future__ import annotations

import pytest

from halfmoon.model import StoredMessage
from halfmoon.programs.dump import stored_messages
from halfmoon.runtime.files.disk import RealDisk
from tests.store.driving import close, draft, open_store

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path):
    """A store with a message every half hour for two days, some five in a file."""
    store = open_store(RealDisk(tmp_path), START_MS)
    for number in range(96):
        store.append("t", 0, [draft(bytes([number]) * 12_000)], START_MS + number * HOUR_MS // 2)
    close(store)
    return tmp_path


@pytest.mark.parametrize(("begin", "end"), [(0, None), (10, 20), (47, 48), (0, 1), (30, None), (100, None), (5, 5)])
def test_what_was_stored_in_a_span_comes_whole(directory, begin, end):
    end_ms = None if end is None else START_MS + end * HOUR_MS
    found = stored_messages(directory, START_MS + begin * HOUR_MS, end_ms, lambda topic, properties: topic == "t")
    numbers = [message.body[0] for message in found if isinstance(message, StoredMessage)]
    assert numbers == list(range(96))[2 * begin : None if end is None else 2 * end]
