"""Masters, and pages of lists of which each has a part: merged in their order, with a cursor that says where each list goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.cursor import Offset, cursor, places
from halfmoon.effects import Op, gather

PAGE_MAX = 1000
"""Most rows of one answer."""


class Master(NamedTuple):
    """A broker that is asked."""

    name: str
    address: str


T = TypeVar("T")
Place = tuple[Offset, str]
"""Where a broker's list goes on: a half queue offset at one with a table; at others behind a birth time and an id, which the copies
of a half message share. Of the expired: below a queue offset."""
END: Place = (-1, "")


class Listed(NamedTuple, Generic[T]):
    """Page listed by a broker: each row with the place behind it, and the place behind all that it has looked at."""

    rows: list[tuple[Place, T]]
    then: Place


def masters(admin: AdminCore) -> Op[list[Master]]:
    """Return all masters, by name. Raises NetworkError when there are none."""
    return [Master(name, address) for name, address in (yield from admin.masters()).items()]


def count_of(count: int) -> int:
    """Return how many rows a page has."""
    return min(max(count, 1), PAGE_MAX)


def places_of(after: str | None) -> dict[str, Place]:
    """Return where the list of each broker goes on, as a cursor says. Raises UsageError."""
    return {} if after is None else places(after, tuple[Offset, str])


def of_all(
    admin: AdminCore, known: Mapping[str, Place], listed: Callable[[Master], Op[Listed[T]]], failing: list[str] | None = None
) -> Op[dict[str, Listed[T]]]:
    """Return what brokers list that have not ended.

    Raises the error of any, unless it is named in ``failing`` (see `answers_of`): a list without its rows would look complete.
    """
    brokers = [broker for broker in (yield from masters(admin)) if known.get(broker.name) != END]

    def named(broker: Master) -> Op[tuple[str, Listed[T]]]:
        return broker.name, (yield from listed(broker))

    outcomes = yield from gather([named(broker) for broker in brokers])
    return dict(answers_of(zip([broker.name for broker in brokers], outcomes), failing))


def merged(
    pages: Mapping[str, Listed[T]], count: int, order: Callable[[T], int], known: dict[str, Place]
) -> tuple[list[T], str | None]:
    """Return the first rows of all brokers in their order, and the cursor of what follows; None: nothing does."""
    rows = {name: deque(listed.rows) for name, listed in pages.items()}
    then = {**known, **{name: listed.then for name, listed in pages.items() if not listed.rows}}
    taken: list[T] = []
    # A broker that has more than it listed ends the page: what it has next may come before the next of the others.
    while len(taken) < count and all(rows[name] or listed.then == END for name, listed in pages.items()):
        name = min((name for name in rows if rows[name]), key=lambda name: order(rows[name][0][1]), default=None)
        if name is None:
            return taken, None
        place, row = rows[name].popleft()
        taken.append(row)
        then[name] = place if rows[name] else pages[name].then
    if not any(rows.values()) and all(listed.then == END for listed in pages.values()):
        return taken, None
    return taken, cursor(then)
