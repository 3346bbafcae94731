"""Stuck queues: what a member reports, what a broker reports, what is not known, and what another finding explains."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.health.findings import findings
from halfmoon.errors import RequestTimeout
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import OffsetWrapper
from tests.client.core.admin.health.test_findings import NOW, ONE, group, member, said

POISON = {"failed_offset": 111, "failed_tries": 235, "failed_since_ms": NOW - 240_000, "failed_reason": "KeyError: 'price'"}


def late(unmoved_ms=None, queue=ONE):
    return {queue: OffsetWrapper(broker_offset=200, consumer_offset=110, unmoved_ms=unmoved_ms)}


def stuck(known):
    return [what for blocks, what in said(known) if blocks and "stuck" in what]


@pytest.mark.parametrize("unmoved_ms", [None, 0, 100_000])
def test_a_message_that_a_member_fails_to_consume_is_named_with_its_reason_its_tries_and_the_time(unmoved_ms):
    assert said(group({"a": member(**POISON)}, late(unmoved_ms))) == [
        (True, "Queue 0 of orders at broker-a is stuck at offset 111: KeyError: 'price', 235 tries, 4m00s.")
    ]


def test_the_facts_of_a_stuck_queue_stand_beside_its_words():
    [finding] = findings(
        group(
            {"a": member(**POISON)},
            late(100_000),
        ),
        NOW,
    )

    assert (finding.kind, finding.severity, finding.queue, finding.offset) == ("stuck", "blocked", ONE, 111)
    assert (finding.tries, finding.reason, finding.since_ms) == (235, "KeyError: 'price'", NOW - 240_000)


def test_the_remedy_of_a_stuck_queue_is_the_command_to_copy():
    known = group({"a": member(**POISON)}, late(100_000))
    known.group = "C_shop"
    [finding] = findings(known, NOW)
    assert "`halfmoon group skip C_shop orders broker-a/0 --offset 111`" in finding.do


def test_a_message_that_failed_once_or_twice_is_no_reason_yet():
    once = {**POISON, "failed_tries": 2, "failed_since_ms": NOW - 2_000}
    assert stuck(group({"a": member(**once)}, late(2_000))) == []
    assert stuck(group({"a": member(**{**once, "failed_tries": 3})}, late(2_000))) != []


def test_progress_that_stands_still_is_stuck_after_a_while_though_its_member_reports_no_failure():
    assert stuck(group({"a": member()}, late(59_999))) == []
    assert stuck(group({"a": member()}, late(60_000))) == [
        "Queue 0 of orders at broker-a is stuck at offset 110 for 1m00s: member a reports no failure."
    ]


def test_members_that_do_not_answer_are_not_said_to_report_nothing():
    assert stuck(group({"a": RequestTimeout("no answer")}, late(60_000))) == [
        "Queue 0 of orders at broker-a is stuck at offset 110 for 1m00s: no member reports why."
    ]


def test_where_the_broker_reports_nothing_and_members_no_failure_nothing_is_claimed():
    assert said(group({"a": member()}, late())) == []


def test_a_queue_that_nobody_holds_is_not_stuck_but_without_a_member():
    other = MessageQueue("orders", "broker-a", 1)
    assert said(group({"a": member(queue=other)}, late(100_000))) == [
        (True, "No member holds queue 0 of orders at broker-a, where 90 messages wait.")
    ]


def test_a_finding_that_says_why_progress_stands_still_is_the_only_one():
    hung = member(last_consume_timestamp=NOW - 300_000)
    assert [what.split(" has ")[0] for _, what in said(group({"a": hung}, late(300_000)))] == ["Member a"]


def test_many_stuck_queues_are_counted_beyond_the_first_five():
    queues = {}
    for number in range(8):
        queues |= late(60_000 + number, MessageQueue("orders", "broker-a", number))
    found = stuck(group({"a": RequestTimeout("no answer")}, queues))

    assert len(found) == 6
    assert found[0].startswith("Queue 7 ")
    assert found[-1] == "3 more queues are stuck."


def test_a_group_that_broadcasts_or_sleeps_is_not_stuck():
    known = group({"a": RequestTimeout("no answer")}, late(100_000))
    known.model = "broadcasting"
    assert stuck(known) == []
    assert stuck(group({}, late(100_000))) == []
