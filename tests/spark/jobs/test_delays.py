"""The audit of delays: due times, lateness and what is missing, from records made by hand."""

from __future__ import annotations

import pytest

from halfmoon.spark.jobs import delays
from tests.spark.jobs.frames import BEGIN_MS, frame, row

pytestmark = pytest.mark.slow

LEVELS = {"": {1: 1_000, 2: 5_000, 3: 10_000}}


def parked(level, msg_id, store=0, topic="orders", times=0, place=0, broker="broker-a"):
    return row(
        topic=delays.SCHEDULE_TOPIC, queueId=level - 1, msgId=msg_id, store=store, reconsumeTimes=times, commitOffset=place,
        brokerName=broker, properties={"REAL_TOPIC": topic, "REAL_QID": "0", "DELAY": str(level)},
    )  # fmt: skip


def timer(out, msg_id, store=0, topic="orders", place=0, **more):
    found = {"REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str(BEGIN_MS + out), **more}
    return row(topic=delays.TIMER_TOPIC, msgId=msg_id, store=store, commitOffset=place, properties=found)


def delivered(msg_id, store, topic="orders", times=0, place=0, broker="broker-a"):
    return row(
        topic=topic, msgId=msg_id, store=store, reconsumeTimes=times, commitOffset=place, brokerName=broker,
        properties={"REAL_TOPIC": topic},
    )  # fmt: skip


@pytest.fixture
def audit(spark):
    def run(waits, arrived, now=1_000_000, grace=1_000, levels=LEVELS, topics=None):
        rules = delays.DelayRules(BEGIN_MS + now, grace, levels)
        return delays.audit_delays(frame(spark, waits), frame(spark, arrived), rules, topics=topics)

    return run


def by_id(found):
    return {one.msgId: one for one in found.collect()}


def test_lateness_is_the_time_between_due_and_delivered(audit):
    found = by_id(
        audit(
            [parked(1, "a"), parked(3, "b", 500), timer(7_000, "t")],
            [delivered("a", 1_002), delivered("b", 10_400), delivered("t", 7_001)],
        )
    )

    assert {name: (one.level, one.latenessMs, one.state) for name, one in found.items()} == {
        "a": (1, 2, "DELIVERED"),
        "b": (3, -100, "DELIVERED"),
        "t": (0, 1, "DELIVERED"),
    }


def test_what_waits_is_told_from_what_is_missing(audit):
    found = by_id(audit([parked(2, "late"), parked(2, "soon", 9_000), parked(2, "hardly", 3_500)], [], now=9_000))

    assert {name: one.state for name, one in found.items()} == {"late": "MISSING", "soon": "WAITING", "hardly": "WAITING"}


def test_a_message_that_comes_again_and_again_is_matched_by_its_redeliveries_and_then_in_order(audit):
    found = audit(
        [parked(1, "a", 0, times=1), parked(2, "a", 2_000, times=2), parked(1, "b", 0, place=1), parked(1, "b", 5_000, place=2)],
        [
            delivered("a", 1_001, times=1),
            delivered("a", 7_003, times=2),
            delivered("b", 1_005, place=3),
            delivered("b", 6_006, place=4),
        ],
    ).collect()

    assert sorted((one.msgId, one.reconsumeTimes, one.latenessMs) for one in found) == [
        ("a", 1, 1),
        ("a", 2, 3),
        ("b", 0, 5),
        ("b", 0, 6),
    ]


def test_a_record_that_was_stored_anew_is_no_second_message_and_a_cancelled_one_is_not_missing(audit):
    cancel = timer(9_000, "gone", TIMER_DEL_UNIQKEY="orders+no")
    found = audit(
        [timer(8_000, "t", place=1), timer(8_000, "t", 5_000, place=2), timer(9_000, "no", place=3), cancel],
        [delivered("t", 8_004)],
    )

    assert sorted((one.msgId, one.state) for one in found.collect()) == [("no", "CANCELLED"), ("t", "DELIVERED")]


def test_each_broker_has_its_own_levels(audit):
    found = by_id(
        audit(
            [parked(1, "a"), parked(1, "b", broker="broker-b"), parked(9, "c")],
            [delivered("a", 1_000), delivered("b", 1_000, broker="broker-b"), delivered("c", 1_500)],
            levels={**LEVELS, "broker-b": {1: 250}},
        )
    )

    assert {name: one.latenessMs for name, one in found.items()} == {"a": 0, "b": 750, "c": 500}


def test_of_topics_that_were_not_read_nothing_is_said(audit):
    assert audit([parked(1, "a"), parked(1, "b", topic="other")], [], topics=["orders"]).select("msgId").collect() == [("a",)]


def test_figures_by_level_are_exact_and_count_what_was_early(audit):
    waits = [parked(1, f"m{i}", place=i) for i in range(101)]
    found = audit(waits, [delivered(f"m{i}", 999 + i, place=i) for i in range(101)])

    [one] = delays.lateness(found).collect()

    assert (one.level, one["count"], one.early, one.latenessMs) == (1, 101, 1, [49.0, 94.0, 98.0, 99.0])


def test_the_text_of_the_levels_is_read_as_brokers_write_it():
    assert delays.parse_levels("1s 5s 1m 2h 1d") == {1: 1_000, 2: 5_000, 3: 60_000, 4: 7_200_000, 5: 86_400_000}
    assert delays.parse_levels("1s x 2q 3s") == {1: 1_000, 4: 3_000}
