"""One master at a time, and only one that has everything: each rule of the lease, and each odd outcome of its store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from halfmoon.broker.pairs.lease import POLL_MS, RETRY_MS, Lease, Outcome, Role, Step
from halfmoon.broker.pairs.record import LeaseRecord, encode_record
from halfmoon.instant import Steady

LEASE_MS, MARGIN_MS = 6000, 600
ERROR = Outcome(error="no answer")


class Shelf:
    """The store of a lease, and the time."""

    def __init__(self) -> None:
        self.text: bytes | None = None
        self.version, self.ms = 0, 1000

    @property
    def now(self) -> Steady:
        return Steady(self.ms)

    @property
    def record(self) -> LeaseRecord:
        assert self.text is not None
        found: LeaseRecord = msgspec.json.decode(self.text, type=LeaseRecord)
        return found

    def put(self, **values: Any) -> None:
        """Replace the record, as another does."""
        before = {} if self.text is None else msgspec.to_builtins(self.record)
        self.text, self.version = encode_record(msgspec.convert(before | values, LeaseRecord)), self.version + 1

    def carry_out(self, step: Step) -> Outcome:
        version = str(self.version) if self.text is not None else None
        if step.text is None:
            return Outcome(self.text, version)
        if step.expected != version:
            return Outcome()
        self.text, self.version = step.text, self.version + 1
        return Outcome(version=str(self.version))

    def run(self, lease: Lease, ms: int = 0) -> None:
        """Let a lease take its steps for a time; every call is answered at once."""
        until = self.ms + ms
        while True:
            while (step := lease.step(self.now)) is not None:
                lease.done(self.carry_out(step), self.now)
            due = lease.due(self.now)
            if due is None or due > Steady(until):
                break
            self.ms = max(self.ms + 1, int(due))
        self.ms = until


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def member(shelf: Shelf, name: str, **values: Any) -> Lease:
    return Lease(name, "c/b", f"{name}:1", LEASE_MS, shelf.now, **values)


def master(shelf: Shelf, *others: str) -> Lease:
    """Return a master; ``others`` are in sync."""
    lease = member(shelf, "a")
    shelf.run(lease)
    if others:
        lease.want(("a", *others), shelf.now)
        shelf.run(lease)
    assert lease.role is Role.MASTER
    return lease


def begin(lease: Lease, shelf: Shelf) -> Step:
    """Return the next call that is not a read."""
    while True:
        step = lease.step(shelf.now)
        assert step is not None
        if step.text is not None:
            return step
        lease.done(shelf.carry_out(step), shelf.now)


# ---------------------------------------------------------------- who becomes the master


def test_a_copy_of_the_masters_directory_takes_nothing_once_it_has_seen_the_other_renew(shelf: Shelf) -> None:
    lease = master(shelf)
    copy = member(shelf, "a", last_epoch=1, was_master=True)
    for _ in range(4):
        shelf.run(copy)
        assert copy.role is Role.NONE
        shelf.run(lease, LEASE_MS // 3)
    shelf.run(copy)
    assert copy.has_namesake
    shelf.run(copy, 3 * LEASE_MS)
    assert copy.role is Role.NONE, "the master is lost, and this copy lacks what it acknowledged"


def test_a_member_that_comes_back_takes_its_own_lease_although_a_write_of_its_last_life_comes_late(shelf: Shelf) -> None:
    master(shelf)
    again = member(shelf, "a", last_epoch=1, was_master=True)
    shelf.run(again)
    shelf.put(renewal=7)
    shelf.run(again, 2 * LEASE_MS)
    assert (again.role, again.epoch, again.has_namesake) == (Role.MASTER, 2, False)


def test_the_first_member_makes_the_record_and_is_alone_in_it(shelf: Shelf) -> None:
    lease = master(shelf)
    assert (shelf.record.epoch, shelf.record.holder, shelf.record.in_sync) == (1, "a", ("a",))
    assert (lease.epoch, lease.others, lease.problem) == (1, frozenset(), None)


def test_the_last_master_makes_a_new_record_with_a_higher_epoch_and_a_copy_makes_none(shelf: Shelf) -> None:
    copy = member(shelf, "b", last_epoch=7)
    shelf.run(copy, 10 * LEASE_MS)
    assert shelf.text is None
    assert "start the last master" in str(copy.problem)
    shelf.run(member(shelf, "a", last_epoch=7, was_master=True))
    assert (shelf.record.holder, shelf.record.epoch) == ("a", 8)


def test_a_restored_backup_makes_the_record_where_there_is_none_and_says_what_to_do_where_there_is_one(shelf: Shelf) -> None:
    backup = member(shelf, "d", last_epoch=3, is_restored=True)
    shelf.run(backup, ms=100)
    assert (backup.role, shelf.record.holder, shelf.record.epoch) == (Role.MASTER, "d", 4)

    shelf.put(holder="a", address="a:1", in_sync=("a", "b"), epoch=7)
    beside = member(shelf, "e", last_epoch=3, is_restored=True)
    shelf.run(beside, ms=LEASE_MS - 1)
    assert (beside.role, beside.problem) == (Role.FOLLOWER, None)
    shelf.run(beside, ms=2 * POLL_MS)
    assert "a restored backup, and the record is that of the master of epoch 7, which is silent" in (beside.problem or "")
    shelf.text = None
    shelf.run(beside, ms=10 * LEASE_MS)
    assert shelf.text is None, "the record is removed only while no member runs"


def test_a_member_that_has_seen_another_master_makes_no_record_when_that_is_removed(shelf: Shelf) -> None:
    master(shelf)
    copy = member(shelf, "b")
    shelf.run(copy)
    shelf.text = None
    shelf.run(copy, 10 * LEASE_MS)
    assert shelf.text is None
    assert copy.role is Role.NONE


def test_only_a_member_in_sync_takes_over_and_is_then_alone(shelf: Shelf) -> None:
    master(shelf, "b")
    other, third = member(shelf, "b"), member(shelf, "c")
    shelf.run(third, LEASE_MS + POLL_MS)
    assert third.role is Role.FOLLOWER
    assert "may lack acknowledged messages" in str(third.problem)
    shelf.run(other, LEASE_MS)
    assert (other.role, shelf.record.epoch, shelf.record.in_sync) == (Role.MASTER, 2, ("b",))


def test_nobody_takes_over_before_it_has_seen_the_same_record_for_the_longer_of_both_leases(shelf: Shelf) -> None:
    master(shelf, "b")
    shelf.put(lease_ms=9000)
    other = member(shelf, "b")
    shelf.run(other, 8999)
    assert other.role is Role.FOLLOWER
    shelf.run(other, 1)
    assert other.role is Role.MASTER


def test_each_renewal_begins_the_wait_anew(shelf: Shelf) -> None:
    master(shelf, "b")
    other = member(shelf, "b")
    for renewal in range(5, 9):
        shelf.run(other, LEASE_MS - 1)
        shelf.put(renewal=renewal)
    shelf.run(other, LEASE_MS - 1)
    assert other.role is Role.FOLLOWER


def test_a_promise_keeps_a_follower_from_taking_over_for_the_masters_lease(shelf: Shelf) -> None:
    master(shelf, "b")
    shelf.put(lease_ms=2 * LEASE_MS)
    other = member(shelf, "b")
    shelf.run(other, LEASE_MS)
    other.promise(shelf.now)
    shelf.run(other, 2 * LEASE_MS - 1)
    assert other.role is Role.FOLLOWER
    shelf.run(other, 1)
    assert other.role is Role.MASTER


def test_a_log_that_may_lack_its_end_leaves_the_lease_to_the_other_member_until_it_has_followed(shelf: Shelf) -> None:
    master(shelf, "b")
    lease = member(shelf, "b", is_whole=False)
    shelf.run(lease, 3 * LEASE_MS)
    assert lease.role is Role.FOLLOWER
    assert "power loss" in str(lease.problem)
    lease.promise(shelf.now)
    shelf.run(lease, LEASE_MS)
    assert lease.role is Role.MASTER


def test_a_log_that_may_lack_its_end_goes_on_if_no_other_member_is_in_sync(shelf: Shelf) -> None:
    master(shelf)
    again = member(shelf, "a", last_epoch=1, was_master=True, is_whole=False)
    shelf.run(again, LEASE_MS)
    assert (again.role, again.epoch) == (Role.MASTER, 2)


def test_an_epoch_is_higher_than_all_that_the_log_knows(shelf: Shelf) -> None:
    master(shelf)
    again = member(shelf, "a", last_epoch=9, was_master=True)
    shelf.run(again, LEASE_MS)
    assert shelf.record.epoch == 10


# ---------------------------------------------------------------- how long it serves


def test_a_master_serves_until_a_margin_before_the_end_of_its_lease(shelf: Shelf) -> None:
    lease = master(shelf)
    sent = shelf.ms
    assert lease.valid_until == Steady(sent + LEASE_MS - MARGIN_MS)
    assert lease.may_serve(Steady(sent + LEASE_MS - MARGIN_MS - 1))
    assert not lease.may_serve(Steady(sent + LEASE_MS - MARGIN_MS))
    lease.check(Steady(sent + LEASE_MS - MARGIN_MS))
    assert lease.role is Role.ENDED


def test_a_lease_counts_from_when_its_renewal_was_sent_not_answered(shelf: Shelf) -> None:
    lease = master(shelf)
    shelf.ms += LEASE_MS // 3
    sent, step = shelf.ms, begin(lease, shelf)
    shelf.ms += 1000
    lease.done(shelf.carry_out(step), shelf.now)
    assert lease.valid_until == Steady(sent + LEASE_MS - MARGIN_MS)


def test_a_take_that_is_answered_too_late_is_over_at_once(shelf: Shelf) -> None:
    lease = member(shelf, "a")
    step = begin(lease, shelf)
    shelf.ms += LEASE_MS
    lease.done(shelf.carry_out(step), shelf.now)
    assert lease.role is Role.ENDED
    assert lease.due(shelf.now) is None


def test_echoes_of_the_only_other_member_renew_while_the_store_is_down(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    for _ in range(10):
        while (step := lease.step(shelf.now)) is not None:
            assert step.text is None or step.expected is not None
            shelf.ms += RETRY_MS
            lease.done(ERROR, shelf.now)
        lease.echoed("b", shelf.now)
        shelf.ms += LEASE_MS // 2
    assert lease.role is Role.MASTER
    shelf.ms += LEASE_MS
    lease.check(shelf.now)
    assert lease.role is Role.ENDED


def test_echoes_of_a_member_that_is_not_in_sync_renew_nothing(shelf: Shelf) -> None:
    alone, lease = master(shelf), master(Shelf(), "b")
    for each, name in ((alone, "b"), (lease, "c")):
        until = each.valid_until
        each.echoed(name, until)
        assert each.valid_until == until


def test_a_master_ends_when_another_has_the_lease_or_the_record_is_gone(shelf: Shelf) -> None:
    for text in (None, b"other"):
        shelf = Shelf()
        lease = master(shelf)
        if text is None:
            shelf.text = None
        else:
            shelf.put(epoch=2, holder="b", in_sync=("b",))
        shelf.run(lease, LEASE_MS // 3)
        assert lease.role is Role.ENDED


def test_a_record_that_cannot_be_read_is_left_alone_until_the_lease_is_over(shelf: Shelf) -> None:
    lease, good = master(shelf), shelf.text
    shelf.text, shelf.version = b"{}", shelf.version + 1
    shelf.run(lease, LEASE_MS // 2)
    assert "damaged" in str(lease.problem)
    assert (shelf.text, lease.role) == (b"{}", Role.MASTER)
    shelf.text, shelf.version = good, shelf.version + 1
    shelf.run(lease, POLL_MS)
    assert lease.problem is None
    assert lease.may_serve(Steady(shelf.ms + LEASE_MS // 2))


# ---------------------------------------------------------------- writes of unknown outcome


def test_a_write_without_an_answer_that_happened_counts_from_when_it_was_sent(shelf: Shelf) -> None:
    lease = master(shelf)
    shelf.ms += LEASE_MS // 3
    sent = shelf.ms
    shelf.carry_out(begin(lease, shelf))
    shelf.ms += 1500
    lease.done(ERROR, shelf.now)
    shelf.run(lease, RETRY_MS)
    assert lease.role is Role.MASTER
    assert lease.valid_until >= Steady(sent + LEASE_MS - MARGIN_MS)


def test_of_a_record_that_is_sent_twice_the_first_time_counts(shelf: Shelf) -> None:
    lease = master(shelf)
    shelf.ms += LEASE_MS // 3
    sent, late = shelf.ms, begin(lease, shelf)
    lease.done(ERROR, shelf.now)
    shelf.ms += RETRY_MS
    read = lease.step(shelf.now)
    assert read == Step()
    lease.done(shelf.carry_out(read), shelf.now)
    again = lease.step(shelf.now)
    assert again == late
    shelf.carry_out(late)
    lease.done(ERROR, shelf.now)
    shelf.ms += RETRY_MS
    read = lease.step(shelf.now)
    assert read == Step()
    lease.done(shelf.carry_out(read), shelf.now)
    assert lease.valid_until == Steady(sent + LEASE_MS - MARGIN_MS)


def test_a_member_that_a_write_may_have_added_is_waited_for_until_the_record_has_another_version(shelf: Shelf) -> None:
    lease = master(shelf)
    lease.want(("a", "b"), shelf.now)
    assert lease.others == {"b"}, "it is about to be written"
    late = begin(lease, shelf)
    assert lease.others == {"b"}
    lease.done(ERROR, shelf.now)
    lease.want(("a",), shelf.now)
    shelf.ms += RETRY_MS
    without = begin(lease, shelf)
    lease.done(ERROR, shelf.now)
    assert without.text != late.text
    assert lease.others == {"b"}, "the first write may still happen"
    shelf.ms += RETRY_MS
    shelf.run(lease)
    assert (lease.others, shelf.record.in_sync) == (frozenset(), ("a",))
    assert shelf.carry_out(late) == Outcome(), "it can happen no more"


def test_a_member_that_a_write_may_have_removed_is_waited_for_until_that_is_sure(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    lease.want(("a",), shelf.now)
    shelf.carry_out(begin(lease, shelf))
    assert lease.others == {"b"}
    lease.done(ERROR, shelf.now)
    assert lease.others == {"b"}
    shelf.run(lease, RETRY_MS)
    assert lease.others == frozenset()


def test_a_write_that_came_too_late_is_known_not_to_have_happened(shelf: Shelf) -> None:
    lease = master(shelf)
    lease.want(("a", "b"), shelf.now)
    step = begin(lease, shelf)
    shelf.put(renewal=99)
    lease.done(shelf.carry_out(step), shelf.now)
    shelf.run(lease)
    assert (shelf.record.renewal, shelf.record.in_sync) == (100, ("a", "b"))


# ---------------------------------------------------------------- release


def test_a_released_lease_is_taken_at_once_by_whom_it_was_released_to(shelf: Shelf) -> None:
    lease, other = master(shelf, "b"), member(shelf, "b")
    shelf.run(other)
    other.promise(shelf.now)
    lease.release("b", shelf.now, "it stops")
    assert not lease.may_serve(shelf.now)
    assert not lease.is_released
    shelf.run(lease)
    assert lease.is_released
    assert (shelf.record.holder, shelf.record.address) == ("b", "")
    shelf.run(other, POLL_MS)
    assert (other.role, other.epoch) == (Role.MASTER, 2)


def test_a_lease_is_not_released_to_who_is_not_in_sync(shelf: Shelf) -> None:
    lease = master(shelf)
    lease.release("b", shelf.now, "it stops")
    shelf.run(lease)
    assert lease.is_released
    assert shelf.record.holder == "a"


def test_a_follower_reads_the_record_at_once_when_something_has_happened(shelf: Shelf) -> None:
    master(shelf)
    other = member(shelf, "b")
    shelf.run(other)
    assert other.step(shelf.now) is None
    other.look(shelf.now)
    assert other.step(shelf.now) == Step()
    assert other.is_busy
    assert other.step(shelf.now) is None, "one call at a time"


def test_only_a_follower_that_no_record_names_may_start_over(shelf: Shelf) -> None:
    first, second = member(shelf, "a"), member(shelf, "b")
    assert not second.may_start_over, "it knows no record yet"
    shelf.run(first)
    shelf.run(second, POLL_MS)
    assert (first.may_start_over, second.may_start_over) == (False, True)
    first.want(("a", "b"), shelf.now)
    shelf.run(first)
    shelf.run(second, POLL_MS)
    assert not second.may_start_over, "it may take the lease"
    first.want(("a",), shelf.now)
    shelf.run(first)
    shelf.run(second, POLL_MS)
    assert second.may_start_over
    shelf.put(holder="b", in_sync=("b",), epoch=2)
    shelf.run(second, POLL_MS)
    assert not second.may_start_over, "the record says that it is the master"
    shelf.run(first, LEASE_MS)
    assert first.role is Role.ENDED
    assert not first.may_start_over, "it begins again first"


# ---------------------------------------------------------------- a planned change while the store of the lease fails


def test_a_write_proves_that_the_lease_can_be_handed_over_and_a_failure_that_it_cannot(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    shelf.ms += 10
    lease.prove(shelf.now)
    assert lease.proof is None
    shelf.run(lease)
    assert lease.proof is True
    shelf.ms += 10
    lease.prove(shelf.now)
    begin(lease, shelf)
    lease.done(ERROR, shelf.now)
    assert lease.proof is False


def test_a_renewal_that_was_sent_before_proves_nothing_and_another_one_follows(shelf: Shelf) -> None:
    lease = master(shelf, "b")
    lease.look(shelf.now)
    step = begin(lease, shelf)
    shelf.ms += 10
    lease.prove(shelf.now)
    lease.done(shelf.carry_out(step), shelf.now)
    assert lease.proof is None
    shelf.run(lease)
    assert lease.proof is True


def test_a_lease_that_runs_out_in_a_call_that_hangs_says_that_no_answer_came(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    lease = master(shelf)
    lease.look(shelf.now)
    begin(lease, shelf)
    shelf.ms += LEASE_MS
    lease.check(shelf.now)
    assert "reason=the lease could not be renewed in time: its system did not answer" in caplog.text
