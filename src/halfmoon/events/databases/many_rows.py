"""One INSERT of many rows, made of the statement that inserts one. Knows no table and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from halfmoon.events.databases.database import Values


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


def letters(number: int) -> str:
    """Return a number as letters: names of places have no digits."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
