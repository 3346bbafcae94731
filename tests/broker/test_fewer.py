"""Warnings that others can cause are bounded by the minute, and what was left out is counted."""

import logging

from halfmoon.broker.fewer import LINES_A_MINUTE, Fewer


def test_lines_beyond_the_bound_are_counted_and_said_once_the_minute_is_over(caplog):
    fewer = Fewer(logging.getLogger("halfmoon.test"), 0)
    for number in range(LINES_A_MINUTE + 7):
        fewer.warning("line %d", number)
    fewer.tick(59_999)
    assert len(caplog.records) == LINES_A_MINUTE

    fewer.tick(60_000)
    assert caplog.records[-1].getMessage() == "7 more warnings were left out in the last minute"
    fewer.warning("again")
    fewer.tick(120_000)
    assert len(caplog.records) == LINES_A_MINUTE + 2
