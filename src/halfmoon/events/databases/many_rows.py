"""One INSERT of many rows, made of the statement that inserts one. Knows no table and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfmoon.events.databases.database import Values

CHUNK_BYTES = 4 * 1024 * 1024
"""Servers refuse statements that are too large: MariaDB those of 16 MiB, unless it is told otherwise."""


def insert(statement: str, rows: Sequence[Values]) -> tuple[str, Values]:
    """Return a statement that inserts all rows, and its values. ``statement`` inserts one; its ``VALUES (…)`` has no further ones.

    A value that is equal in all rows is given once. Of one row it is the statement itself.
    """
    if len(rows) == 1:
        return statement, rows[0]
    head, _, after = statement.partition(" VALUES ")
    places, end, tail = after.partition(")")
    first = rows[0]
    own = [name for name in first if any(row[name] != first[name] for row in rows)]
    values = {name: value for name, value in first.items() if name not in own}
    written = []
    for number, row in enumerate(rows):
        text, suffix = places + end, letters(number)
        for name in own:
            text = text.replace(f":{name},", f":{name}_{suffix},").replace(f":{name})", f":{name}_{suffix})")
            values[f"{name}_{suffix}"] = row[name]
        written.append(text)
    return f"{head} VALUES {', '.join(written)}{tail}", values


def chunks(rows: Sequence[Values], name: str) -> Iterator[Sequence[Values]]:
    """Yield the rows in order, in chunks whose values of ``name`` have at most `CHUNK_BYTES` together; one row at least."""
    begin, size_bytes = 0, 0
    for at, row in enumerate(rows):
        size_bytes += len(row[name])
        if at > begin and size_bytes > CHUNK_BYTES:
            yield rows[begin:at]
            begin, size_bytes = at, len(row[name])
    yield rows[begin:]


def letters(number: int) -> str:
    """Return a number as letters: names of places have no digits."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
