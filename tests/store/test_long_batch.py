"""Tests that the records of a long batch are those of its messages one at a time."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import MessageIllegal
from halfmoon.store import arrays
from halfmoon.store.commitlog import CommitLog, Drafts
from halfmoon.store.long_batch import LongBatch
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, HOST, NOW, draft
from tests.store.test_commitlog import log_on

V6 = b"\0" * 15 + b"\1\0\0\1\2"


@pytest.fixture(autouse=True)
def numpy():
    """numpy, loaded as the index does it."""
    arrays.load()


def batch(count: int = 90, *, born: bytes = BORN, sys_flag: int = 0x301, born_ms: int = 1700000000000) -> LongBatch:
    bodies = [b"%d" % k * (k % 7) for k in range(count)]
    properties = [b"KEYS\x01%d\x02" % k for k in range(count)]
    lengths = ([len(each) for each in found] for found in (bodies, properties))
    body_bytes, own_bytes, flags, codes = (arrays.np.array(each, "i8") for each in (*lengths, range(-9, count - 9), range(count)))
    return LongBatch(bodies, body_bytes, properties, own_bytes, flags, codes, b"C\x01c\x02", sys_flag, born_ms, born, 3)


def stored(log: CommitLog, messages: Drafts) -> tuple[object, int, list[bytes]]:
    block = log.append("topic", 2, 40, messages, NOW, whole=True)
    return block, log.end, [bytes(log.record(place)) for place in block.physical_offsets]


@pytest.mark.parametrize("prepared", [0, 2**40])
@pytest.mark.parametrize(("start", "born", "host", "sys_flag"), [
    (0, BORN, HOST, 0x301), (10_000, BORN, HOST, 0), (0, V6, HOST, 0), (0, BORN, HOST, 0x4), (0, BORN, V6, 0),
])  # fmt: skip
def test_a_long_batch_is_stored_as_one_at_a_time(start: int, born: bytes, host: bytes, sys_flag: int, prepared: int):
    messages = batch(born=born, sys_flag=sys_flag)
    messages.prepared = prepared
    logs = [log_on(SimDisk(Random(1)), 16384, host=host) for _ in range(2)]
    for log in logs:
        log.append("t", 0, 0, [draft(bytes(start))], NOW, whole=False)

    assert stored(logs[0], messages) == stored(logs[1], messages.drafts())


def test_a_number_out_of_range_and_a_message_too_large_are_refused():
    log = log_on(SimDisk(Random(1)), 16384)
    with pytest.raises(MessageIllegal, match="out of range"):
        log.append("t", 0, 0, batch(born_ms=2**63), NOW, whole=True)
    messages = batch()
    messages.bodies[50], messages.body_bytes[50] = bytes(16384), 16384
    with pytest.raises(MessageIllegal, match="longer than"):
        log.append("t", 0, 0, messages, NOW, whole=True)
    assert log.end == 0


def test_plain_values_come_out():
    block = log_on(SimDisk(Random(1)), 16384).append("t", 0, 0, batch(), NOW, whole=True)

    assert {type(each) for each in (*block.entries, *block.physical_offsets, block.end_offset)} == {int}
