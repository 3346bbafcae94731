"""A message's properties as bytes: ``name 0x01 value 0x02 name 0x01 value 0x02 …`` in UTF-8. Knows no property's meaning."""

from __future__ import annotations

from halfmoon import hot

Buffer = bytes | bytearray | memoryview


encode = hot.encode_properties
"""Return properties as they travel and are stored. Raises MessageIllegal for what they cannot hold."""


def decode(data: Buffer) -> dict[str, str]:
    """Return stored properties, with or without a separator after the last pair.

    Pairs with an empty name or value are left out; of a name given twice the last one counts; bytes that are not UTF-8 become
    U+FFFD. Never raises.

    Follows MessageDecoder.string2messageProperties (RocketMQ 4.9.8).
    """
    found: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


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
