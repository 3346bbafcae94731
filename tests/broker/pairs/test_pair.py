"""A master acknowledges, and shows, only what every member has that may take over; who joins and leaves does so in a safe order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.pairs import pair
from halfmoon.broker.pairs.lease import Lease
from halfmoon.broker.pairs.pair import LOST_MS
from halfmoon.client.settings import ProducerSettings
from halfmoon.store.log.kept import EVERYTHING
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import GREETING, HELLO, NOBODY, REPORT, REPORTS, WHOLE_LOG
from tests.broker.batch import Driver, body_of, piece
from tests.broker.copies.slave import Port
from tests.broker.pairs.test_lease import ERROR, LEASE_MS, Shelf, begin
from tests.broker.talk import Talk, send_header

ME, YOU, THEY = "a" * 32, "b" * 32, "c" * 32
FOLLOWER_MS = 1000


class Master(Talk):
    """The master of a pair, the store of its lease, and the port where followers copy."""

    def __init__(self, slave_timeout_ms: int | None = FOLLOWER_MS, copies_min: int = 1) -> None:
        self.shelf = Shelf()
        disk = SimDisk(Random(1), write_back=0)
        super().__init__("", disk=disk, slave_timeout_ms=slave_timeout_ms, lease_ms=LEASE_MS, copies_min=copies_min)

    def open(self) -> None:
        """Take the lease, and serve."""
        self.opaque = 0
        self.lease = Lease(ME, "c/b", "a:1", LEASE_MS, self.instant.steady)
        self.keep()
        self.broker = Broker(self.settings, self.store_settings, self.disk, Random(1), self.instant, None, self.lease)
        self.begin(self.broker)
        self.port = Port(self)
        self.pair = self.broker.copies.pair
        self.port.core.on_copied = self.turn
        self.send()  # creates its queue

    def keep(self) -> None:
        """Let the lease take its steps, and the pair look at it."""
        self.shelf.ms = int(self.instant.steady)
        self.shelf.run(self.lease)

    def look(self) -> None:
        """Let the pair look, the lease write what that wants, and the pair look again."""
        self.port.turn()
        self.keep()
        self.port.turn()

    def pass_ms(self, ms: int) -> None:
        """Let time pass in which the lease is renewed."""
        for _ in range(ms // 100):
            self.port.wait(100)
            self.keep()
        self.port.turn()

    @property
    def end(self) -> int:
        """The end of the log."""
        return int(self.broker.store.end_offset)

    def follow(self, peer: int = 1, member: str = YOU, *, offset: int = WHOLE_LOG, epoch: int = 1) -> None:
        """Connect a follower."""
        self.port.connect(peer)
        self.port.core.feed(peer, REPORT.pack(GREETING) + HELLO.pack(bytes.fromhex(member), epoch, offset, 0))
        self.port.turn()

    def report(self, peer: int = 1, *, offset: int | None = None, states: int | None = None, stamp: int = 0) -> None:
        """Let a follower report: all that it was sent, unless other numbers are given."""
        slave = self.port.core.slaves[peer]
        states = slave.states_sent if states is None else states
        self.port.core.feed(peer, REPORTS.pack(self.end if offset is None else offset, states, stamp))
        self.port.turn()

    def complete(self) -> None:
        """Let a follower join."""
        self.follow()
        self.report()
        self.look()
        assert self.pair.is_complete

    def post_one(self) -> int:
        """Send a message, and return its opaque."""
        opaque: int = self.post(send_header("T"), b"x")
        self.turn()
        return opaque

    def code(self, opaque: int) -> int | None:
        """Return the code of the answer to a request; None: there is none yet."""
        self.turn()
        answer: Any = self.answer(opaque)
        return None if answer is None else int(answer.code)


@pytest.fixture
def master() -> Master:
    return Master()


def test_alone_it_waits_for_nobody(master: Master) -> None:
    assert master.code(master.post_one()) == 0
    assert (master.pair.waited_for, master.pair.copied_states, master.pair.is_complete) == (frozenset(), EVERYTHING, False)


def test_a_follower_that_has_all_is_named_and_from_then_on_waited_for(master: Master) -> None:
    master.complete()
    assert master.shelf.record.in_sync == (ME, YOU)
    sent = master.post_one()
    assert master.code(sent) is None
    master.look()
    master.report()
    assert master.code(sent) == 0


def test_what_the_follower_lacks_is_not_visible(master: Master) -> None:
    master.complete()
    [queue] = [queue for (topic, _), queue in master.broker.store.queues.items() if topic == "T"]
    shown = queue.max_offset
    master.post_one()
    assert queue.max_offset == shown
    master.look()
    master.report()
    assert queue.max_offset == shown + 1


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_piece_of_a_batch_is_stored_once_the_follower_has_it(master: Master, is_repeated: bool) -> None:
    Driver(master).stored(0, "a", "one", topic="T")
    master.complete()
    opaque = master.post(piece(1), body_of("two"))
    if is_repeated:
        opaque = master.post(piece(1), body_of("two"))
    master.turn()
    master.port.turn()
    assert master.code(opaque) is None
    master.report()
    assert master.code(opaque) == 0


def test_replies_wait_for_a_follower_before_the_record_names_it(master: Master) -> None:
    master.follow()
    master.report(offset=0, states=0)
    sent = master.post_one()
    assert master.pair.waited_for == {YOU}
    master.look()
    assert master.shelf.record.in_sync == (ME,), "it lacks what was answered before"
    assert master.code(sent) is None
    master.report()
    assert master.code(sent) == 0
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_follower_that_lacks_a_table_does_not_join(master: Master) -> None:
    master.follow()
    master.report(states=0)
    master.look()
    assert not master.pair.is_complete
    master.report()
    master.look()
    assert master.pair.is_complete


def test_a_follower_that_lacks_much_is_not_waited_for(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "NEAR_BYTES", 1)
    master.follow()
    master.report(offset=0, states=0)
    assert master.pair.waited_for == frozenset()
    assert master.code(master.post_one()) == 0


def test_a_follower_that_is_lost_while_it_is_about_to_be_named_is_waited_for_until_it_is_not(master: Master) -> None:
    master.follow()
    master.report()
    step = begin(master.lease, master.shelf)  # names it
    master.port.core.lost(1, master.instant)
    master.port.turn()
    sent = master.post_one()
    assert master.code(sent) is None
    master.lease.done(ERROR, master.lease._next_at)
    master.port.turn()
    assert master.code(sent) is None, "it may be named: who takes the lease then has the message"
    master.pass_ms(LOST_MS + 600)
    assert master.shelf.record.in_sync == (ME,)
    assert master.code(sent) == 0
    assert master.shelf.carry_out(step).version is None


def test_a_follower_stays_wanted_while_the_write_that_names_it_is_under_way(master: Master) -> None:
    master.follow()
    master.report()
    step = begin(master.lease, master.shelf)
    for _ in range(3):
        master.port.turn()
    master.lease.done(master.shelf.carry_out(step), master.instant.steady)
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_lost_follower_is_waited_for_until_the_record_names_it_no_more(master: Master) -> None:
    master.complete()
    sent = master.post_one()
    master.port.core.lost(1, master.instant)
    master.port.wait(LOST_MS)
    master.port.turn()
    assert master.code(sent) is None
    assert master.shelf.record.in_sync == (ME, YOU), "nothing was written yet"
    master.look()
    assert master.shelf.record.in_sync == (ME,)
    assert master.code(sent) == 0


def test_a_follower_that_comes_back_soon_stays_in_the_pair(master: Master) -> None:
    master.complete()
    master.port.core.lost(1, master.instant)
    master.pass_ms(LOST_MS - 100)
    master.follow(2, offset=master.end)
    master.report(2)
    master.pass_ms(LOST_MS)
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_silent_follower_leaves_only_if_it_lacks_something(master: Master) -> None:
    master.complete()
    master.pass_ms(2 * FOLLOWER_MS)
    assert master.pair.is_complete
    sent = master.post_one()
    master.pass_ms(FOLLOWER_MS + 300)
    assert master.shelf.record.in_sync == (ME,)
    assert master.code(sent) == 0


@pytest.mark.parametrize(
    ("copies_min", "after"), [(1, "goes on with one copy"), (2, "nothing new is stored until it is (copies_min=2)")]
)
def test_the_log_says_what_a_pair_that_is_not_complete_goes_on_with(
    caplog: pytest.LogCaptureFixture, copies_min: int, after: str
) -> None:
    master = Master(copies_min=copies_min)
    master.complete()
    master.port.core.lost(1, master.instant)
    master.pass_ms(LOST_MS + 600)
    assert f"the pair is not complete, and {after}: epoch=1 lost={YOU}" in caplog.text


def test_by_default_a_send_is_answered_before_its_client_gives_up_although_the_follower_is_silent() -> None:
    master = Master(None)
    assert master.broker.settings.slave_timeout_ms == 2000
    master.complete()
    sent = master.post_one()
    master.pass_ms(ProducerSettings().send_timeout_ms - 700)
    assert master.code(sent) == 0
    assert master.shelf.record.in_sync == (ME,)


def test_time_in_which_the_master_itself_did_not_run_is_no_silence_of_its_follower(master: Master) -> None:
    master.complete()
    sent = master.post_one()
    master.pass_ms(FOLLOWER_MS // 2)
    master.now += 2 * FOLLOWER_MS
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU), "the report may be there, and is read next"
    master.report()
    assert master.code(sent) == 0
    master.post_one()
    master.pass_ms(FOLLOWER_MS + 300)
    assert master.shelf.record.in_sync == (ME,)


def test_a_follower_that_lacks_something_is_looked_at_several_times_before_it_leaves(master: Master) -> None:
    master.complete()
    assert master.pair.due(master.instant.steady) == master.instant.steady + FOLLOWER_MS
    master.post_one()
    due = master.pair.due(master.instant.steady)
    assert due is not None
    assert due <= master.instant.steady + FOLLOWER_MS // 4


def test_a_follower_whose_log_is_shorter_when_it_comes_back_has_not_more_than_that(master: Master) -> None:
    master.complete()
    master.port.core.lost(1, master.instant)
    master.follow(2, offset=0)
    sent = master.post_one()
    master.report(2, offset=0)
    assert master.code(sent) is None
    master.report(2)
    assert master.code(sent) == 0


def test_a_silent_follower_that_left_is_not_taken_in_before_it_goes_on(master: Master) -> None:
    master.complete()
    master.post_one()
    master.pass_ms(FOLLOWER_MS + 300)
    assert 1 in master.port.core.slaves, "it is connected still"
    assert master.pair.waited_for == frozenset()
    master.report()
    master.report()
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_stamp_that_comes_back_renews_the_lease(master: Master) -> None:
    master.complete()
    master.port.wait(2 * master.pair.stamp_ms)
    stamp = int(master.port.core.slaves[1].stamped_at)
    master.report(stamp=stamp)
    assert int(master.lease.valid_until) == stamp + LEASE_MS - master.lease.margin_ms


def test_a_second_follower_is_not_named_as_long_as_the_first_is(master: Master) -> None:
    master.complete()
    master.follow(2, THEY)
    master.report(2)
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)
    master.port.core.lost(1, master.instant)
    master.pass_ms(LOST_MS + 200)
    for _ in range(2):
        master.report(2)
        master.look()
    assert master.shelf.record.in_sync == (ME, THEY)


def test_a_follower_of_another_epoch_is_refused(master: Master) -> None:
    master.follow(epoch=2)
    assert "epoch 2" in master.port.closed[1]


def test_a_slave_with_a_copy_of_the_masters_directory_is_refused(master: Master) -> None:
    master.follow(member=ME)
    assert "has its id" in master.port.closed[1]
    assert not master.pair.waited_for


def test_a_slave_beside_the_pair_is_not_waited_for_and_does_not_keep_a_follower_out(master: Master) -> None:
    master.follow(2, NOBODY.hex())
    master.report(2)
    master.look()
    assert (master.pair.waited_for, master.shelf.record.in_sync) == (frozenset(), (ME,))
    master.complete()
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_master_that_begins_again_gives_its_follower_time_to_come_back(master: Master) -> None:
    master.complete()
    again = pair.Pair(master.lease, master.port.core, master.broker.store, FOLLOWER_MS, LEASE_MS)
    master.port.core.pair = again
    master.port.core.lost(1, master.instant)
    master.pass_ms(LOST_MS + 200)
    assert master.shelf.record.in_sync == (ME, YOU)
    master.pass_ms(FOLLOWER_MS)
    assert master.shelf.record.in_sync == (ME,)


@pytest.mark.parametrize("member", [NOBODY.hex(), THEY, None], ids=["one of ours", "a spare", "one of Apache"])
def test_a_slave_beside_the_pair_gets_only_what_both_members_have(master: Master, member: str | None) -> None:
    master.complete()
    if member is not None:
        master.follow(2, member)
    else:
        master.port.report(master.port.connect(2), 0)
    slave, before = master.port.core.slaves[2], master.end
    assert slave.next == before
    master.post_one()
    master.port.turn()
    assert (slave.next, master.port.core.slaves[1].next) == (before, master.end)
    master.report()
    assert slave.next == master.end > before


def test_two_followers_with_one_id_are_not_waited_for_until_one_of_them_is_gone(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    master.complete()
    master.follow(2)
    for _ in range(10):
        master.report(1)
        master.report(2)
        master.pass_ms(100)
    assert (master.shelf.record.in_sync, master.pair.waited_for) == ((ME,), frozenset())
    assert caplog.text.count("two slaves have one id") == 1
    master.port.core.lost(1, master.instant)
    master.report(2)
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)


def test_a_follower_that_comes_back_before_its_old_connection_is_lost_stays_in_the_pair(master: Master) -> None:
    master.complete()
    master.pass_ms(FOLLOWER_MS)
    master.follow(2)
    master.report(2)
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)
    sent = master.post_one()
    master.look()
    assert master.code(sent) is None
    master.report(2)
    assert master.code(sent) == 0


def test_members_that_are_gone_are_forgotten_but_not_the_one_that_is_waited_for(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "KNOWN_MAX", 5)
    master.complete()
    master.port.core.lost(1, master.instant)
    for peer in range(2, 12):
        master.follow(peer, f"{peer:032x}")
        master.port.core.lost(peer, master.instant)
    assert len(master.pair._progress) <= 6
    master.follow(12)
    master.report(12)
    master.look()
    assert master.shelf.record.in_sync == (ME, YOU)
