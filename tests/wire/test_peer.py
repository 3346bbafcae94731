"""Connections without sockets: accumulation, cutting, bounds, idleness."""

from halfmoon.effects import Close, Write
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.peer import CHUNKS_MAX, Peers

FRAME = encode(request_command(GetMaxOffset(topic="T", queue_id=0)))


def connected(**kw):
    peers = Peers(**kw)
    peers.connected(1, "10.0.0.1:5000", 0)
    return peers


def frames_of(peers, now=0):
    return [data[f[1] - 8 : f[3]] for _, data, frames in peers.take(now) for f in frames]


def test_bytes_of_several_feeds_make_one_frame():
    peers = connected()
    for byte in FRAME:
        peers.feed(1, bytes([byte]))

    assert frames_of(peers) == [FRAME]


def test_an_unfinished_frame_waits_for_its_rest():
    peers = connected()
    peers.feed(1, FRAME + FRAME[:20])
    assert frames_of(peers) == [FRAME]

    peers.feed(1, FRAME[20:30])
    assert frames_of(peers) == []
    peers.feed(1, FRAME[30:])
    assert frames_of(peers) == [FRAME]


def test_good_frames_before_a_bad_one_are_handed_out_and_then_the_connection_is_closed():
    peers = connected()
    peers.feed(1, FRAME + b"\xff\xff\xff\xff" + bytes(8))

    assert frames_of(peers) == [FRAME]
    assert isinstance(peers.effects()[0], Close)
    peers.feed(1, FRAME)
    assert frames_of(peers) == []


def test_unfinished_frames_beyond_the_bound_close_the_connection_that_holds_most():
    peers = connected(partial_bytes_max=1000)
    peers.connected(2, "10.0.0.2:5000", 0)
    big = (10_000).to_bytes(4, "big") + (0).to_bytes(4, "big")
    peers.feed(1, big + bytes(600))
    peers.feed(2, big + bytes(300))
    assert frames_of(peers) == []
    assert peers.effects() == []

    peers.feed(1, bytes(200))
    assert frames_of(peers) == []

    closes = peers.effects()
    assert [close.peer for close in closes] == [1]


def test_answers_of_one_turn_leave_as_one_write():
    peers = connected()
    peer = peers.get(1)
    peers.answer(peer, b"a")
    peers.answers(peer, [b"b", b"c"])

    assert peers.effects() == [Write(1, [b"a", b"b", b"c"])]
    assert peers.effects() == []


def test_a_silent_connection_is_closed_and_a_talking_one_is_not():
    peers = connected(idle_ms=1000)
    peers.connected(2, "10.0.0.2:5000", 0)
    peers.feed(2, FRAME)
    frames_of(peers, now=900)

    peers.tick(1000)

    assert [close.peer for close in peers.effects()] == [1]


def test_an_ipv6_connection_has_a_host_of_20_bytes():
    peers = Peers()

    assert len(peers.connected(1, "[fd00::1]:5000", 0).host) == 20
    assert len(peers.connected(2, "10.0.0.1:5000", 0).host) == 8


def test_a_connection_that_was_gone_before_it_had_an_address_is_taken_in_all_the_same():
    assert Peers().connected(1, "unknown:0", 0).host == bytes(8)


def test_many_tiny_pieces_of_a_frame_are_gathered_and_give_the_frame():
    peers = connected()
    big = encode(request_command(GetMaxOffset(topic="T", queue_id=0), body=bytes(range(256)) * 40))
    for at in range(0, len(big), 2):
        peers.feed(1, big[at : at + 2])

    assert len(peers.get(1).chunks) <= CHUNKS_MAX + 1
    assert frames_of(peers) == [big]
