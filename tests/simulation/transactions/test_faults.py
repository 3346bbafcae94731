"""Faults that histories of transactions need: a disk that stops behind a certain write, a network that is knocked at again."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import ConnectFailed
from halfmoon.testing.disk import SimDisk, Stopped
from halfmoon.testing.network import End, Network
from halfmoon.testing.timeline import Timeline


@pytest.mark.parametrize(("count", "whole"), [(-1, 0), (0, 1), (2, 3)])
def test_a_disk_stops_so_many_writes_behind_one_to_a_path(count: int, whole: int) -> None:
    disk = SimDisk(Random(1))
    other, file = disk.create("commitlog/0", 4096), disk.create("transaction/checks/0", 4096)
    disk.stop_behind = ("transaction/", count)
    other.write(0, b"before")
    for number in range(whole):
        (file, other)[number % 2].write(8 * number, b"12345678")
    with pytest.raises(Stopped):
        (file, other)[whole % 2].write(8 * whole, b"12345678")
    disk.crash(power=False)
    disk.open("transaction/checks/0").write(0, b"it happens once")


def test_who_gets_no_answer_is_connected_once_the_network_is_whole() -> None:
    timeline = Timeline(1)
    network = Network(timeline)
    found: list[End | ConnectFailed] = []
    network.listen("b:1", lambda end: None)
    network.cut("a", "b")
    network.connect("a", "b:1", found.append)
    timeline.run(ms=2500)
    assert found == []
    network.heal()
    timeline.run(ms=1000)
    assert [type(one) for one in found] == [End]
