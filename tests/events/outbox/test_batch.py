"""One claim's rows on their way, with a transport that answers when it is told to: order, bounds, and what a failure stops."""

from __future__ import annotations

import threading
import time

import pytest

from halfmoon.errors import ConnectFailed, MessageIllegal, NoPermission, RequestTimeout
from halfmoon.events.outbox import batch as relay_batch
from halfmoon.events.outbox import order_key, pack
from halfmoon.events.outbox.batch import Batch
from halfmoon.events.outbox.claims import ClaimedRow
from halfmoon.model import Message


class Wire:
    """A transport that answers each message in a thread of its own; ``fails`` says with what."""

    def __init__(self, fails=None, delay_s=0.0):
        self.fails = fails or (lambda message: None)
        self.delay_s = delay_s
        self.posted, self.in_flight, self.in_flight_most = [], set(), 0
        self.together: list[frozenset[str]] = []
        self._lock = threading.Lock()

    def post(self, message, told, *, timeout_ms):
        with self._lock:
            self.posted.append(message)
            self.in_flight.add(message.msg_id)
            self.in_flight_most = max(self.in_flight_most, len(self.in_flight))
            self.together.append(frozenset(self.in_flight))
        threading.Timer(self.delay_s, self._answer, (message, told)).start()

    def _answer(self, message, told):
        with self._lock:
            self.in_flight.discard(message.msg_id)
        told(None, self.fails(message))


class Silent:
    """A transport that never answers."""

    def __init__(self):
        self.posted = []

    def post(self, message, told, *, timeout_ms):
        self.posted.append(message)


def row(seq, topic="TP", key="", *, attempts=1, error="", packed=None):
    packed = pack(Message(topic, b"")) if packed is None else packed
    return ClaimedRow(seq, f"E{seq}", topic, order_key(topic, key), packed, 0, attempts, error)


def ran(transport, rows, *, in_flight_max=100, timeout_ms=1_000, for_s=30.0, probed=()):
    batch, end = Batch(transport, rows, probed, in_flight_max=in_flight_max, timeout_ms=timeout_ms), time.monotonic() + for_s
    batch.run(end)
    return batch


def seqs(rows):
    return sorted(getattr(one, "seq", one) for one in rows)


def test_no_more_are_under_way_than_the_bound():
    wire = Wire(delay_s=0.01)

    batch = ran(wire, [row(at) for at in range(1, 31)], in_flight_max=7)

    assert len(batch.sent) == 30
    assert 1 < wire.in_flight_most <= 7


def test_rows_of_one_key_go_one_after_another_while_other_rows_go_beside_them():
    wire = Wire(delay_s=0.005)

    ran(wire, [row(at, key="abc"[at % 3]) for at in range(1, 31)])

    for key in range(3):
        mine = [f"E{at}" for at in range(1, 31) if at % 3 == key]
        assert [one.msg_id for one in wire.posted if one.msg_id in mine] == mine
        assert all(len(set(mine) & together) <= 1 for together in wire.together)
    assert wire.in_flight_most == 3


def test_a_row_that_its_broker_refuses_stops_the_later_ones_of_its_key_and_nothing_else():
    wire = Wire(lambda message: MessageIllegal("no") if message.msg_id == "E2" else None)

    batch = ran(wire, [row(1, key="a"), row(2, key="a"), row(3, key="a"), row(4, key="b"), row(5)])

    assert seqs(batch.sent) == [1, 4, 5]
    assert [(one.seq, type(error)) for one, error in batch.failed] == [(2, MessageIllegal)]
    assert seqs(batch.unsent) == [3]
    assert batch.down == {}


def test_of_a_topic_that_was_closed_one_row_goes_ahead():
    wire = Wire(lambda message: ConnectFailed("still gone"), delay_s=0.02)

    batch = ran(wire, [row(at) for at in range(1, 21)], probed={"TP"})

    assert len(wire.posted) == 1
    assert (len(batch.failed), len(batch.unsent)) == (1, 19)


def test_when_that_row_comes_through_the_others_follow_one_by_one():
    wire = Wire(delay_s=0.001)

    batch = ran(wire, [row(at) for at in range(1, 21)], probed={"TP"})

    assert [one.msg_id for one in wire.posted] == [f"E{at}" for at in range(1, 21)]
    assert (len(batch.sent), wire.in_flight_most) == (20, 1)


def test_one_failure_of_a_topic_that_works_does_not_close_it():
    wire = Wire(lambda message: ConnectFailed("one broker of two") if message.msg_id == "E9" else None)

    batch = ran(wire, [row(at) for at in range(1, 21)], in_flight_max=1)

    assert (len(batch.sent), seqs(one for one, _ in batch.failed), batch.down) == (19, [9], {})


def test_answers_that_never_come_end_the_batch_in_bounded_time(monkeypatch):
    monkeypatch.setattr(relay_batch, "GRACE_S", 0.1)
    silent, begun = Silent(), time.monotonic()

    batch = ran(silent, [row(at) for at in range(1, 11)], timeout_ms=200, in_flight_max=3)

    assert time.monotonic() - begun < 30
    assert len(silent.posted) == 3
    assert {type(error) for _, error in batch.failed} == {RequestTimeout}
    assert len(batch.failed) + len(batch.unsent) == 10


def test_nothing_is_begun_after_the_claims_time():
    wire = Wire(delay_s=0.05)

    batch = ran(wire, [row(at, key="a") for at in range(1, 51)], for_s=0.3)

    assert 1 <= len(batch.sent) < 20
    assert seqs(batch.sent) == list(range(1, len(batch.sent) + 1))
    assert seqs(batch.unsent) == list(range(len(batch.sent) + 1, 51))


def test_an_answer_that_comes_twice_counts_once():
    class Twice:
        def post(self, message, told, *, timeout_ms):
            told(None, None)
            told(None, MessageIllegal("late"))

    batch = ran(Twice(), [row(at) for at in range(1, 4)])

    assert (seqs(batch.sent), batch.failed) == ([1, 2, 3], [])


@pytest.mark.parametrize(("attempts", "error", "sent_as"), [(1, "", 1), (2, "", 2), (1, "ConnectFailed: x", 2), (9, "x", 9)])
def test_a_row_that_may_have_been_sent_before_says_so(attempts, error, sent_as):
    wire = Wire()

    ran(wire, [row(1, attempts=attempts, error=error)])

    assert wire.posted[0].attempt == sent_as


def test_a_broker_that_is_closed_for_a_while_uses_up_no_tries_of_a_row():
    """A row is put aside after so many tries of its own; an operator's closing of a broker is none of these."""
    closed, forbidden = NoPermission("the broker[a] sending message is forbidden"), NoPermission("the topic[T] is forbidden")

    assert (relay_batch.blames_the_way(closed), relay_batch.is_final(closed)) == (True, False)
    assert not relay_batch.counts(closed, topic_is_up=False)
    assert relay_batch.is_final(forbidden)
