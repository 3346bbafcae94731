"""`Instant`, the time that a core is given: a steady time for durations, and a date. The two are of different types.

A **date** is what the system's clock shows, in milliseconds since the epoch. Records, delivery times and everything else that is
stored, shown or compared with stored things has a date. Whoever sets the clock moves all dates that follow.

A **steady** time begins anywhere and nobody sets it. Timeouts, intervals and times of last contact are steady, so that a clock that
is set ends no duration (`docs/decisions/0030-two-times-of-two-types.md`). It means nothing to another process.

At run time both are plain integers and cost nothing. To the type checker a `Steady` is no number: it is compared with, and
subtracted from, another one alone, and a duration in milliseconds is added to it or taken from it. ::

    deadline = now.steady + 5_000
    if now.steady >= deadline: ...      # right
    if now.date >= deadline: ...        # an error for mypy
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NewType, overload

Date = NewType("Date", int)
"""Milliseconds since the epoch. A date may be used where a number is asked for."""

if TYPE_CHECKING:

    class MixedTimes:
        """The result of adding a date to a steady time: nothing takes it."""

    class Steady:
        """Milliseconds from an unknown beginning, which no setting of the clock moves."""

        def __init__(self, ms: int) -> None: ...
        @overload
        def __add__(self, ms: Date) -> MixedTimes: ...  # type: ignore[overload-overlap]
        @overload
        def __add__(self, ms: int) -> Steady: ...
        def __add__(self, ms: int) -> Steady | MixedTimes: ...
        @overload
        def __sub__(self, other: Date) -> MixedTimes: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, other: int) -> Steady: ...
        @overload
        def __sub__(self, other: Steady) -> int: ...
        def __sub__(self, other: int | Steady) -> int | Steady | MixedTimes: ...
        def __int__(self) -> int: ...
        def __lt__(self, other: Steady) -> bool: ...
        def __le__(self, other: Steady) -> bool: ...
        def __gt__(self, other: Steady) -> bool: ...
        def __ge__(self, other: Steady) -> bool: ...

else:
    Steady = int

LONG_AGO = Steady(-(1 << 62))
"""Before every steady time."""


class Instant(NamedTuple):
    """One moment: its steady time and its date, which were read together."""

    steady: Steady
    date: Date

    def at(self, date: int) -> Steady:
        """Return the steady time at which the clock shows a date, unless somebody sets it."""
        return self.steady + (date - self.date)

    def date_at(self, steady: Steady) -> int:
        """Return the date that the clock shows at a steady time, unless somebody sets it."""
        return self.date + (steady - self.steady)


def instant(date: int, steady: int | None = None) -> Instant:
    """Return the instant of a date. Without a ``steady`` time it has the same number: for programs that run no core for long."""
    return Instant(Steady(date if steady is None else steady), Date(date))


BEGINNING = instant(0)
"""The epoch: for a core that is made where no time is known, and started at one."""
