"""Parsers of options."""

from __future__ import annotations

import pytest

from halfmoon.spark.option_parsing import count, duration, moment, position, queues, size


def test_numbers_sizes_and_times_are_read():
    assert count(1, 10)("7") == 7
    assert [size(0, 1 << 40)(text) for text in ("7", "7b", "4MiB", "2 k", "1g")] == [7, 7, 4 << 20, 2048, 1 << 30]
    assert [duration(0, 1 << 40)(text) for text in ("250", "250ms", "30s", "15m", "2h")] == [250, 250, 30_000, 900_000, 7_200_000]
    assert moment("1000") == 1000
    assert moment("1970-01-01T00:00:01+00:00") == moment("1970-01-01T01:00:01+01:00") == 1000


def test_offsets_and_queues_are_read():
    assert position("earliest")('{"orders": {"broker-a": {"3": -2, "10": 5}}}') == {"orders": {"broker-a": {3: -2, 10: 5}}}
    assert position("earliest")("EARLIEST") == "earliest"
    assert queues('{"orders": {"broker-a": [3, 1, 3]}}') == {"orders": {"broker-a": (1, 3)}}
    for text in ('{"orders": {"broker-a": [true]}}', "{}", '{"orders": 1}', '{"orders": {"broker-a": []}}', "x"):
        with pytest.raises(ValueError, match="must be JSON"):
            queues(text)
