"""The audit of transactions: states, checks, latencies, duplicates and orphans from records made by hand."""

from __future__ import annotations

import pytest

from halfmoon.spark.jobs import transactions as tx
from tests.spark.jobs.frames import at, frame, row

pytestmark = pytest.mark.slow


def half(offset, place, msg_id, store=0, topic="orders", **properties):
    found = {"PGROUP": "P_shop", "REAL_TOPIC": topic, "REAL_QID": "0", **properties}
    return row(topic=tx.HALF_TOPIC, queueOffset=offset, commitOffset=place, msgId=msg_id, store=store, sysFlag=0, properties=found)


def op(body, store=0, **properties):
    return row(topic=tx.OP_TOPIC, tags="d", body=body.encode(), store=store, properties={"TAGS": "d", **properties})


def visible(place, msg_id, store=0, topic="orders", commit=9_000):
    return row(topic=topic, msgId=msg_id, sysFlag=8, preparedTransactionOffset=place, store=store, commitOffset=commit)


def given(msg_id, store, **properties):
    return row(topic=tx.EXPIRED_TOPIC, msgId=msg_id, store=store, properties=properties)


@pytest.fixture
def audit(spark):
    def run(halves=(), ops=(), shown=(), expired=(), topics=None):
        return tx.joined(*(frame(spark, rows) for rows in (halves, ops, shown, expired)), topics=topics)

    return run


def by_id(found):
    return {one.msgId: one for one in found.collect()}


def test_each_transaction_has_its_state_and_what_led_to_it(audit):
    found = by_id(
        audit(
            [
                half(0, 100, "paid"),
                half(1, 200, "back"),
                half(2, 300, "open"),
                half(3, 400, "spent"),
                half(4, 500, "far", topic="x"),
            ],
            [op("0", 40), op("1", 70, DECIDED_BY="ada"), op("3", 900), op("4", 80)],
            [visible(100, "paid", 30)],
            [given("spent", 890, TRANSACTION_CHECK_TIMES="15", TRANSACTION_EXPIRED_REASON="15 checks brought no decision")],
            ["orders"],
        ).transactions
    )

    assert {name: (one.state, one.latencyMs) for name, one in found.items()} == {
        "paid": ("COMMITTED", 30),
        "back": ("ROLLED_BACK", 70),
        "open": ("PENDING", None),
        "spent": ("EXPIRED", 900),
        "far": ("DECIDED", 80),
    }
    assert (found["paid"].visibleCount, found["paid"].opMissing, found["paid"].topic) == (1, False, "orders")
    assert (found["back"].decidedBy, found["spent"].checks) == ("ada", 15)
    assert found["spent"].reason == "15 checks brought no decision"
    assert {one.producerGroup for one in found.values()} == {"P_shop"}


def test_copies_that_an_apache_broker_makes_at_each_check_are_one_transaction(audit):
    [one] = audit(
        [
            half(0, 100, "a"),
            half(1, 200, "a", 60_000, TRANSACTION_CHECK_TIMES="1"),
            half(2, 300, "a", 120_000, TRANSACTION_CHECK_TIMES="2"),
        ],
        [op("0", 60_000), op("1", 120_000), op("2", 130_000)],
        [visible(300, "a", 129_000)],
    ).transactions.collect()

    assert (one.state, one.halves, one.checks, one.latencyMs, one.halfOffset) == ("COMMITTED", 3, 2, 129_000, 2)


def test_an_op_record_of_an_older_copy_decides_nothing(audit):
    [one] = audit([half(0, 100, "a"), half(1, 200, "a", 50)], [op("0", 50)]).transactions.collect()

    assert (one.state, one.decided, one.latencyMs) == ("PENDING", None, None)


def test_a_resumed_transaction_that_was_rolled_back_later_is_not_expired(audit):
    [one] = audit(
        [half(0, 100, "a"), half(1, 900, "a", 500)], [op("0", 200), op("1", 700)], [], [given("a", 190)]
    ).transactions.collect()

    assert (one.state, one.reason) == ("ROLLED_BACK", None)


def test_an_op_record_may_settle_several_half_messages(audit):
    found = by_id(audit([half(0, 100, "a"), half(1, 200, "b"), half(2, 300, "c")], [op("0,2", 10)]).transactions)

    assert {name: one.state for name, one in found.items()} == {"a": "ROLLED_BACK", "b": "PENDING", "c": "ROLLED_BACK"}


def test_a_message_that_is_visible_twice_is_a_duplicate_commit(audit):
    found = audit(
        [half(0, 0, "a"), half(1, 200, "b")],
        [op("0", 9), op("1", 9)],
        [visible(0, "a", 5), visible(0, "a", 7), visible(200, "b")],
    )

    assert [(one.msgId, one.visibleCount) for one in tx.duplicates(found.transactions).collect()] == [("a", 2)]


def test_a_visible_message_without_its_op_record_is_told(audit):
    [one] = audit([half(0, 100, "a")], [], [visible(100, "a", 5)]).transactions.collect()

    assert (one.state, one.opMissing) == ("COMMITTED", True)


def test_orphans_are_told_within_what_was_read_and_not_before_or_behind_it(audit):
    found = audit(
        [half(10, 1_000, "a"), half(12, 3_000, "b")],
        [op("11", 6), op("9", 6), op("13", 6)],
        [visible(2_000, "lost", 4), visible(900, "expired", 4), visible(3_500, "newer", 4)],
    ).orphans.collect()

    assert {(one.kind, one.place, one.msgId) for one in found} == {("visible", 2_000, "lost"), ("op", 11, None)}


def test_brokers_are_told_apart(spark):
    halves = [half(0, 100, "a"), half(0, 100, "b") | {"brokerName": "broker-b"}]
    frames = (frame(spark, rows) for rows in (halves, [op("0", 5)], [], []))

    found = by_id(tx.joined(*frames).transactions)

    assert {name: one.state for name, one in found.items()} == {"a": "ROLLED_BACK", "b": "PENDING"}


def test_messages_that_are_no_commits_of_half_messages_are_no_orphans(audit):
    plain = row(topic="orders", msgId="x", sysFlag=0, preparedTransactionOffset=150)

    assert audit([half(0, 100, "a"), half(1, 200, "b")], [], [plain]).orphans.count() == 0


def test_a_body_that_names_no_half_offset_is_passed_over(audit):
    [one] = audit([half(0, 100, "a")], [op("x"), op(""), op("99999999999999999999")]).transactions.collect()

    assert one.state == "PENDING"


def test_counts_and_latencies_are_exact(audit):
    halves = [half(i, 100 * i + 100, f"m{i}") for i in range(101)]
    shown = [visible(100 * i + 100, f"m{i}", i) for i in range(101)]
    found = audit(halves, [op(str(i), 200) for i in range(101)], shown).transactions

    [count] = tx.counts(found).collect()
    [latency] = tx.latencies(found).collect()

    assert (count.producerGroup, count.topic, count.state, count["count"], count.duplicates) == (
        "P_shop",
        "orders",
        "COMMITTED",
        101,
        0,
    )
    assert count.oldest == at(0).replace(tzinfo=None)
    assert (latency.state, latency["count"], latency.latencyMs) == ("COMMITTED", 101, [50.0, 95.0, 99.0, 100.0])
