"""Two ways to a property's value: in the bytes as they are stored, or in a table made of them once a message.

Both find what `halfmoon.wire.properties.decode` finds: of a name given twice the last one, and no empty values. Neither decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from halfmoon.errors import UsageError

Lookup = Callable[[Any], bytes | None]

TABLE_FROM = 8
"""From so many look-ups on, one table is cheaper than that many searches (measured on blocks of seven properties, 94 bytes)."""


class PropertyAccess:
    """One look-up for each name, all of one way.

    ``in_a_table``: they take what `table` makes, not bytes; ``mend``: as `mended`.
    """

    def __init__(self, *, in_a_table: bool, mend: bool) -> None:
        self._in_a_table, self._mend = in_a_table, mend
        self._made: dict[str, Lookup] = {}
        self.plain = not in_a_table and not mend

    def of(self, name: str) -> Lookup:
        """Return the look-up of a property."""
        if name not in self._made:
            access = in_table(name) if self._in_a_table else in_bytes(name)
            self._made[name] = mended(access) if self._mend else access
        return self._made[name]


def stored(properties: Mapping[str, str]) -> bytes:
    """Return properties as they are stored, for whoever has them as texts. Pairs with an empty name or value are left out.

    Raises:
        UsageError: a name or value contains a separator, or half of a surrogate pair.
    """
    pairs = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text = "".join(pairs)
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
        raise UsageError("a property contains a separator (0x01 or 0x02)")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError("a property contains half of a surrogate pair") from None


def in_bytes(name: str) -> Lookup:
    """Return a look-up in ``name 0x01 value 0x02 …``, the separator after the last pair or not."""
    first = name.encode() + b"\x01"
    mark, first_length = b"\x02" + first, len(first)

    def value_of(block: bytes) -> bytes | None:
        _, mark_found, behind = block.rpartition(mark)  # cutting copies costs less than three calls that find places
        if mark_found:
            return behind.partition(b"\x02")[0] or earlier(block)
        return block[first_length:].partition(b"\x02")[0] or None if block.startswith(first) else None

    def earlier(block: bytes) -> bytes | None:
        """The last one that is not empty, where the last one is."""
        end = len(block)
        while (at := block.rfind(mark, 0, end)) >= 0:
            if value := block[at + first_length + 1 : None if (stop := block.find(b"\x02", at + 1)) < 0 else stop]:
                return value
            end = at
        return block[first_length:].partition(b"\x02")[0] or None if block.startswith(first) else None

    return value_of


def in_table(name: str) -> Lookup:
    """Return a look-up in what `table` made."""
    key = name.encode()
    return lambda properties: properties.get(key)


def table(block: bytes) -> dict[bytes, bytes]:
    """Return all properties, as bytes."""
    properties = {}
    for pair in block.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            properties[name] = value
    return properties


def mended(lookup: Lookup) -> Lookup:
    """Return the same look-up with U+FFFD in the place of what is no UTF-8: a text with U+FFFD in an expression is equal to it."""

    def mended_value(properties: Any) -> bytes | None:
        value = lookup(properties)
        return value if value is None or value.isascii() else _mend(value)

    return mended_value


def same_text(left: bytes, right: bytes) -> bool:
    """Whether two values are one text. Different bytes that are no UTF-8 may be."""
    return left == right or (not left.isascii() and _mend(left) == _mend(right))


def _mend(value: bytes) -> bytes:
    return value.decode("utf-8", "replace").encode()
