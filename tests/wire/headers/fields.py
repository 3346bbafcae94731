"""What a header becomes on the wire, in both serialisations."""

from __future__ import annotations

import msgspec

from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, decode, encode_header
from halfmoon.wire.table import Header, fields_of


def sent(header: Header) -> dict[str, str]:
    """Return a header's fields as they travel, having checked that the header comes out of a frame again."""
    fields = fields_of(header)
    for serialization in (JSON, ROCKETMQ):
        came = decode(encode_header(Command(1, serialization=serialization, fields=fields)), b"", serialization)
        assert came.header(type(header)) == header
    return fields


def required(cls: type[Header]) -> str:
    """Return the wire names of the fields without which a header is refused."""
    return " ".join(field.encode_name for field in msgspec.structs.fields(cls) if field.required)
