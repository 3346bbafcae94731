"""Conditions on the stored properties of many messages at once, with numpy, as the compiled twin tests each. Keeps nothing.

A truth is a number a message: TRUE, FALSE, NULL, or UNSURE where somebody else must test it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TRUE, FALSE, NULL, UNSURE = range(4)
CONDITIONS_MAX = 8
"""With more of them a table of each message is cheaper."""
_DIGITS_MAX = 9
_NEGATED = (FALSE, TRUE, NULL, UNSURE)


class ArrayFilter:
    """The properties of some messages. ``truths`` says of each whether it fulfils a `halfmoon.columns.filtering.Program`."""

    def __init__(self, np: Any, blocks: Sequence[bytes]) -> None:
        self._np, self._count = np, len(blocks)
        joined = b"\x02".join((b"", *blocks, bytes(_DIGITS_MAX)))  # so that no number is looked for behind the end
        self._data = np.frombuffer(joined, np.uint8)
        self._separators = np.flatnonzero(self._data == 2)
        sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
        self._starts = np.cumsum(sizes + 1) - sizes  # behind the separator before each
        self._found: dict[bytes, tuple[Any, Any]] = {}

    def truths(self, program: tuple[Any, ...]) -> Any:
        """Return the truth of each message."""
        np, kind = self._np, program[0]
        if kind in ("all", "any"):
            return self._first_of(program[1], *((FALSE, TRUE) if kind == "all" else (TRUE, FALSE)))
        if kind == "not":
            return np.array(_NEGATED, np.int8)[self.truths(program[1])]
        if kind not in ("number", "text", "null", "bare"):
            return np.full(self._count, UNSURE, np.int8)
        begin, size = self._values(program[1])
        if kind == "number":
            return self._numbers(begin, size, *program[2:])
        if kind == "text":
            return self._texts(begin, size, program[2])
        there, absent = (FALSE, TRUE) if kind == "null" else (FALSE, NULL)
        return np.where(size > 0, np.int8(there), np.int8(absent))

    def _first_of(self, parts: Sequence[tuple[Any, ...]], decides: int, otherwise: int) -> Any:
        """AND and OR, from left to right: the first part that ``decides`` says it."""
        np = self._np
        truths, going_on = np.full(self._count, otherwise, np.int8), np.ones(self._count, bool)
        for condition in parts:
            truth = self.truths(condition)
            ends = (truth == decides) | (truth == UNSURE)
            truths = np.where(going_on & (ends | (truth == NULL)), truth, truths)
            going_on &= ~ends
        return truths

    def _values(self, name: bytes) -> tuple[Any, Any]:
        """Return where the last value of a name that is not empty begins in each message, and its size; 0: it is not there."""
        if name not in self._found:
            np, data = self._np, self._data
            firsts = self._separators[:-1] + 1
            sizes = self._separators[1:] - firsts - len(name)
            pairs = np.flatnonzero(sizes > 0)
            for at in range(len(name) - 1, -1, -1):  # the end of the name first, which tells the most apart
                pairs = pairs[data[firsts[pairs] + at] == name[at]]
            messages = np.searchsorted(self._starts, firsts[pairs], "right") - 1
            begin, size = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
            begin[messages], size[messages] = firsts[pairs] + len(name), sizes[pairs]  # of several the last one stays
            self._found[name] = begin, size
        return self._found[name]

    def _numbers(self, begin: Any, size: Any, sign: str, number: float) -> Any:
        np = self._np
        truths = np.where(size > 0, np.int8(UNSURE), np.int8(NULL))
        usual = np.flatnonzero((size > 0) & (size <= _DIGITS_MAX))
        begin, size = begin[usual], size[usual]
        read, plain = np.zeros(len(usual), np.int64), np.ones(len(usual), bool)
        for at in range(int(size.max(initial=0))):
            digit, more = self._data[begin + at] - np.uint8(48), at < size  # what is below "0" is above 9 then
            plain &= (digit <= 9) | ~more
            read = np.where(more, read * 10 + digit, read)
        holds = _HOLDS[sign](read, number)
        truths[usual[plain]] = np.where(holds, np.int8(TRUE), np.int8(FALSE))[plain]
        return truths

    def _texts(self, begin: Any, size: Any, wanted: bytes) -> Any:
        np, data = self._np, self._data
        other = FALSE if int(data.max()) < 128 else UNSURE  # what is no UTF-8 may be the same text
        truths = np.where(size > 0, np.int8(other), np.int8(NULL))
        same = np.flatnonzero((size > 0) & (size == len(wanted)))
        for at, byte in enumerate(wanted):
            same = same[data[begin[same] + at] == byte]
        truths[same] = TRUE
        return truths


_HOLDS = {
    ">": lambda read, number: read > number,
    ">=": lambda read, number: read >= number,
    "<": lambda read, number: read < number,
    "<=": lambda read, number: read <= number,
    "=": lambda read, number: read == number,
}


def conditions(program: tuple[Any, ...]) -> int:
    """Return how many conditions a program has that look for a property."""
    if program[0] in ("all", "any"):
        return sum(map(conditions, program[1]))
    return conditions(program[1]) if program[0] == "not" else 1
