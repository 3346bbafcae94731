"""What operators see of an outbox and do to it: figures by state, another try."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from halfmoon.events.outbox import PARKED_MS, status
from halfmoon.events.outbox.claims import CLAIM_SEEN_MAX_MS, Failure, clock_ms
from halfmoon.events.outbox.status import backlog, entries, retry
from tests.events.outbox.test_claims import claimed, ids, settle


class _Clock:
    """A database whose clock stands still."""

    def __init__(self, provider, now_ms):
        self._provider, self.now_ms = provider, now_ms

    @contextmanager
    def fresh(self, **options):
        with self._provider.fresh(**options) as rows, pytest.MonkeyPatch.context() as patch:
            patch.setattr(status, "clock_ms", lambda rows: self.now_ms)
            yield rows


def at(now_ms, provider):
    return _Clock(provider, now_ms)


def test_figures_count_rows_by_what_becomes_of_them(outbox):
    outbox.put("parked", "late", "taken", "free", now_ms=100)
    rows = claimed(outbox, count_max=3)
    failures = [Failure(rows[0].seq, "MessageIllegal: x", PARKED_MS), Failure(rows[1].seq, "ConnectFailed: y", 5_000)]
    settle(outbox, failed=failures)

    found = backlog(at(1_600, outbox.provider))

    assert (found.waiting, found.sending, found.retrying, found.failed) == (1, 1, 1, 1)
    assert (found.backlog, found.oldest_age_ms) == (3, 1_500)
    shown = entries(at(1_600, outbox.provider))
    assert [(one.event_id, one.state, one.error, one.next_ms, one.claimed_by) for one in shown] == [
        ("parked", "failed", "MessageIllegal: x", 0, ""),
        ("late", "retrying", "ConnectFailed: y", 5_000, ""),
        ("taken", "sending", "", 0, "r1"),
        ("free", "waiting", "", 0, ""),
    ]
    for state in ("failed", "retrying", "sending", "waiting"):
        assert [one.state for one in entries(at(1_600, outbox.provider), state=state)] == [state]
    assert entries(at(1_600, outbox.provider), topic="TP_OTHER") == []
    assert len(entries(at(1_600, outbox.provider), count_max=2)) == 2


def test_an_empty_outbox_has_no_age(outbox):
    found = backlog(at(5_000, outbox.provider))

    assert (found.backlog, found.oldest_age_ms, found.failed) == (0, 0, 0)


def test_failed_rows_are_tried_again_when_somebody_asks(outbox):
    outbox.put("A", "B", "C")
    rows = claimed(outbox)
    settle(
        outbox,
        failed=[Failure(rows[0].seq, "x", PARKED_MS), Failure(rows[1].seq, "y", PARKED_MS), Failure(rows[2].seq, "z", 9_000)],
    )

    assert retry(at(2_000, outbox.provider), event_ids=["B", "C", "nobody"]) == 2
    assert ids(claimed(outbox, now=2_000)) == ["B", "C"]
    assert retry(at(2_000, outbox.provider)) == 1
    assert [(one.event_id, one.attempts) for one in claimed(outbox, now=2_000)] == [("A", 1)]


def test_a_row_that_a_relay_has_in_hand_is_not_tried_beside_it(outbox):
    outbox.put("A")
    claimed(outbox)

    assert retry(at(2_000, outbox.provider), event_ids=["A"]) == 0


def test_a_row_whose_claim_is_from_a_clock_far_ahead_is_not_said_to_be_sent_and_is_tried_again_by_hand(outbox):
    outbox.put("new", "failed")
    rows = claimed(outbox)
    settle(outbox, failed=[Failure(rows[1].seq, "no", PARKED_MS)])
    outbox.tell(f"UPDATE halfmoon_outbox SET claimed_by = 'wrong', claimed_until_ms = {2_001 + CLAIM_SEEN_MAX_MS}")

    assert [one.state for one in entries(at(2_000, outbox.provider))] == ["waiting", "failed"]
    assert entries(at(2_001, outbox.provider))[0].state == "sending", "as long as a claim may last, it counts"
    assert backlog(at(2_000, outbox.provider)).sending == 0
    assert retry(at(2_000, outbox.provider), event_ids=["failed"]) == 1
    assert ids(claimed(outbox, now=2_000, until=3_000)) == ["new", "failed"]


def test_states_are_told_by_the_clock_of_the_database(outbox):
    outbox.put("mine", "old")
    with outbox.provider.fresh() as rows:
        now_ms = clock_ms(rows)
    claimed(outbox, now=now_ms, until=now_ms + 60_000, count_max=1)

    assert [one.state for one in entries(outbox.provider)] == ["sending", "waiting"]
    assert backlog(outbox.provider).sending == 1
    assert retry(outbox.provider, event_ids=["mine", "old"]) == 0
