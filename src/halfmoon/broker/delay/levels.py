"""The table of delay levels: how long a message of each level waits. Values only.

Follows ScheduleMessageService.parseDelayLevel (RocketMQ 4.9.8).
Differs: a number below 1, a delay over 40 days or more than 64 levels are refused at the start rather than met later.
"""

from __future__ import annotations

import re

from halfmoon.errors import SettingError
from halfmoon.hot import property_of
from halfmoon.store.records import tag_hash_of
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC, timer_code

LEVELS_MAX = 64
DELAY_MS_MAX = 40 * 86_400_000
"""Longest delay of any kind: 40 days."""
UNKNOWN_LEVEL_MS = 1000
"""The delay of a parked message whose level is in no table. Follows computeDeliverTimestamp."""

_ENTRY = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Levels:
    """Delays by level, from 1 on; ``len`` is the last level."""

    def __init__(self, text: str) -> None:
        entries = text.split()
        if len(entries) > LEVELS_MAX:
            raise SettingError(f"delay_levels: at most {LEVELS_MAX} levels, not {len(entries)}")
        self.delays_ms = [_delay_ms(entry) for entry in entries]

    def __len__(self) -> int:
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return how long a message of a level waits; one of no known level waits a second."""
        return self.delays_ms[level - 1] if 1 <= level <= len(self.delays_ms) else UNKNOWN_LEVEL_MS

    def tag_code(self, topic: str, properties: bytes, store_ms: int) -> int:
        """Return what the queue entry of a record holds as its tag code: for a parked one when it is due, ms since the epoch.

        For `halfmoon.store.store.Store.open`, which restores lost entries. Follows CommitLog.checkMessageAndReturnSize.
        """
        if topic == TIMER_TOPIC:
            return timer_code(properties, store_ms)
        text = property_of(properties, b"DELAY") if topic == SCHEDULE_TOPIC else None
        if text is None or not text.isdigit() or len(text) > 9 or int(text) < 1:
            return tag_hash_of(properties)
        return store_ms + self.delay_ms(min(int(text), len(self)) if self.delays_ms else int(text))


def _delay_ms(entry: str) -> int:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise SettingError(f"delay_levels: {entry[:50]!r} is not a duration such as 10s (units: s, m, h, d)")
    delay_ms = int(match[1]) * _UNIT_MS[match[2]]
    if delay_ms > DELAY_MS_MAX:
        raise SettingError(f"delay_levels: {entry} is longer than 40 days")
    return delay_ms
