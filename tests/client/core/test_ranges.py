"""Reading ranges, the pure parts: what is asked next, what an answer says, where messages are missing."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.ranges import (
    RangeAnswer,
    RangeWindow,
    Segment,
    Selection,
    answer_of,
    looked_through,
    pause_ms,
    pull_request,
    range_request,
)
from halfmoon.errors import BadMessage, PeerError
from halfmoon.model import MessageQueue
from halfmoon.wire.command import Command
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.ranges import ReadRangeReply
from halfmoon.wire.record import encode_record
from halfmoon.wire.table import fields_of

QUEUE = MessageQueue("t", "b", 3)


def record(offset: int, body: bytes = b"x") -> bytes:
    return encode_record(
        topic="t", queue_id=3, queue_offset=offset, physical_offset=offset * 1000, body=body, properties=b"", born_ms=1,
        born_host=bytes(8), store_ms=2, store_host=bytes(8),
    )  # fmt: skip


def records(*offsets: int) -> memoryview:
    return memoryview(b"".join(map(record, offsets)))


def reply(code: int, reached: int, low: int = 0, high: int = 100) -> Command:
    header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=reached, min_offset=low, max_offset=high)
    return Command(code=code, flag=1, fields=fields_of(header))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_brokers_answer_and_in_which_order_each_offset_is_handed_on_once_and_in_order(seed: int):
    random = Random(seed)
    begin = random.randrange(50)
    end = begin + random.randrange(300)
    window = RangeWindow(begin, end, random.randrange(1, 40), random.randrange(1, 9))
    asked: list[Segment] = []
    answered: dict[int, int] = {}
    handed: list[int] = []
    while not window.done:
        while random.random() < 0.8 and (part := window.ask()) is not None:
            asked.append(part)
        if asked and random.random() < 0.9:
            part = asked.pop(random.randrange(len(asked)))
            answered[part.begin] = random.randrange(part.begin + 1, part.end + 1)
            window.answered(part.begin, answered[part.begin])
        if window.head in answered:
            head = window.head
            handed += range(head, answered.pop(head))
            window.handed_on(head)
        if random.random() < 0.02:  # the connection is gone
            asked.clear()
            answered.clear()
            window.again()

    assert handed == list(range(begin, end))
    assert window.ask() is None


def test_no_more_parts_than_allowed_are_under_way_and_leftovers_come_first():
    window = RangeWindow(0, 100, 10, 3)
    assert [window.ask() for _ in range(4)] == [(0, 10), (10, 20), (20, 30), None]

    window.answered(10, 12)

    assert (window.ask(), window.ask()) == ((12, 20), None)


def test_reading_on_behind_a_gap_forgets_what_was_asked_of_it():
    window = RangeWindow(0, 100, 10, 3)
    window.ask()

    window.again(57)

    assert (window.head, window.ask()) == (57, (57, 67))


def test_an_empty_range_is_done_at_once():
    window = RangeWindow(5, 5, 1, 1)

    assert window.done
    assert window.ask() is None


def test_an_answer_covers_what_it_says_but_never_more_than_was_asked_for():
    part = Segment(10, 20)

    assert answer_of(reply(0, 15), part) == RangeAnswer(15, True, (0, 100))
    assert answer_of(reply(0, 99), part) == RangeAnswer(20, True, (0, 100))
    assert answer_of(reply(20, 12), part) == RangeAnswer(12, False, (0, 100))
    assert answer_of(reply(21, 40, low=40), part) == RangeAnswer(20, False, (40, 100))
    assert answer_of(reply(19, 10, high=10), part) == RangeAnswer(11, False, (0, 10))
    assert answer_of(reply(1, 0), part) is None


def test_an_answer_that_leads_nowhere_is_an_error_and_no_circle():
    with pytest.raises(PeerError):
        answer_of(reply(0, 10), Segment(10, 20))


@pytest.mark.parametrize(("count", "whole"), [(5, True), (4, False)])
def test_a_long_answer_is_whole_when_it_has_a_message_for_every_offset(count: int, whole: bool):
    header = ReadRangeReply(next_begin_offset=15, min_offset=0, max_offset=100, count=count)
    command = Command(code=0, flag=1, fields=fields_of(header))

    assert answer_of(command, Segment(10, 20)) == RangeAnswer(15, True, (0, 100), whole)


@pytest.mark.parametrize(("count", "passed_over"), [(5, 0), (2, 3), (0, 5)])
def test_offsets_that_a_filter_passed_over_are_no_gaps(count: int, passed_over: int):
    header = ReadRangeReply(next_begin_offset=15, min_offset=0, max_offset=100, count=count, passed_over=passed_over)
    command = Command(code=0, flag=1, fields=fields_of(header))

    assert answer_of(command, Segment(10, 20)) == RangeAnswer(15, True, (0, 100), True)


def test_an_answer_with_gaps_that_were_not_told_is_an_error():
    header = ReadRangeReply(next_begin_offset=15, min_offset=0, max_offset=100, count=2, passed_over=2)

    with pytest.raises(PeerError, match="of 5 offsets 2 are sent and 2 passed over"):
        answer_of(Command(code=0, flag=1, fields=fields_of(header)), Segment(10, 20))


def test_messages_of_a_part_lie_together_unless_some_are_missing_or_strange():
    body = records(10, 11, 12)
    size = len(body) // 3

    assert looked_through(body, Segment(10, 13)) == ([(0, 3 * size)], [])
    assert looked_through(body, Segment(11, 12)) == ([(size, 2 * size)], [])
    assert looked_through(body, Segment(8, 15)) == ([(0, 3 * size)], [(8, 10), (13, 15)])
    assert looked_through(records(10, 12), Segment(10, 13)) == ([(0, 2 * size)], [(11, 12)])
    assert looked_through(records(10, 10, 11), Segment(10, 12)) == ([(0, size), (2 * size, 3 * size)], [])
    assert looked_through(memoryview(b""), Segment(10, 12)) == ([], [(10, 12)])


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: bytes(4) + b[4:], lambda b: b"\x7f" + b[1:]])
def test_sizes_that_lead_nowhere_are_an_error(damage):
    with pytest.raises(BadMessage):
        looked_through(memoryview(damage(bytes(records(10, 11)))), Segment(10, 12))


def test_what_is_asked_of_a_broker_fits_the_part():
    pull = pull_request(QUEUE, Segment(10, 15))
    many = pull_request(QUEUE, Segment(10, 1_000))
    long = range_request(QUEUE, Segment(10, 1_000), 2**40)

    assert (pull.topic, pull.queue_id, pull.queue_offset, pull.max_msg_nums) == ("t", 3, 10, 5)
    assert many.max_msg_nums == 32
    assert (long.topic, long.queue_id, long.begin, long.end, long.max_bytes) == ("t", 3, 10, 1_000, 2**31 - 1)
    assert long.half_messages is None
    assert range_request(QUEUE, Segment(0, 1), 1, half_messages=True).half_messages is True


def test_a_selection_is_told_to_the_broker():
    told = range_request(QUEUE, Segment(0, 1), 1, selection=Selection("a||b"))

    assert (told.subscription, told.expression_type) == ("a||b", "TAG")
    assert range_request(QUEUE, Segment(0, 1), 1).subscription is None


def test_a_range_of_a_topic_of_some_age_says_so():
    assert range_request(QUEUE, Segment(0, 1), 1, born=7).topic_birth_ms == 7
    assert range_request(QUEUE, Segment(0, 1), 1).topic_birth_ms is None


def test_pauses_grow_to_a_bound():
    assert [pause_ms(n) for n in (1, 2, 3, 6, 7, 1_000)] == [100, 200, 400, 3_200, 5_000, 5_000]
