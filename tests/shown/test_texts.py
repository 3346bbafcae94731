"""Times, spans and rates as people read them."""

from __future__ import annotations

import pytest

from halfmoon.shown.texts import count_text, rate_text, read_time, size_text, span_text, time_text, tries_text, wait_text


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


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("1700000000000", 1_700_000_000_000), (" 1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01 00:00:01.250", 1250), ("10s", 990_000), ("3ms", 999_997), ("99d", 0),
    ],
)  # fmt: skip
def test_a_time_is_read_as_people_write_it(text, ms):
    assert read_time(text, 1_000_000) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "5x", "-1", "9" * 30, "2026-02-30", "9999-99-99", "17"])
def test_what_is_no_time_is_refused_in_words(text):
    with pytest.raises(ValueError, match="an age"):
        read_time(text, 1_000_000)


def test_sizes_have_two_or_three_digits():
    sizes = (0, 1023, 1024, 1536, 102_400, 1024**2 - 1, 5 * 1024**4, 2**63)
    assert [size_text(size) for size in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "100 KiB", "1.0 MiB", "5.0 TiB", "8192 PiB",
    ]  # fmt: skip


def test_a_count_has_its_noun_in_the_singular_or_the_plural():
    assert [count_text(count) for count in (0, 1, 1200)] == ["0 messages", "1 message", "1,200 messages"]
    assert [count_text(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
    assert [wait_text(count) for count in (1, 2)] == ["1 message waits", "2 messages wait"]
    assert [tries_text(count) for count in (1, 235)] == ["1 try", "235 tries"]
