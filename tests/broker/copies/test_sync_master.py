"""A SYNC_MASTER answers once slaves have copied what is stored, and says so when they have not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.broker.settings import BrokerRole
from halfmoon.wire.headers.send import SendMessageReply
from tests.broker.batch import Driver, body_of, piece
from tests.broker.copies.slave import Port
from tests.broker.half import COMMIT, TOPIC, end_header, half_properties, stored
from tests.broker.talk import send_header

OK, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 10, 11, 12
MakeMaster = Callable[..., "Master"]


class Master:
    """A SYNC_MASTER and slaves that report when they are told to."""

    def __init__(self, talk: Any, slaves: int = 1) -> None:
        self.talk = talk
        self.talk.send()  # creates its queue
        self.port = Port(talk)
        self.port.core.on_copied = talk.turn
        for peer in range(1, slaves + 1):
            self.port.report(self.port.connect(peer), self.end)

    @property
    def end(self) -> int:
        """The end of the log."""
        return int(self.talk.broker.store.end_offset)

    def copy(self, peer: int = 1) -> None:
        """Let a slave report all that is stored."""
        self.port.turn()
        self.port.report(peer, self.end)

    def post(self, properties: str = "", topic: str = "T") -> int:
        """Send a message, let a turn pass, and return its opaque."""
        opaque: int = self.talk.post(send_header(topic, properties=properties), b"x")
        self.talk.turn()
        return opaque

    def code(self, opaque: int) -> int | None:
        """Take out the code of the answer to a request; None: there is none yet."""
        answer = self.talk.answer(opaque)
        return None if answer is None else answer.code


@pytest.fixture
def make_master(make_talk: Any) -> MakeMaster:
    def make(slaves: int = 1, **settings: Any) -> Master:
        return Master(make_talk(role=BrokerRole.SYNC_MASTER, **settings), slaves)

    return make


def test_a_send_is_answered_once_a_slave_has_copied_it(make_master: MakeMaster) -> None:
    master = make_master()
    opaque = master.post()
    assert master.code(opaque) is None
    assert len(stored(master.talk, "T")) == 2, "consumers see it, as in RocketMQ"
    master.port.turn()
    master.port.report(1, master.end - 1)
    assert master.code(opaque) is None, "a byte is missing"
    master.copy()
    assert master.code(opaque) == OK


def test_without_a_slave_a_send_is_stored_and_answered_11_at_once(make_master: MakeMaster) -> None:
    master = make_master(slaves=0)
    assert master.code(master.post()) == SLAVE_NOT_AVAILABLE
    assert len(stored(master.talk, "T")) == 2


def test_a_slave_that_does_not_copy_in_time_gives_12(make_master: MakeMaster) -> None:
    master = make_master()
    opaque = master.post()
    master.talk.wait(2_999)
    assert master.code(opaque) is None
    master.talk.wait(1)
    assert master.code(opaque) == FLUSH_SLAVE_TIMEOUT
    master.copy()
    assert master.code(opaque) is None, "it is answered once"


def test_a_slave_that_is_lost_acknowledges_nothing(make_master: MakeMaster) -> None:
    master = make_master()
    opaque = master.post()
    master.port.turn()
    master.port.core.lost(1, master.talk.instant)
    master.talk.turn()
    assert master.code(opaque) is None
    assert master.code(master.post()) == SLAVE_NOT_AVAILABLE
    master.talk.wait(3_000)
    assert master.code(opaque) == FLUSH_SLAVE_TIMEOUT


def test_a_slave_too_far_behind_is_not_waited_for(make_master: MakeMaster) -> None:
    master = make_master(slave_behind_max_bytes=1024)
    waiting = []
    while master.end - master.port.core.copied_offset < 1024:
        waiting.append(master.post())
    assert master.code(master.post()) == SLAVE_NOT_AVAILABLE
    master.copy()
    assert [master.code(opaque) for opaque in waiting[:-1]] == [OK] * (len(waiting) - 1)
    assert master.code(master.post()) is None, "it has caught up, and is waited for again"


def test_too_many_that_wait_make_room_by_11(make_master: MakeMaster) -> None:
    master = make_master()
    master.talk.broker.pending_replies.waiting_max = 2
    waiting = [master.post(), master.post()]
    assert master.code(master.post()) == SLAVE_NOT_AVAILABLE
    master.copy()
    assert [master.code(opaque) for opaque in waiting] == [OK, OK]


@pytest.mark.parametrize("slaves", [0, 1])
def test_a_send_that_does_not_wait_is_answered_at_once(make_master: MakeMaster, slaves: int) -> None:
    master = make_master(slaves)
    assert master.code(master.post("WAIT\x01false\x02")) == OK


def test_as_many_slaves_as_are_wanted_must_have_copied(make_master: MakeMaster) -> None:
    master = make_master(slaves=2, copies_wanted=3)
    opaque = master.post()
    master.copy(1)
    assert master.code(opaque) is None
    master.copy(2)
    assert master.code(opaque) == OK
    master.port.core.lost(2, master.talk.instant)
    assert master.code(master.post()) == SLAVE_NOT_AVAILABLE


def test_with_one_copy_wanted_nobody_waits(make_master: MakeMaster) -> None:
    master = make_master(slaves=0, copies_wanted=1)
    assert master.code(master.post()) == OK


def test_with_sync_flush_both_the_device_and_the_slave_are_waited_for(make_master: MakeMaster) -> None:
    master = make_master(store={"flush_disk_type": "SYNC_FLUSH"})
    master.copy()
    master.talk.held_back = []
    first = master.post()
    master.copy()
    assert master.code(first) is None, "copied, and not durable"
    master.talk.release()
    master.talk.turn()
    assert master.code(first) == OK

    second = master.post()
    assert master.code(second) is None, "durable, and not copied"
    master.copy()
    assert master.code(second) == OK

    master.talk.held_back = []
    third = master.post()
    master.copy()
    master.talk.wait(3_000)
    assert master.code(third) == FLUSH_DISK_TIMEOUT, "it was the device that was late"


def test_with_sync_flush_and_no_slave_11_comes_once_it_is_durable(make_master: MakeMaster) -> None:
    master = make_master(slaves=0, store={"flush_disk_type": "SYNC_FLUSH"})
    master.talk.held_back = []
    opaque = master.post()
    assert master.code(opaque) is None
    master.talk.release()
    master.talk.turn()
    assert master.code(opaque) == SLAVE_NOT_AVAILABLE


def test_half_messages_and_decisions_wait_like_sends(make_master: MakeMaster) -> None:
    master = make_master()
    opaque = master.post(half_properties(), TOPIC)
    assert master.talk.answer(opaque) is None
    master.copy()
    sent = master.talk.answer(opaque)
    assert sent.code == OK
    decision = master.talk.post(end_header(sent.header(SendMessageReply), COMMIT))
    master.talk.turn()
    assert master.code(decision) is None
    master.copy()
    assert master.code(decision) == OK

    other = master.post(half_properties("u2"), TOPIC)
    master.talk.wait(3_000)
    half = master.talk.answer(other)
    assert half.code == FLUSH_SLAVE_TIMEOUT
    decision = master.talk.post(end_header(half.header(SendMessageReply), COMMIT, key="u2"))
    master.talk.turn()
    master.talk.wait(3_000)
    assert master.code(decision) == OK, "a decision that is stored is answered, as RocketMQ does"


def test_a_piece_of_a_batch_waits_for_the_slave(make_master: MakeMaster) -> None:
    master = make_master(slaves=0)
    Driver(master.talk).stored(0, "a", "one", topic="T")
    master.port.report(master.port.connect(1), master.end)
    opaque = master.talk.post(piece(1), body_of("two"))
    master.talk.turn()
    assert master.code(opaque) is None
    master.copy()
    assert master.code(opaque) == OK


def test_a_send_that_is_repeated_is_answered_once_the_first_attempt_is_copied(make_master: MakeMaster) -> None:
    master = make_master()
    first = master.post("UNIQ_KEY\x01a\x02")
    again = master.post("UNIQ_KEY\x01a\x02INNER_REPEAT\x011\x02")
    assert (master.code(first), master.code(again)) == (None, None)
    assert len(stored(master.talk, "T")) == 2, "it is stored once"
    master.copy()
    assert (master.code(first), master.code(again)) == (OK, OK)
