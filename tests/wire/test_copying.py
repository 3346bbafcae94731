"""Frames of the replication port."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.copying import (
    ACCESS_KEY_BYTES_MAX,
    CHALLENGE,
    CHALLENGE_BYTES,
    CHUNK_BYTES_MAX,
    CHUNK_HEADER,
    FILE,
    FRAME,
    GREETING,
    HELLO,
    LOG,
    REFUSAL,
    REFUSAL_BYTES_MAX,
    REPORT,
    REPORTS,
    SIGNATURE,
    SIGNED,
    STAMP,
    STATE,
    STATE_BYTES_MAX,
    ChunkReader,
    FrameReader,
    Hello,
    Report,
    ReportReader,
    Signature,
    State,
    decode_state,
    encode_signature,
    encode_state,
    is_signed,
    sign,
)

I64 = st.integers(-(2**63), 2**63 - 1)
HELLOS = st.builds(Hello, st.binary(min_size=16, max_size=16), I64, I64, I64)
CUTS = st.lists(st.integers(0, 800), max_size=8)
STATES = st.builds(
    State, I64, st.integers(0, 255), st.binary(max_size=300), st.one_of(st.none(), st.binary(max_size=300))
)  # fmt: skip


def read_in_pieces(reader: Any, data: bytes, cuts: list[int]) -> list[Any]:
    """Let bytes come cut at these places; return what was read."""
    ends, read = [*sorted(cut for cut in cuts if cut < len(data)), len(data)], []
    for start, end in zip([0, *ends], ends):
        read += reader.read(data[start:end])
    return read


@given(st.lists(I64.filter(lambda offset: offset != GREETING), max_size=20), CUTS)
def test_reports_of_rocketmq_are_the_same_however_the_bytes_are_cut(offsets: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    assert read_in_pieces(reader, b"".join(map(REPORT.pack, offsets)), cuts) == [Report(offset, 0, 0) for offset in offsets]
    assert reader.hello is None


@given(HELLOS, st.lists(st.builds(Report, I64, I64, I64), max_size=10), CUTS)
def test_a_hello_and_its_reports_are_the_same_however_the_bytes_are_cut(
    hello: Hello, reports: list[Report], cuts: list[int]
) -> None:
    data = b"".join([REPORT.pack(GREETING), HELLO.pack(*hello), *[REPORTS.pack(*report) for report in reports]])
    reader = ReportReader()
    assert read_in_pieces(reader, data, cuts) == reports
    assert reader.hello == hello


@pytest.mark.parametrize("at_once", [False, True])
def test_a_greeting_that_is_not_the_first_report_is_none(at_once: bool) -> None:
    reader, parts = ReportReader(), [REPORT.pack(0), REPORT.pack(GREETING)]
    read = [report for data in ([b"".join(parts)] if at_once else parts) for report in reader.read(data)]
    assert read == [Report(0, 0, 0), Report(GREETING, 0, 0)]
    assert reader.hello is None


SIGNATURES = st.builds(
    Signature, st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.binary(min_size=32, max_size=32)
)
ORDINARY = st.builds(Report, I64.filter(lambda offset: offset != SIGNED), I64, I64)


@given(HELLOS, st.lists(ORDINARY, max_size=5), SIGNATURES, st.lists(ORDINARY, max_size=5), CUTS)
def test_a_signature_between_reports_is_the_same_however_the_bytes_are_cut(
    hello: Hello, before: list[Report], signature: Signature, after: list[Report], cuts: list[int]
) -> None:
    data = REPORT.pack(GREETING) + HELLO.pack(*hello) + b"".join(REPORTS.pack(*report) for report in before)
    data += encode_signature(signature) + b"".join(REPORTS.pack(*report) for report in after)
    reader = ReportReader()
    reader.awaits_signature = True
    assert read_in_pieces(reader, data, cuts) == before + after
    assert (reader.hello, reader.signature, reader.awaits_signature) == (hello, signature, False)


def test_a_signature_is_read_wherever_it_is_cut_in_two() -> None:
    hello, signature = Hello(bytes(16), 1, 2, 3), Signature("rocketmq2", bytes(range(32)))
    data = REPORT.pack(GREETING) + HELLO.pack(*hello) + encode_signature(signature) + REPORTS.pack(7, 8, 9)
    for cut in range(len(data) + 1):
        reader = ReportReader()
        reader.awaits_signature = True
        assert read_in_pieces(reader, data, [cut]) == [Report(7, 8, 9)]
        assert reader.signature == signature


def test_a_signature_that_nobody_awaits_is_a_report_that_no_master_believes() -> None:
    reader = ReportReader()
    data = REPORT.pack(GREETING) + HELLO.pack(bytes(16), 1, 2, 3) + encode_signature(Signature("rocketmq2", bytes(32)))
    assert reader.read(data)[0].offset == SIGNED
    assert reader.signature is None


def test_an_access_key_that_is_too_long_is_refused_by_its_header() -> None:
    reader = ReportReader()
    reader.awaits_signature = True
    begin = REPORT.pack(GREETING) + HELLO.pack(bytes(16), 1, 2, 3)
    assert reader.read(begin + SIGNATURE.pack(SIGNED, ACCESS_KEY_BYTES_MAX, bytes(32))) == []
    reader = ReportReader()
    reader.awaits_signature = True
    with pytest.raises(ValueError, match=f"an access key of {ACCESS_KEY_BYTES_MAX + 1} bytes"):
        reader.read(begin + SIGNATURE.pack(SIGNED, ACCESS_KEY_BYTES_MAX + 1, bytes(32)))


def test_a_signature_is_good_for_one_secret_challenge_hello_and_access_key() -> None:
    hello, other = Hello(bytes(16), 1, 2, 3), Hello(bytes(16), 1, 2, 4)
    signature = sign(b"secret", b"c" * 32, hello, "key")
    assert is_signed(signature, b"secret", b"c" * 32, hello)
    assert not is_signed(signature, b"Secret", b"c" * 32, hello)
    assert not is_signed(signature, b"secret", b"d" * 32, hello)
    assert not is_signed(signature, b"secret", b"c" * 32, other)
    assert not is_signed(signature._replace(access_key="kez"), b"secret", b"c" * 32, hello)
    assert not is_signed(signature._replace(code=bytes(32)), b"secret", b"c" * 32, hello)
    assert b"secret" not in encode_signature(signature)


def in_bytes(frames: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes | int]]:
    """Return frames with each byte of the log by itself, which may come cut or joined."""
    return [
        part
        for kind, number, content in frames
        for part in ([(kind, number + at, byte) for at, byte in enumerate(content)] if kind == LOG else [(kind, number, content)])
    ]


FRAMES = st.one_of(
    st.tuples(st.just(LOG), st.integers(0, 5) | st.just(2**62), st.binary(max_size=100)),
    st.tuples(st.just(STATE), st.integers(0, 2**63 - 1), st.binary(min_size=1, max_size=100)),
    st.tuples(st.just(STAMP), st.integers(0, 2**63 - 1), st.just(b"")),
    st.tuples(st.just(CHALLENGE), st.just(0), st.binary(min_size=CHALLENGE_BYTES, max_size=CHALLENGE_BYTES)),
    st.tuples(st.just(REFUSAL), st.just(0), st.binary(min_size=1, max_size=100)),
)


@given(st.lists(FRAMES, max_size=8), CUTS)
def test_frames_are_the_same_however_the_bytes_are_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    data = b"".join(FRAME.pack(kind, number, len(content)) + content for kind, number, content in frames)
    assert in_bytes(read_in_pieces(FrameReader(), data, cuts)) == in_bytes(frames)


def test_frames_are_the_same_wherever_they_are_cut_in_two() -> None:
    frames = [(STATE, 5, encode_state(State(1, FILE, b"a", b"{}"))), (LOG, 5, b"records"), (LOG, 12, b""), (STAMP, 77, b"")]
    data = b"".join(FRAME.pack(kind, number, len(content)) + content for kind, number, content in frames)
    for cut in range(len(data) + 1):
        assert in_bytes(read_in_pieces(FrameReader(), data, [cut])) == in_bytes(frames)


def test_log_that_goes_on_comes_together_and_states_between_keep_their_place() -> None:
    frames = [(LOG, 7, b"ab"), (LOG, 9, b"c"), (STATE, 10, b"state"), (LOG, 10, b"d"), (LOG, 90, b"z")]
    data = b"".join(FRAME.pack(kind, number, len(content)) + content for kind, number, content in frames)
    assert list(FrameReader().read(data)) == [(LOG, 7, b"abc"), *frames[2:]]


@pytest.mark.parametrize(
    ("kind", "number", "size"),
    [
        (0, 0, 0),
        (4, 0, 0),
        (-1, 0, 0),
        (LOG, -1, 0),
        (LOG, 0, -1),
        (LOG, 0, CHUNK_BYTES_MAX + 1),
        (STATE, 0, 0),
        (STATE, 0, STATE_BYTES_MAX + 1),
        (STATE, -1, 0),
        (STAMP, 0, 1),
        (STAMP, -1, 0),
        (CHALLENGE, 0, CHALLENGE_BYTES - 1),
        (CHALLENGE, 0, CHALLENGE_BYTES + 1),
        (REFUSAL, 0, 0),
        (REFUSAL, 0, REFUSAL_BYTES_MAX + 1),
    ],
)
def test_a_frame_that_no_master_sends_is_refused_by_its_header_and_those_before_it_count(kind: int, number: int, size: int) -> None:
    frames = FrameReader().read(FRAME.pack(LOG, 3, 1) + b"x" + FRAME.pack(kind, number, size))
    assert next(frames) == (LOG, 3, b"x")
    with pytest.raises(ValueError, match="it is no master of Halfmoon"):
        next(frames)


def test_frames_as_large_as_they_may_be_are_waited_for() -> None:
    for kind, size in ((LOG, CHUNK_BYTES_MAX), (STATE, STATE_BYTES_MAX)):
        assert list(FrameReader().read(FRAME.pack(kind, 0, size))) == []


@given(
    st.lists(st.tuples(st.integers(0, 5) | st.just(2**62), st.binary(max_size=20)), max_size=6),
    st.lists(st.integers(0, 160), max_size=8),
)
def test_the_bytes_of_chunks_are_the_same_however_they_are_cut(chunks: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data, reader = b"".join(CHUNK_HEADER.pack(offset, len(part)) + part for offset, part in chunks), ChunkReader()
    read = list[tuple[int, int]]()
    ends = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in zip([0, *ends], ends):
        read += [(offset + number, byte) for offset, part in reader.read(data[start:end]) for number, byte in enumerate(part)]
    assert read == [(offset + number, byte) for offset, part in chunks for number, byte in enumerate(part)]


def test_chunks_that_continue_each_other_come_together() -> None:
    chunks = [(7, b"ab"), (9, b"cd"), (11, b""), (11, b"e"), (90, b"z"), (91, b"!")]
    data = b"".join(CHUNK_HEADER.pack(offset, len(part)) + part for offset, part in chunks)
    assert list(ChunkReader().read(data)) == [(7, b"abcde"), (90, b"z!")]


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (3, -1), (3, CHUNK_BYTES_MAX + 1)])
def test_what_is_no_chunk_is_refused_behind_what_came_before_it(offset: int, size: int) -> None:
    read = ChunkReader().read(CHUNK_HEADER.pack(1, 2) + b"ab" + CHUNK_HEADER.pack(offset, size) + b"cd")
    assert next(read) == (1, b"ab")
    with pytest.raises(ValueError, match=f"a chunk of {size} bytes at offset {offset}"):
        next(read)


@given(STATES)
def test_a_state_is_read_as_it_was_written(state: State) -> None:
    assert decode_state(encode_state(state)) == state


def test_a_state_without_a_value_is_another_than_one_with_an_empty_value() -> None:
    assert decode_state(encode_state(State(1, 9, b"", None))).value is None
    assert decode_state(encode_state(State(1, 9, b"", b""))).value == b""


def test_a_state_that_is_cut_within_its_name_or_before_is_refused() -> None:
    data = encode_state(State(1, FILE, b"config/topics.json", b""))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="a state is too short"):
            decode_state(data[:size])


def test_numbers_are_laid_out_as_rocketmq_does() -> None:
    assert REPORT.pack(0x0102030405060708) == bytes(range(1, 9))
    assert CHUNK_HEADER.pack(1, 2) == b"\0\0\0\0\0\0\0\1\0\0\0\2"
    assert CHUNK_BYTES_MAX + 12 == 4 * 1024 * 1024, "the buffer of a slave of RocketMQ"
