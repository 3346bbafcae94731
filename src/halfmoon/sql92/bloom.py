"""The Bloom filter beside a message: who may want it. A no is final, a maybe is evaluated, and no result depends on it.

When a message is stored, each live filter of its topic is evaluated once and the bits of those that match are set. When a group
reads, a message without the group's bits is skipped without looking at its record. Pure: bits, names and filters in, bits out.

Follows BloomFilter, BitsArray, CommitLogDispatcherCalcBitMap and ExpressionMessageFilter.isMatchedByConsumeQueue (RocketMQ 4.9.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from halfmoon.errors import UsageError
from halfmoon.sql92.filter import Filter

_WORD = 2**64 - 1


class Marks(NamedTuple):
    """The bits of one group and topic. ``mask`` is a little-endian number: bit p stands in byte p // 8."""

    positions: tuple[int, ...]
    mask: int
    bit_count: int


class Bloom:
    """A Bloom filter's shape: how many bits a message has, how many of them a group sets.

    ``error_percent`` is how often a group that does not want a message may look at it nevertheless when ``consumer_count`` groups
    want it. Both are settings of a broker (maxErrorRateOfBloomFilter, expectConsumerNumUseFilter).

    Raises:
        UsageError: ``error_percent`` is not in 1 to 99, or ``consumer_count`` not in 1 to 65,536.
    """

    def __init__(self, error_percent: int = 20, consumer_count: int = 32) -> None:
        if not 1 <= error_percent <= 99 or not 1 <= consumer_count <= 65_536:
            raise UsageError(f"no Bloom filter has an error of {error_percent} % for {consumer_count} consumers")
        error = error_percent / 100
        self.hash_count = math.ceil(math.log(error) / math.log(0.5))
        wanted = math.ceil(consumer_count * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self.bit_count = (wanted + 7) // 8 * 8
        self.size_bytes = self.bit_count // 8

    def marks(self, group: str, topic: str) -> Marks:
        """Return the bits of a group that reads a topic."""
        first, second = _halves(f"{group}#{topic}".encode("utf-8", "replace"))
        positions = []
        for number in range(1, self.hash_count + 1):
            hashed = (first + number * second) & 0xFFFFFFFF
            positions.append((hashed if hashed < 2**31 else hashed ^ 0xFFFFFFFF) % self.bit_count)
        mask = 0
        for position in positions:
            mask |= 1 << position
        return Marks(tuple(positions), mask, self.bit_count)

    def bitmap(self, wanted: Iterable[tuple[Marks, Filter]], properties: bytes) -> bytes:
        """Return the bits of a message: those of each group whose filter matches. Filters of one expression are evaluated once.

        Marks of a filter of another shape are left out, so that their group must evaluate: see `may_match`.
        """
        bits, outcomes = 0, dict[str, bool]()
        for marks, group_filter in wanted:
            matches = outcomes.get(group_filter.expression)
            if matches is None:
                matches = outcomes[group_filter.expression] = group_filter.matches(properties)
            if matches and marks.bit_count == self.bit_count:
                bits |= marks.mask
        return bits.to_bytes(self.size_bytes, "little")


def may_match(bitmap: bytes | None, marks: Marks, *, stored_ms: int, born_ms: int) -> bool:
    """Return False when a message's bits say that the group's filter did not match it, True when the filter must be evaluated.

    ``bitmap`` None: the message has none. ``stored_ms`` is when the message was stored, ``born_ms`` when the group's filter became
    known: an older message was never tested for it.
    """
    if not bitmap or stored_ms <= born_ms or len(bitmap) * 8 != marks.bit_count:
        return True
    return int.from_bytes(bitmap, "little") & marks.mask == marks.mask


# ---------------------------------------------------------------- MurmurHash3, x64, 128 bits, seed 0


def _halves(data: bytes) -> tuple[int, int]:
    """Return the low and the high 32 bits of the first half of the hash."""
    first, second, whole = 0, 0, len(data) // 16 * 16
    for at in range(0, whole, 16):
        first ^= _mixed_one(int.from_bytes(data[at : at + 8], "little"))
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _WORD
        second ^= _mixed_two(int.from_bytes(data[at + 8 : at + 16], "little"))
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _WORD
    first ^= _mixed_one(int.from_bytes(data[whole : whole + 8], "little"))
    second ^= _mixed_two(int.from_bytes(data[whole + 8 :], "little"))
    first, second = first ^ len(data), second ^ len(data)
    first = first + second & _WORD
    second = second + first & _WORD
    first = _finished(first) + _finished(second) & _WORD
    return first & 0xFFFFFFFF, first >> 32


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _WORD


def _mixed_one(value: int) -> int:
    return _rotated(value * 0x87C37B91114253D5 & _WORD, 31) * 0x4CF5AD432745937F & _WORD


def _mixed_two(value: int) -> int:
    return _rotated(value * 0x4CF5AD432745937F & _WORD, 33) * 0x87C37B91114253D5 & _WORD


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _WORD
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return value ^ value >> 33
