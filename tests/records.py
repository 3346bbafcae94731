"""Records of version 2, which 5.x writes for topics over 127 bytes and Halfmoon reads only."""

from __future__ import annotations

from typing import Any

from halfmoon.hot import MAGIC_V2
from halfmoon.limits import TOPIC_LENGTH_MAX
from halfmoon.wire.record import encode_record


def record_of(*, magic: int | None = None, **values: Any) -> bytes:
    """Return the record of one message: as Halfmoon writes it, or of version 2 for a long topic or on request."""
    name = values["topic"].encode()
    if magic != MAGIC_V2 and len(name) <= TOPIC_LENGTH_MAX:
        return encode_record(**values)
    written = encode_record(**{**values, "topic": "t"})
    behind = 2 + len(values["properties"])
    size = len(written) + len(name)
    return b"".join((
        size.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big", signed=True), written[8 : len(written) - behind - 2],
        len(name).to_bytes(2, "big"), name, written[len(written) - behind :],
    ))  # fmt: skip
