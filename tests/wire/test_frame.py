"""Tests of cutting a stream into frames: any split gives the same frames, and lengths that cannot be are refused early."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import BadFrame
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from halfmoon.wire.frame import Frame, Inbox


def packed(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    size = 4 + len(frame.header) + len(frame.body)
    return (
        size.to_bytes(4, "big") + bytes((frame.serialization,)) + len(frame.header).to_bytes(3, "big") + frame.header + frame.body
    )


def cut(data: bytes, pieces: list[int]) -> list[bytes]:
    """Return the data in pieces of these sizes, the rest as one."""
    found = []
    for size in pieces:
        found.append(data[:size])
        data = data[size:]
    return [*found, data]


def everything(inbox: Inbox) -> list[Frame]:
    """Return all frames that can be had, a fault apart."""
    found: list[Frame] = []
    try:
        while frames := inbox.frames():
            found += frames
    except BadFrame:
        pass
    return found


FRAMES = st.lists(st.builds(Frame, st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=60)), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 30), max_size=30), st.lists(st.booleans(), min_size=31, max_size=31))
def test_any_split_of_a_stream_gives_the_same_frames(frames, sizes, asked):
    inbox, found = Inbox(), []

    for piece, ask in zip(cut(b"".join(map(packed, frames)), sizes), asked, strict=False):
        inbox.feed(piece)
        if ask:
            found += inbox.frames()
    found += inbox.frames()

    assert found == frames
    assert inbox.pending_bytes == 0


@given(FRAMES, st.lists(st.integers(1, 30), max_size=30))
def test_only_the_unfinished_remainder_is_kept(frames, sizes):
    inbox, fed, taken = Inbox(), 0, 0

    for piece in cut(b"".join(map(packed, frames)), sizes):
        inbox.feed(piece)
        fed += len(piece)
        taken += sum(len(packed(frame)) for frame in inbox.frames())
        assert inbox.pending_bytes == fed - taken
    assert (taken, inbox.pending_bytes) == (fed, 0)


def test_frames_are_bytes_of_their_own():
    inbox = Inbox()
    inbox.feed(packed(Frame(0, b"{}", b"body")))

    [frame] = inbox.frames()

    assert type(frame.header) is bytes
    assert type(frame.body) is bytes


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("00000003", "frame length"),
        ("00000000", "frame length"),
        ("ffffffff", "frame length"),
        ("80000000", "frame length"),
        ("7fffffff", "frame length"),
        ("00fffffd", "frame length"),
        ("00000004 00000001", "does not fit"),
        ("00000010 0000000d", "does not fit"),
        ("00ffff00 00ffff00", "does not fit"),
    ],
)
def test_lengths_that_cannot_be_are_refused_as_soon_as_they_are_seen(prefix, reason):
    inbox = Inbox()
    inbox.feed(bytes.fromhex(prefix))

    with pytest.raises(BadFrame, match=reason):
        inbox.frames()


def test_the_largest_frame_is_taken_and_one_byte_more_is_not():
    largest = packed(Frame(0, b"", bytes(FRAME_BYTES_MAX - 8)))
    inbox = Inbox()
    inbox.feed(largest)

    assert len(largest) == FRAME_BYTES_MAX
    assert len(inbox.frames()[0].body) == FRAME_BYTES_MAX - 8
    inbox.feed((FRAME_BYTES_MAX - 3).to_bytes(4, "big"))
    with pytest.raises(BadFrame):
        inbox.frames()


def test_the_longest_header_is_taken_and_one_byte_more_is_not():
    inbox = Inbox()
    inbox.feed(packed(Frame(1, bytes(HEADER_BYTES_MAX), b"")))

    assert len(inbox.frames()) == 1
    inbox.feed(packed(Frame(1, bytes(HEADER_BYTES_MAX + 1), b""))[:8])
    with pytest.raises(BadFrame):
        inbox.frames()


@given(FRAMES, st.integers(-(2**31), 3), st.lists(st.integers(0, 30), max_size=10))
def test_frames_before_a_fault_are_given_and_nothing_after_it(frames, total, sizes):
    data = b"".join(map(packed, frames)) + total.to_bytes(4, "big", signed=True) + packed(Frame(0, b"after", b""))
    inbox, found = Inbox(), []

    for piece in cut(data, sizes):
        inbox.feed(piece)
        found += everything(inbox)

    assert found == frames
    assert inbox.fault is not None
    assert inbox.pending_bytes == 0
    with pytest.raises(BadFrame):
        inbox.frames()


def test_a_fault_is_seen_at_once_behind_frames_of_the_same_piece():
    inbox = Inbox()
    inbox.feed(packed(Frame(0, b"{}", b"")) + bytes(8))

    assert len(inbox.frames()) == 1
    assert isinstance(inbox.fault, BadFrame)


def test_a_large_frame_in_tiny_pieces_costs_little_more_than_its_size():
    size = 512 * 1024
    data = packed(Frame(0, b"{}", bytes(size)))
    inbox = Inbox()

    tracemalloc.start()
    for at in range(0, len(data), 7):
        inbox.feed(data[at : at + 7])
        if at % 7000 == 0:
            inbox.frames()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 3 * size
    assert len(inbox.frames()[0].body) == size


def test_asking_for_frames_while_a_large_one_arrives_does_not_copy_it_again_and_again():
    data = packed(Frame(0, b"{}", bytes(12 * 1024 * 1024)))
    inbox, found = Inbox(), []

    begin = time.process_time()
    for at in range(0, len(data), 2048):
        inbox.feed(data[at : at + 2048])
        found += inbox.frames()

    assert len(found) == 1
    assert time.process_time() - begin < 2, "seconds; one copy takes milliseconds, a copy for each piece takes many seconds"
