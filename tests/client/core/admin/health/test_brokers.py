"""Statistics of brokers, read carefully."""

from __future__ import annotations

import pytest

from tests.client.core.admin.health.test_status import INFO, status_of


def test_numbers_of_a_broker():
    [broker] = status_of({"a": INFO}).brokers
    assert (broker.in_per_second, broker.out_per_second, broker.in_today, broker.out_today) == (12.5, 3.0, 100, 0)
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.requests_refused) == (2, 60_000, 7)
    assert broker.uptime_ms > 0


def test_a_broker_that_has_not_looked_at_its_disk_says_no_share():
    status = status_of({"a": {**INFO, "commitLogDiskRatio": "-1.0"}}, disk=0.01)
    assert (status.health, status.brokers[0].disk_used) == ("healthy", None)


@pytest.mark.parametrize("text", ["", "NaN", "x", "inf", "-1", "1" * 400, "٣"])
def test_what_is_no_number_is_none_and_stops_nothing(text):
    status = status_of({"a": dict.fromkeys(INFO, text)}, lag=0, pending_age_ms=0)
    [broker] = status.brokers
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.uptime_ms) == (None, None, None)
