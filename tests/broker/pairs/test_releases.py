"""A release of the lease that failed, or whose answer was lost: it happens, or the master serves again, and never both."""

from __future__ import annotations

import pytest

from halfmoon.broker.pairs.lease import RETRY_MS, Lease, Outcome, Role, Step
from tests.broker.pairs.test_lease import ERROR, LEASE_MS, Shelf, begin, master, member


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def failed_release(lease: Lease, shelf: Shelf, *, happens: bool) -> Step:
    """Let a release end without an answer; return it."""
    lease.release("b", shelf.now, "it is switched")
    step = begin(lease, shelf)
    if happens:
        shelf.carry_out(step)
    lease.done(ERROR, shelf.now)
    assert lease.has_failed
    assert not lease.is_handed_over
    return step


def test_a_master_whose_release_failed_serves_again_once_a_renewal_is_written_and_the_release_never_is(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    late = failed_release(lease, shelf, happens=False)
    lease.reclaim(shelf.now)
    assert not lease.may_serve(shelf.now), "the release may be written still"
    shelf.run(lease)
    assert lease.may_serve(shelf.now)
    assert (lease.epoch, shelf.record.holder, shelf.record.address) == (1, "a", "a:1")
    assert shelf.carry_out(late) == Outcome(), "the late write finds another version"


def test_a_master_whose_release_happened_without_an_answer_never_serves_again(shelf: Shelf) -> None:
    lease, other = master(shelf, "b"), member(shelf, "b")
    failed_release(lease, shelf, happens=True)
    lease.reclaim(shelf.now)
    shelf.run(lease)
    assert (lease.role, lease.may_serve(shelf.now)) == (Role.ENDED, False)
    shelf.run(other)
    assert other.may_serve(shelf.now)


def test_a_master_whose_release_failed_ends_with_its_lease_if_no_renewal_is_written(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    failed_release(lease, shelf, happens=False)
    lease.reclaim(shelf.now)
    shelf.ms += LEASE_MS
    lease.check(shelf.now)
    assert lease.role is Role.ENDED


def test_a_release_that_failed_is_tried_again(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    failed_release(lease, shelf, happens=False)
    assert not lease.is_released
    shelf.run(lease, 2 * RETRY_MS)
    assert lease.is_handed_over
    assert (shelf.record.holder, shelf.record.address) == ("b", "")


def test_a_release_that_meets_a_late_renewal_is_tried_again(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    lease.prove(shelf.now)
    late = begin(lease, shelf)
    lease.done(ERROR, shelf.now)
    lease.release("b", shelf.now, "this process stops")
    release = begin(lease, shelf)
    shelf.carry_out(late)
    lease.done(shelf.carry_out(release), shelf.now)
    assert not lease.is_handed_over
    shelf.run(lease, 2 * RETRY_MS)
    assert (lease.is_handed_over, shelf.record.holder, shelf.record.address) == (True, "b", "")
