"""Connections without sockets: accumulation, cutting, bounds, idleness."""

from random import Random

import pytest

from halfmoon.effects import Close, Write
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.peer import (
    ALL_REQUESTS_A_TURN,
    CHUNKS_MAX,
    REQUESTS_A_TURN,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Peer,
    Peers,
    RequestBacklog,
)

FRAME = encode(request_command(GetMaxOffset(topic="T", queue_id=0)))


def connected(**kw):
    peers = Peers(**kw)
    peers.connected(1, "10.0.0.1:5000", 0)
    return peers


def frames_of(peers, now=0):
    return [data[f[1] - 8 : f[3]] for _, data, frames in peers.take(now) for f in frames]


def test_a_connection_has_the_names_of_its_certificate_while_it_is_there_and_none_without_one():
    peers = connected()
    assert peers.get(1).names == ()
    peers.certified(1, ("me",))
    peers.certified(2, ("nobody",))  # gone meanwhile

    assert peers.get(1).names == ("me",)
    assert peers.get(2) is None


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


def test_who_brought_bytes_that_are_no_frame_is_closed_when_what_stood_before_them_is_answered_whether_it_reads_or_not():
    peers, backlog = connected(), RequestBacklog()
    peer = peers.get(1)
    peers.feed(1, FRAME * 40 + b"\xff\xff\xff\xff" + bytes(8))
    backlog.turn(peers.take(0))
    backlog.set_slow(peer, is_slow=True)
    assert peers.effects(backlog) == []
    peers.feed(1, bytes(100_000))
    assert peers.take(0) == []
    assert len(peers.wrong) == 1, "what comes behind them is not looked at"
    backlog.set_slow(peer, is_slow=False)
    assert peers.effects(backlog) == []
    backlog.turn([])
    assert [close.peer for close in peers.effects(backlog)] == [1]


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


# ---------------------------------------------------------------- requests that wait for a later turn


def cut(peer, count, *, first=0, size=20):
    """What `Peers.take` returns for so many frames of a connection, each with its number as body."""
    bodies = [b"%0*d" % (size, number) for number in range(first, first + count)]
    return (peer, b"".join(bodies), [(0, at * size, at * size, (at + 1) * size) for at in range(count)])


def numbers(asked, peer):
    return [int(data[start:end]) for who, data, (_, start, _, end) in asked if who is peer]


def two_peers():
    return Peer(1, "10.0.0.1:1", 0), Peer(2, "10.0.0.2:1", 0)


def test_what_one_connection_asks_beyond_its_share_waits_in_order_and_others_do_not():
    backlog, (loud, quiet) = RequestBacklog(), two_peers()
    got = [backlog.turn([cut(loud, 100), cut(quiet, 1)])]
    got.append(backlog.turn([cut(loud, 1, first=100), cut(quiet, 1)]))
    while backlog.waiting:
        got.append(backlog.turn([]))

    assert [numbers(asked, quiet) for asked in got] == [[0], [0], [], []]
    assert [len(numbers(asked, loud)) for asked in got] == [REQUESTS_A_TURN, REQUESTS_A_TURN, REQUESTS_A_TURN, 5]
    assert [number for asked in got for number in numbers(asked, loud)] == list(range(101))


def test_all_connections_together_have_a_bound_and_nobody_waits_for_ever():
    backlog = RequestBacklog()
    peers = [Peer(number, "10.0.0.1:1", 0) for number in range(100)]
    got = [backlog.turn([cut(peer, 3 * REQUESTS_A_TURN) for peer in peers])]
    while backlog.waiting:
        got.append(backlog.turn([]))

    assert {len(asked) for asked in got[:-1]} == {ALL_REQUESTS_A_TURN}
    assert {peer for asked in got[:5] for peer, _, _ in asked} == set(peers), "100 shares of 32 take four turns, one had two"


def test_what_is_put_back_comes_before_what_waits():
    backlog, (peer, _) = RequestBacklog(), two_peers()
    taken = backlog.turn([cut(peer, 40)])
    backlog.put_back(taken[30:])
    assert numbers(backlog.turn([]), peer) == list(range(30, 40))


def test_nothing_is_handled_for_a_connection_that_does_not_read_until_it_does():
    backlog, (slow, other) = RequestBacklog(), two_peers()
    backlog.turn([cut(slow, 40)])
    backlog.set_slow(slow, is_slow=True)
    backlog.set_slow(slow, is_slow=True)
    assert not backlog.waiting, "no turn comes for it alone"
    assert backlog.turn([cut(slow, 1, first=40), cut(other, 1)]) == [(other, *cut(other, 1)[1:2], cut(other, 1)[2][0])]
    backlog.set_slow(slow, is_slow=False)
    assert numbers(backlog.turn([]), slow) == list(range(32, 41))


def test_what_is_too_much_to_wait_is_left_to_be_refused():
    backlog, (loud, _) = RequestBacklog(), two_peers()
    backlog.turn([cut(loud, REQUESTS_A_TURN + WAITING_MAX + 3)])
    assert numbers(backlog.excess, loud) == [REQUESTS_A_TURN + WAITING_MAX + number for number in range(3)]


def waiting_mb(backlog, peer, count):
    """Let a connection that does not read ask so often, with a MiB each; return how many of these wait."""
    backlog.set_slow(peer, is_slow=True)
    for _ in range(count):
        backlog.turn([cut(peer, 1, size=MB)])
    return len(backlog.slow[peer])


MB = 1024 * 1024
ALL_MB = WAITING_BYTES_MAX // MB


def test_one_connection_takes_half_of_the_room_at_most_and_whoever_comes_next_can_wait_too():
    backlog, (loud, loud_too) = RequestBacklog(), two_peers()
    assert waiting_mb(backlog, loud, ALL_MB) == ALL_MB // 2
    assert len(backlog.excess) == ALL_MB // 2
    assert waiting_mb(backlog, loud_too, ALL_MB) == ALL_MB // 4
    others = [Peer(number, "10.0.0.3:1", 0) for number in range(3, 20)]
    assert [waiting_mb(backlog, other, 1) for other in others[: ALL_MB // 4 - 1]] == [1] * (ALL_MB // 4 - 1)


def test_room_is_given_back_when_a_request_is_taken_and_when_it_is_dropped():
    backlog, (peer, other) = RequestBacklog(), two_peers()
    for _ in range(3):
        assert waiting_mb(backlog, peer, ALL_MB) == ALL_MB // 2
        backlog.set_slow(peer, is_slow=False)
        while backlog.waiting:
            backlog.turn([])
        assert waiting_mb(backlog, other, ALL_MB) == ALL_MB // 2
        backlog.drop(other)
        assert other not in backlog


def test_what_is_put_back_does_not_keep_what_came_with_it_and_what_no_longer_fits_is_refused():
    backlog, (peer, loud) = RequestBacklog(), two_peers()
    small = backlog.turn([cut(peer, 2)])
    backlog.put_back(small[1:])
    assert [(data, frame) for _, data, frame in backlog.turn([])] == [(b"%020d" % 1, (0, 0, 0, 20))]

    large = backlog.turn([cut(peer, ALL_MB // 2 + 1, size=MB)])
    assert len(large) == REQUESTS_A_TURN < ALL_MB // 2 + 1
    waiting_mb(backlog, loud, ALL_MB)
    backlog.put_back(large)
    assert len(backlog.excess) > 0
    assert len(backlog.waiting[peer]) + len(backlog.slow[loud]) < ALL_MB
    assert backlog.is_due


def test_what_a_lost_connection_asked_is_handed_out_still_and_its_end_is_told_once():
    backlog, (gone, slow) = RequestBacklog(), two_peers()
    backlog.set_slow(slow, is_slow=True)
    backlog.turn([cut(gone, 40), cut(slow, 1)])
    slow.closing = True  # as we cut it
    assert backlog.lost(gone)
    assert backlog.lost(slow)
    assert backlog.emptied() == []
    taken = backlog.turn([])
    assert (numbers(taken, gone), numbers(taken, slow)) == (list(range(32, 40)), [0])
    assert (backlog.emptied(), backlog.emptied()) == ([(gone, False), (slow, True)], [])
    assert not backlog.lost(gone)


def test_a_small_request_that_waits_does_not_keep_what_came_with_it():
    backlog, (peer, _) = RequestBacklog(), two_peers()
    backlog.turn([cut(peer, 33)])
    [(_, data, _)] = backlog.turn([])
    assert len(data) == 20


class History:
    """Connections that ask, read or do not, and are lost, as a seed has it; what each asked comes out once and in order."""

    def __init__(self, seed):
        self.chance, self.backlog = Random(seed), RequestBacklog()
        self.peers = [Peer(number, "10.0.0.1:1", 0) for number in range(4)]
        self.asked = dict.fromkeys(self.peers, 0)
        self.handled = {peer: [] for peer in self.peers}
        self.gone, self.ended = set(), []

    def step(self):
        there = [peer for peer in self.peers if peer not in self.gone]
        peer = self.chance.choice(there or self.peers)
        match self.chance.choice(("ask", "ask", "ask", "slow", "reads", "lose", "turn", "turn")) if there else "turn":
            case "ask":
                brought = [each for each in there if each is peer or self.chance.random() < 0.3]
                self.turn([self.bring(each) for each in brought])
            case "slow":
                self.backlog.set_slow(peer, is_slow=True)
            case "reads":
                self.backlog.set_slow(peer, is_slow=False)
            case "lose" if self.chance.random() < 0.2:
                self.gone.add(peer)
                if not self.backlog.lost(peer):
                    self.ended.append(peer)
            case _:
                self.turn([])

    def bring(self, peer):
        count = self.chance.randint(1, 8)
        self.asked[peer] += count
        return cut(peer, count, first=self.asked[peer] - count)

    def turn(self, brought):
        taken = self.backlog.turn(brought)
        assert len(taken) < ALL_FEW + FEW
        full = {peer for peer in self.peers if peer not in self.gone and self.chance.random() < 0.2}
        waits = []
        for peer, data, frame in taken:
            if (peer in full and self.chance.random() < 0.7) or peer in {each for each, _, _ in waits}:
                waits.append((peer, data, frame))
            else:
                self.handled[peer] += numbers([(peer, data, frame)], peer)
        self.backlog.put_back(waits)
        self.ended += [peer for peer, _ in self.backlog.emptied()]


FEW, ALL_FEW = 3, 7


@pytest.mark.parametrize("seed", range(200))
def test_whatever_connections_do_each_request_is_handled_once_and_in_order(seed):
    history = History(seed)
    history.backlog.requests_a_turn, history.backlog.all_requests_a_turn = FEW, ALL_FEW
    for _ in range(60):
        history.step()
    for peer in history.peers:
        history.backlog.set_slow(peer, is_slow=False)
    while history.backlog.is_due:
        history.turn([])
    assert history.handled == {peer: list(range(count)) for peer, count in history.asked.items()}
    assert set(history.ended) == history.gone
    assert len(history.ended) == len(history.gone), "each is told once"
    assert (history.backlog.waiting_bytes, [peer.waiting_bytes for peer in history.peers]) == (0, [0] * 4)
