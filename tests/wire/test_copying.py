"""Frames of the replication port."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.copying import CHUNK_BYTES_MAX, CHUNK_HEADER, REPORT, ReportReader


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.lists(st.integers(0, 160), max_size=8))
def test_reports_are_the_same_however_the_bytes_are_cut(offsets: list[int], cuts: list[int]) -> None:
    data, reader, read = b"".join(map(REPORT.pack, offsets)), ReportReader(), list[int]()
    ends = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in zip([0, *ends], ends):
        read += reader.read(data[start:end])
    assert read == offsets


def test_numbers_are_laid_out_as_rocketmq_does() -> None:
    assert REPORT.pack(0x0102030405060708) == bytes(range(1, 9))
    assert CHUNK_HEADER.pack(1, 2) == b"\0\0\0\0\0\0\0\1\0\0\0\2"
    assert CHUNK_BYTES_MAX + 12 == 4 * 1024 * 1024, "the buffer of a slave of RocketMQ"
