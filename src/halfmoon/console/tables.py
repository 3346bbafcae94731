"""Tables of pages: columns as values, the columns that say something about the rows shown, and rows in the order of any column.

Pure functions; `parts.html` draws the table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import UsageError

Place = tuple[float | str, str]
_cursor = json_decoder(tuple[int | float | str | None, str])


class Column(NamedTuple):
    """Column of a table: a field of its rows, its title, and how its cells look.

    ``kind`` is a class of the style sheet, and the standard look of the cell. ``own``: the template draws the cell. ``lead``: the
    number that matters, which stands first on a phone. ``varies``: shown only with two values or more. ``fixed``: not to sort by.
    """

    key: str
    title: str
    kind: str = "text"
    own: bool = False
    lead: bool = False
    varies: bool = False
    fixed: bool = False


def worth_showing(columns: Sequence[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns without those that say nothing of these rows: without a value in all, or of one where they may vary."""
    return [column for column in columns if _says_something(column, rows)]


def ordered(rows: Iterable[Any], sort: str, key: Callable[[Any], str]) -> list[Any]:
    """Return rows in the order of a field; with a dash before it the largest first. Rows without a value come last.

    Rows of one value stand in the order of ``key``. Raises UsageError: rows have no such field, or it has no order.
    """
    rows, field = list(rows), sort.removeprefix("-")
    places = [_place(row, field, key) for row in rows]
    known = [(place, row) for place, row in zip(places, rows) if place is not None]
    rest = [row for place, row in zip(places, rows) if place is None]
    try:
        known.sort(key=lambda pair: pair[0], reverse=sort != field)
    except TypeError:
        raise UsageError(f"rows cannot be sorted by {field}") from None
    return [row for _, row in known] + sorted(rest, key=key)


def behind(rows: Sequence[Any], sort: str, key: Callable[[Any], str], cursor: str) -> list[Any]:
    """Return the rows of `ordered` that stand behind a cursor, also where its row is gone. Raises UsageError: it is damaged."""
    try:
        value, name = _cursor.decode(cursor)
    except msgspec.DecodeError:
        raise UsageError("the address of the next rows is damaged: open the first rows again") from None
    field, is_descending = sort.removeprefix("-"), sort.startswith("-")

    def is_behind(row: Any) -> bool:
        place = _place(row, field, key)
        if place is None:
            return value is not None or key(row) > name
        if value is None:
            return False
        try:
            return place < (value, name) if is_descending else place > (value, name)
        except TypeError:
            raise UsageError("the address of the next rows is of another order: open the first rows again") from None

    return [row for row in rows if is_behind(row)]


def cursor_of(row: Any, sort: str, key: Callable[[Any], str]) -> str:
    """Return the cursor of a row, for `behind`."""
    place = _place(row, sort.removeprefix("-"), key)
    return msgspec.json.encode((None if place is None else place[0], key(row))).decode()


def _place(row: Any, field: str, key: Callable[[Any], str]) -> Place | None:
    value = _value(row, field)
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise UsageError(f"rows cannot be sorted by {field}")
    return value, key(row)


def _says_something(column: Column, rows: Sequence[Any]) -> bool:
    may_be_drawn = column.own and column.kind.split()[0] not in ("text", "wide", "spark")
    if not rows or column.key not in _fields(rows[0]) or (may_be_drawn and not column.varies):
        return True
    values = {str(value) for row in rows if (value := _value(row, column.key)) not in (None, "", [])}
    return len(values) > column.varies


def _value(row: Any, field: str) -> Any:
    """Return the value of a field. Raises UsageError."""
    if field not in _fields(row):
        raise UsageError(f"rows cannot be sorted by {field}")
    return row[field] if isinstance(row, dict) else getattr(row, field)


def _fields(row: Any) -> Container[str]:
    """Return the names of the fields of facts or of a struct."""
    return row if isinstance(row, dict) else row.__struct_fields__
