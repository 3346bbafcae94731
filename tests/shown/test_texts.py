"""Times, spans and rates as people read them."""

from __future__ import annotations

import pytest

from halfmoon.shown.texts import rate_text, span_text, time_text


def test_times_are_shown_in_utc_and_none_as_nothing():
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(0) == time_text(-1) == ""


@pytest.mark.parametrize("ms", [253_402_300_800_000, 10**18 - 1, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_its_number(ms):
    assert time_text(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert time_text(ms) == f"{ms} ms"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0.0s"), (0, "0.0s"), (1234, "1.2s"), (59_999, "59.9s"), (60_000, "1m00s"), (310_000, "5m10s"), (3_599_999, "59m59s"),
     (7_380_000, "2h03m"), (86_400_000, "1d00h"), (273_600_000, "3d04h")],
)  # fmt: skip
def test_a_span_of_time_is_short_and_never_rounds_up_into_the_next_unit(ms, text):
    assert span_text(ms) == text


def test_rates():
    assert [rate_text(rate) for rate in (0.0, 1 / 60, 3.49, 9.96, 1200.4)] == ["0", "0.017", "3.5", "10", "1,200"]
