"""The comparison of indexes with the log, on stores that are damaged by hand."""

from __future__ import annotations

import pytest

from halfmoon.testing.cluster import Cluster
from halfmoon.testing.disk import SimDisk
from simulation.damage.rebuild import scan_log
from simulation.history import indexes_of


@pytest.fixture
def stopped() -> Cluster:
    """A cleanly stopped cluster whose broker holds a hundred messages in several files."""
    cluster = Cluster(seed=1)
    for i in range(100):
        cluster.send("orders", b"x" * 3000, queue_id=i % 4, tag=f"T{i % 3}", keys=f"k{i}")
    cluster.run(ms=1000)
    cluster.stop(cluster.brokers[0])
    return cluster


def disk_of(cluster: Cluster) -> SimDisk:
    return cluster.brokers[0].disk


def test_the_indexes_of_a_good_store_are_those_of_a_rebuild(stopped: Cluster) -> None:
    assert len(scan_log(disk_of(stopped))) == 100
    assert len(disk_of(stopped).list("commitlog")) > 1
    assert indexes_of(stopped.brokers[0]) == []


@pytest.mark.parametrize("byte", range(20))
def test_every_changed_byte_of_a_queue_entry_is_found(stopped: Cluster, byte: int) -> None:
    file = disk_of(stopped).open("consumequeue/orders/2/00000000000000000000")
    file.data[5 * 20 + byte] ^= 1
    assert any("queue ('orders', 2): offset 5" in problem for problem in indexes_of(stopped.brokers[0]))


def test_an_entry_too_many_is_found(stopped: Cluster) -> None:
    file = disk_of(stopped).open("consumequeue/orders/2/00000000000000000000")
    file.data[25 * 20 : 26 * 20] = file.data[24 * 20 : 25 * 20]
    assert any("offset 25" in problem and "does not say" in problem for problem in indexes_of(stopped.brokers[0]))


def test_a_key_entry_that_points_elsewhere_is_found(stopped: Cluster) -> None:
    (name,) = disk_of(stopped).list("index")
    file = disk_of(stopped).open(f"index/{name}")
    file.data[40 + 4 * 50 + 20 * 7 + 11] ^= 1
    problems = indexes_of(stopped.brokers[0])
    assert any("is missing" in problem for problem in problems)
    assert any("does not say" in problem for problem in problems)


def test_a_key_entry_that_no_chain_reaches_is_found(stopped: Cluster) -> None:
    (name,) = disk_of(stopped).list("index")
    file = disk_of(stopped).open(f"index/{name}")
    file.data[40 : 40 + 4 * 50] = bytes(4 * 50)
    assert any("is in no chain" in problem for problem in indexes_of(stopped.brokers[0]))


@pytest.mark.parametrize("byte", [0, 4, 8, 30, 90, 2000])
def test_a_damaged_record_is_stepped_over_to_the_next_one(stopped: Cluster, byte: int) -> None:
    records = scan_log(disk_of(stopped))
    file = disk_of(stopped).open("commitlog/00000000000000000000")
    place = records[5].physical_offset
    file.data[place + byte] ^= 1
    found = scan_log(disk_of(stopped))
    assert found == records[:5] + records[6:]
    assert any(f"({place}, " in problem and "does not say" in problem for problem in indexes_of(stopped.brokers[0]))


def test_two_damaged_records_in_a_row_are_stepped_over(stopped: Cluster) -> None:
    records = scan_log(disk_of(stopped))
    file = disk_of(stopped).open("commitlog/00000000000000000000")
    for record in records[5:7]:
        file.data[record.physical_offset + 2000] ^= 1
    assert scan_log(disk_of(stopped)) == records[:5] + records[7:]


def test_a_damaged_record_at_the_end_of_a_file_is_stepped_over(stopped: Cluster) -> None:
    records = scan_log(disk_of(stopped))
    file = disk_of(stopped).open("commitlog/00000000000000000000")
    last = max(i for i, record in enumerate(records) if record.physical_offset < file.size)
    file.data[records[last].physical_offset + 2000] ^= 1
    assert scan_log(disk_of(stopped)) == records[:last] + records[last + 1 :]
