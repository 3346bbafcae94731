"""A message's properties as bytes: ``name 0x01 value 0x02 name 0x01 value 0x02 …`` in UTF-8. Knows no property's meaning."""

from __future__ import annotations

from collections.abc import Mapping

from halfmoon import hot
from halfmoon.limits import PROPERTIES_BYTES_MAX

Buffer = bytes | bytearray | memoryview


encode = hot.encode_properties
"""Return the encoded properties. Raises MessageIllegal for names or values that cannot be encoded."""


def decode(data: Buffer) -> dict[str, str]:
    """Return stored properties, with or without a separator after the last pair.

    Pairs with an empty name or value are left out; of a name given twice the last one counts; bytes that are not UTF-8 become
    U+FFFD. Never raises.

    Follows MessageDecoder.string2messageProperties (RocketMQ 4.9.8).
    """
    properties: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def value_of(data: bytes, name: bytes) -> bytes | None:
    """Return the value of one property without decoding the others; None when it is missing or empty. As `decode` finds it."""
    mark = name + b"\x01"
    end = len(data)
    while (at := data.rfind(mark, 0, end)) >= 0:
        if at == 0 or data[at - 1] == 2:
            begin = at + len(mark)
            stop = data.find(b"\x02", begin)
            value = data[begin:] if stop < 0 else data[begin:stop]
            if value:
                return value
        end = at + len(mark) - 1
    return None


def with_pairs(properties: bytes, pairs: Mapping[str, str]) -> bytes:
    """Return stored properties with these pairs in place of those of the same names; a pair that does not fit is left out.

    All other pairs stay as they are, byte for byte, whatever they hold.
    """
    stored = without(properties, frozenset(name.encode() for name in pairs))
    for name, value in pairs.items():
        pair = b"%s\x01%s\x02" % (name.encode(), value.encode())
        if value and len(stored) + len(pair) <= PROPERTIES_BYTES_MAX:
            stored += pair
    return stored


def without(properties: bytes, names: frozenset[bytes]) -> bytes:
    """Return stored properties without the pairs of these names, ended by a separator if there is room for it."""
    kept = b"".join([pair + b"\x02" for pair in properties.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in names])
    return kept if len(kept) <= PROPERTIES_BYTES_MAX else kept[:-1]


DELAYED = ("DELAY\x01", "TIMER_DELAY_", "TIMER_DELIVER_MS\x01", "TIMER_DEL_UNIQKEY\x01", "__STARTDELIVERTIME\x01")
"""Substrings of properties that ask for a delay, or cancel one. All have DEL in them."""


def may_be_delayed(text: str) -> bool:
    """Return whether the properties of a send may ask for a delay, or cancel one."""
    return "DEL" in text and any(name in text for name in DELAYED)
