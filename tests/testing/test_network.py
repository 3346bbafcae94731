"""The simulated network keeps TCP's promises and breaks everything else."""

from __future__ import annotations

import pytest

from halfmoon.errors import ConnectFailed
from halfmoon.testing.network import End, Network
from halfmoon.testing.timeline import Timeline


class Side:
    """What one side of a connection received."""

    end: End

    def __init__(self) -> None:
        self.data = b""
        self.pieces: list[bytes] = []
        self.closed = False

    def take(self, end: End) -> None:
        self.end = end
        end.on_data, end.on_closed = self._data, self._closed

    def _data(self, data: bytes) -> None:
        assert not self.closed
        self.pieces.append(data)
        self.data += data

    def _closed(self) -> None:
        self.closed = True


def pair(seed: int) -> tuple[Timeline, Network, Side, Side]:
    timeline = Timeline(seed)
    network = Network(timeline)
    near, far = Side(), Side()
    network.listen("b:1", far.take)

    def connected(found: End | ConnectFailed) -> None:
        assert isinstance(found, End)
        near.take(found)

    network.connect("a", "b:1", connected)
    timeline.run(ms=5)
    return timeline, network, near, far


@pytest.mark.parametrize("seed", range(30))
def test_bytes_arrive_in_order_once_and_whole_however_they_are_cut(seed: int) -> None:
    timeline, _, near, far = pair(seed)
    sent = [bytes([i]) * (i + 1) for i in range(40)]
    for piece in sent:
        near.end.send([piece])
    timeline.run(ms=50)
    assert far.data == b"".join(sent)


def test_pieces_are_sometimes_joined_and_sometimes_cut() -> None:
    sizes = set()
    for seed in range(20):
        timeline, _, near, far = pair(seed)
        for _ in range(10):
            near.end.send([b"x" * 10])
        timeline.run(ms=50)
        sizes |= {len(piece) for piece in far.pieces}
    assert any(size < 10 for size in sizes)
    assert any(size > 10 for size in sizes)


def test_closing_tells_the_other_side_after_everything_arrived() -> None:
    timeline, _, near, far = pair(3)
    near.end.send([b"last words"])
    near.end.close()
    timeline.run(ms=10)
    assert far.data == b"last words"
    assert far.closed
    assert not near.closed


def test_connecting_to_nobody_is_refused() -> None:
    timeline = Timeline(1)
    found: list[End | ConnectFailed] = []
    network = Network(timeline)
    network.connect("a", "b:1", found.append)
    timeline.run(ms=5)
    assert isinstance(found[0], ConnectFailed)


@pytest.mark.parametrize("seed", range(30))
def test_a_lost_connection_delivers_a_beginning_and_then_tells_both(seed: int) -> None:
    timeline, network, near, far = pair(seed)
    for i in range(10):
        near.end.send([bytes([i]) * 3])
    network.lose(near.end)
    near.end.send([b"after"])
    timeline.run(ms=20)
    assert near.closed
    assert far.closed
    assert b"".join(bytes([i]) * 3 for i in range(10)).startswith(far.data)


def test_a_cut_holds_bytes_back_until_it_heals() -> None:
    timeline, network, near, far = pair(1)
    network.cut("a", "b")
    near.end.send([b"wait"])
    timeline.run(ms=10_000)
    assert far.data == b""
    network.heal()
    timeline.run(ms=20)
    assert far.data == b"wait"


def test_without_power_nobody_is_told_until_he_writes_to_the_machine_that_is_back() -> None:
    timeline, network, near, far = pair(1)
    network.power_off("b")
    near.end.send([b"anybody"])
    timeline.run(ms=10_000)
    assert not near.closed
    assert far.data == b""
    network.power_on("b")
    timeline.run(ms=20)
    assert near.closed


def test_a_half_open_connection_is_known_to_one_side_until_the_other_writes() -> None:
    timeline, network, near, far = pair(1)
    network.half_open(far.end)
    timeline.run(ms=10)
    assert far.closed
    assert not near.closed
    near.end.send([b"x"])
    timeline.run(ms=10)
    assert near.closed


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_process_leaves_a_beginning_of_what_it_sent_and_a_closed_connection(seed: int) -> None:
    timeline, network, near, far = pair(seed)
    far.end.send([b"123", b"456"])
    far.end.send([b"789"])
    network.kill("b")
    timeline.run(ms=10)
    assert near.closed
    assert b"123456789".startswith(near.data)
