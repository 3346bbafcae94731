"""The table of delay levels."""

import pytest

from halfmoon.broker.delay.levels import Levels
from halfmoon.errors import SettingError
from halfmoon.wire.properties import encode


def test_levels_count_from_1_and_an_unknown_one_waits_a_second():
    levels = Levels("1s 2m 3h 1d")
    assert [levels.delay_ms(level) for level in range(6)] == [1000, 1000, 120_000, 10_800_000, 86_400_000, 1000]
    assert len(levels) == 4


@pytest.mark.parametrize("text", ["0s", "1", "1x", "-1s", "41d", " ".join(["1s"] * 65)])
def test_a_table_that_cannot_be_is_refused(text):
    with pytest.raises(SettingError, match="delay_levels"):
        Levels(text)


def test_the_entry_of_a_parked_record_says_when_it_is_due_and_a_level_above_the_last_is_the_last():
    levels = Levels("1s 5s")
    due = [levels.tag_code("SCHEDULE_TOPIC_XXXX", encode({"DELAY": level}), 1_000_000) for level in ("1", "2", "9")]
    assert due == [1_001_000, 1_005_000, 1_005_000]
    assert levels.tag_code("T", encode({"DELAY": "1"}), 1_000_000) == 0  # no tag
