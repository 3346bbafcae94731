"""What the twins are called with, and what they give, leaves nothing behind in memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from halfmoon.hot import ENTRY, KEY, RECORD_BYTES_MIN
from halfmoon.sql92.parser import parse
from tests.columns.conftest import PYTHON, Twin
from tests.columns.test_messages import draft

CALLS = 400
LEFT_MAX = 100
"""Blocks that may be left: caches fill, and others allocate as well. A block a call would be `CALLS`."""

AT = 5_000_000
"""Where things begin: Python keeps small numbers for ever, and so they never show that they are lost."""


def calls(twin: Twin) -> dict[str, Callable[[], object]]:
    """Return each function that looks into memory, or makes much of it, with bytes that it takes."""
    drafts = [draft(b"b" * 6_000, b"KEYS\x01k%d\x02UNIQ_KEY\x01U%d\x02" % (number, number)) for number in range(20)]
    place = "T", 3, AT, AT, 1 << 40, 1 << 30, 1, b"\x7f\0\0\1\0\0\x2a\x9f"
    records, entries = twin.Messages(drafts).encode(*place)
    padded = memoryview(bytes(700) + bytes(records))
    sizes = [size for _, size, _ in ENTRY.iter_unpack(entries)]
    assert min(sizes) > RECORD_BYTES_MIN
    stored = twin.Messages(drafts)
    stored.sent(7, 900, 0, 1, 20)
    stored.encode(*place)
    keys = b"".join(KEY.pack(AT + number, AT + number, AT + number) for number in range(20))
    bulk_filter = twin.BulkFilter(parse("KEYS = 'k7'"))
    blocks = [one[1] for one in drafts]
    return {
        "gather, few": lambda: twin.gather(padded, AT - 700, bytes(entries), [3, 5, 6], 3, AT, 1 << 30, False),
        "gather, many": lambda: twin.gather(padded, AT - 700, bytes(entries), None, 3, AT, 1 << 30, False),
        "whole_records": lambda: twin.whole_records(padded[700:], sizes, 3, AT, AT),
        "record_keys": lambda: twin.record_keys(padded, 700, AT, 100),
        "checked_records": lambda: twin.checked_records(bytes(records), AT, [b"apart"]),
        "copied_records": lambda: twin.copied_records(bytes(records), (0, 1 << 30), AT, [b"apart"], (b"H", b"O"), 1 << 30),
        "record_rows": lambda: twin.record_rows(bytes(records), 0),
        "index_entries": lambda: twin.index_entries(memoryview(bytes(4 * 500)), 40, 300, AT, keys),
        "put_numbers": lambda: twin.put_numbers(memoryview(bytearray(2000)), [AT % 1000] * 20, [AT] * 20) or True,
        "BulkFilter, records": lambda: bulk_filter.records(padded, AT - 700, bytes(entries), AT, 1, 1, 20),
        "BulkFilter, unsure": lambda: twin.BulkFilter(None).records(padded, AT - 700, bytes(entries), AT, 1, 1, 20),
        "tag_matches": lambda: twin.tag_matches(bytes(entries), [AT], 20),
        "BulkFilter": lambda: bulk_filter.matching(blocks),
        "row_columns": lambda: twin.row_columns(
            bytes(records), AT, 2 * AT, ["msgId", "properties", "body", "bornTimestamp"], False
        ),
        "Messages": lambda: (twin.Messages(drafts).encode(*place), stored.drafts, stored.kept()),
        "answers": lambda: (
            twin.send_answers([(stored, 3, AT)], 1, "R", "7F", 400, trace_on=True),
            twin.done_answers([(7, AT, 0)] * 9, 400),
            twin.pull_head(7, 1, 0, "FOUND", (1, 2, 3), None, 9, 400),
        ),
    }


NAMES = list(calls(PYTHON))


@pytest.mark.parametrize("name", NAMES)
def test_many_calls_leave_no_more_behind_than_few(twin: Twin, name: str):
    call = calls(twin)[name]
    for _ in range(50):
        assert call() is not None or name == "row_columns"

    assert (
        min(left_behind(call) for _ in range(3)) < LEFT_MAX
    )  # what is lost is lost each time; threads of other tests go on at some


def left_behind(call: Callable[[], object]) -> int:
    """Return how many more blocks of memory are taken after many calls than before them."""
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(CALLS):
        call()
    gc.collect()
    return sys.getallocatedblocks() - before
