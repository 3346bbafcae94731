"""Replies that wait for the device: in order, refused after a failed sync, timed out, and bounded."""

import pytest

from halfmoon.errors import SystemBusy
from halfmoon.instant import instant
from tests.broker.copies.slave import Port, master_lease
from tests.broker.talk import send_header


def called(log, name):
    return lambda refusal, now: log.append((name, None if refusal is None else refusal.code))


def test_with_async_flush_a_reply_waits_only_where_it_must_be_durable(talk):
    talk.held_back, log = [], []
    talk.send()
    pending = talk.broker.pending_replies
    pending.after_flush(called(log, "flushed"))
    pending.when_durable(called(log, "durable"))
    assert log == [("flushed", None)]

    talk.release()
    talk.wait(1_000)
    assert log == [("flushed", None), ("durable", None)]


def test_with_sync_flush_replies_go_out_in_the_order_of_the_log(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send()
    talk.held_back, log = [], []
    opaque = talk.post(send_header())
    talk.turn()
    pending = talk.broker.pending_replies
    assert not pending.can_reply
    for name in ("a", "b"):
        pending.after_flush(called(log, name))
    assert (log, talk.answer(opaque)) == ([], None)

    talk.release()
    talk.turn()
    assert log == [("a", None), ("b", None)]
    assert talk.answer(opaque).code == 0


def test_a_reply_with_a_deadline_is_called_once_either_way(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send()
    talk.held_back, log = [], []
    talk.post(send_header(), oneway=True)
    talk.turn()
    talk.broker.pending_replies.with_deadline(called(log, "done"), lambda lacks_copies: log.append(lacks_copies))
    talk.wait(5020)
    talk.release()
    talk.turn()
    assert log == [False], "the device is late"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_in_a_pair_a_reply_that_is_late_is_told_that_the_copy_is(make_talk, flush):
    talk = make_talk(lease=master_lease, store={"flush_disk_type": flush})
    port, log = Port(talk), []
    port.follow(port.connect(1))
    talk.post(send_header(), oneway=True)
    talk.turn()
    talk.broker.pending_replies.with_deadline(called(log, "done"), lambda lacks_copies: log.append(lacks_copies))
    talk.wait(50)  # the device has it then
    talk.broker.pending_replies.tick(instant(talk.now + 5_020, talk.instant.steady + 5_020))
    assert log == [True]


def test_too_many_are_refused(talk):
    talk.broker.pending_replies.waiting_max = 0
    with pytest.raises(SystemBusy):
        talk.broker.pending_replies.check_room()


def test_once_the_store_has_failed_a_reply_that_must_be_durable_is_refused(talk):
    log = []
    talk.send()
    talk.broker.store.health.fail("a sync failed")
    talk.broker.pending_replies.when_durable(called(log, "durable"))
    talk.turn()
    assert log == [("durable", 14)]
