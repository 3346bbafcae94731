"""Protocol table: each request is one small class; codec, registry, reference page and tests derive from it.

A request class is declared once with `request`; its attributes are the header's fields, its annotations their types::

    @request(14, "QUERY_CONSUMER_OFFSET", reply=QueryConsumerOffsetReply, needs=account(LOOK))
    class QueryConsumerOffset(Header):
        \"\"\"Ask for the progress of a group in one queue.\"\"\"
        consumer_group: str
        topic: str
        queue_id: I32

The wire name is the attribute in camelCase, or given with `wire`. Nothing here knows what a request does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from halfmoon.columns.frames import texts_of
from halfmoon.conversion import from_texts
from halfmoon.errors import BadHeader
from halfmoon.wire.needs import Needs
from halfmoon.wire.refused import NEVER, REFUSED

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Header(msgspec.Struct, kw_only=True, rename="camel"):
    """Base of every request and reply header: a plain value."""


def wire(name: str, default: Any = msgspec.NODEFAULT) -> Any:
    """Declare a field whose wire name is not its attribute in camelCase."""
    return msgspec.field(name=name, default=default)


class NoFields(Header):
    """Header without fields."""


class RequestType(NamedTuple):
    """Row of the table: one request."""

    code: int
    name: str
    header: type[Header]
    reply: type[Header]
    since: str
    needs: Needs | None
    """Permissions needed to send it; None: undeclared, which a test refuses and a broker treats as `ADMIN`."""
    names: dict[str, str]
    """Wire name by attribute of the header."""
    changes: bool
    """Whether it changes what a broker stores, or is a master's to grant: a slave refuses it."""

    @property
    def is_of_messages(self) -> bool:
        """Return whether it gives messages of a topic, or their places."""
        needs = self.needs or Needs()
        return bool(needs.topics or needs.looks or needs.record)

    @property
    def admin(self) -> bool:
        """Whether only administrators may send it once access control is on."""
        return self.needs is None or self.needs.admin

    @property
    def operated(self) -> bool:
        """Whether operators send it, so that servers log it."""
        return self.needs is None or self.needs.operated

    @property
    def published_field(self) -> str:
        """Wire name of the field with the topic for which the sender needs a permission; "": there is none."""
        needs = self.needs or Needs()
        return next((self.names[field] for field in (*needs.publish, *needs.replies)), "")

    def asked(self, fields: Mapping[str, str], body: bytes | memoryview) -> str:
        """Return a request's fields without secrets, each shortened, and the size of its body, for a log."""
        given = [(name, fields[name]) for name in self.names.values() if name in fields]
        texts = [f"{name}={'(left out)' if 'secret' in name.lower() else shortened(value)}" for name, value in given]
        return " ".join([request_text(self.code), *texts] + [f"body={len(body)} bytes"] * bool(body))


VALUE_MAX = 270
"""Longest field in a log, characters: the longest name of a group, with its prefix, has 262."""


def shortened(text: str) -> str:
    """Return a text for a log, shortened to `VALUE_MAX`."""
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}..."


REQUESTS: dict[int, RequestType] = {}
"""All requests by code; filled by importing ``halfmoon.wire.headers``."""

_BY_HEADER: dict[type[Header], RequestType] = {}

H = TypeVar("H", bound=Header)


def request(
    code: int, name: str, *, reply: type[Header] = NoFields, since: str = "4.7.1", needs: Needs | None = None, changes: bool = False
) -> Callable[[type[H]], type[H]]:
    """Enter a header class into the table under its request code.

    ``name`` is the original's constant, ``since`` the first RocketMQ version that has it, ``needs`` what an
    account needs to send it once access control is on; ``changes``: a slave refuses it.
    """

    def enter(cls: type[H]) -> type[H]:
        assert code not in REQUESTS, f"two requests with code {code}"
        names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
        REQUESTS[code] = _BY_HEADER[cls] = RequestType(code, name, cls, reply, since, needs, names, changes)
        return cls

    return enter


def request_text(code: int) -> str:
    """Return the name of a request with its code, for logs and errors: ``SEND_MESSAGE_V2 (310)``; the code alone if unknown."""
    row = REQUESTS.get(code) or REFUSED.get(code)
    return str(code) if row is None else f"{row.name} ({code})"


def not_supported(code: int) -> str:
    """Return the remark of the answer (code 3) to an unsupported request."""
    refused = REFUSED.get(code)
    reason = f": {refused.reason}" if refused is not None and refused.reason != NEVER else ""
    return f" request type {code} not supported{reason}"


def request_type(header: Header | type[Header]) -> RequestType:
    """Return the row of a request header."""
    if isinstance(header, Header):
        return _BY_HEADER[type(header)]
    return _BY_HEADER[header]


def parse(cls: type[H], fields: dict[str, str]) -> H:
    """Return a header from text fields; fields that the class does not declare are ignored.

    Raises:
        BadHeader: a required field is missing, a number does not parse or is out of range.

    Differs: the original logs a missing field and fails later with a NullPointerException; the code that reaches the peer is
    1 in both.
    """
    try:
        header: H = from_texts(fields, cls)
        return header
    except msgspec.ValidationError as exc:
        raise BadHeader(f"{cls.__name__}: {exc}") from None


def fields_of(header: Header) -> dict[str, str]:
    """Return a header's fields as text for the wire: None left out, booleans ``true`` and ``false``."""
    return texts_of(header.__struct_encode_fields__, astuple(header))
