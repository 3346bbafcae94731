"""The checkers bite: each fault that is planted into a broker or disk is found by the checker that it concerns.

A fault needs its chance: each test runs a few seeds until the checker has found it.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulation.messages.history import simulate
from tests.simulation.finding import some_seed_finds
from tests.simulation.messages.planted import (
    BadIndexDisk,
    BadKeysDisk,
    ForgettingDisk,
    LyingDisk,
    UnreservedDisk,
    changing_records,
    forgetful,
    hasty,
    loose,
    offsets_beyond_the_end,
    silent,
    skipping_records,
    stubborn,
    tampered,
    wrong_offsets,
)

found = partial(some_seed_finds, simulate, range(12))


def test_a_broker_that_acknowledges_without_writing_is_found() -> None:
    assert found("lost", flush="async", kinds=(), make_broker=forgetful)


def test_a_broker_that_answers_before_the_sync_is_found() -> None:
    assert found("lost", flush="sync", kinds=("power", "slow_disk"), make_broker=hasty)


def test_a_broker_that_publishes_before_the_sync_is_found() -> None:
    assert found("unexpected: Place", flush="sync", kinds=("slow_disk",), make_broker=loose)


def test_a_broker_that_goes_on_after_a_failed_sync_is_found() -> None:
    assert found("lost", flush="sync", kinds=("failed_sync", "power"), make_broker=stubborn)


def test_a_disk_that_only_says_that_it_synced_is_found() -> None:
    assert found("lost", flush="sync", kinds=("power",), wrap_disk=LyingDisk)


def test_an_offset_that_is_answered_twice_is_found() -> None:
    assert found("offsets", flush="async", kinds=(), make_broker=tampered(wrong_offsets(-1)))


def test_a_broker_that_gives_offsets_again_after_a_loss_of_power_is_found() -> None:
    assert found("offsets", flush="async", kinds=("power",), wrap_disk=UnreservedDisk)


def test_messages_out_of_order_are_found() -> None:
    assert found("order", flush="async", kinds=(), make_broker=tampered(wrong_offsets(3)))


def test_a_record_that_changes_between_reads_is_found() -> None:
    assert found("reads", flush="async", kinds=(), make_broker=tampered(changing_records))


def test_a_hole_in_a_queue_is_found() -> None:
    assert found("offsets", flush="sync", kinds=(), make_broker=tampered(skipping_records))


def test_a_group_beyond_the_end_of_its_queue_is_found() -> None:
    assert found("consumer offsets", flush="async", kinds=(), make_broker=tampered(offsets_beyond_the_end))


def test_consumers_progress_that_is_never_saved_is_found() -> None:
    assert found("consumer offsets", flush="async", kinds=("kill",), wrap_disk=ForgettingDisk)


@pytest.mark.parametrize("disk", [BadIndexDisk, BadKeysDisk])
def test_an_index_that_differs_from_the_log_is_found(disk: type[BadIndexDisk]) -> None:
    assert found("indexes", flush="async", kinds=(), wrap_disk=disk)


def test_a_broker_that_no_name_server_knows_is_found() -> None:
    assert found("routes", flush="async", kinds=(), make_broker=silent)


def test_without_a_fault_the_same_seeds_hold() -> None:
    for seed in range(3):
        assert simulate(seed, kinds=()).problems == []
