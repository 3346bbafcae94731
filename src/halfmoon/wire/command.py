"""The envelope of every frame: `Command`, decoded from and encoded to both header serialisations.

Layout of a frame (big endian)::

    total : i32 | mark : i32 = serialisation << 24 | header length | header | body
    total = 4 + header length + body length (does not count itself)

`halfmoon.wire.frame` cuts a stream into frames; here a frame becomes a value and back. Never waits, never keeps anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import defstruct
from msgspec.structs import astuple

from halfmoon.columns.frames import PREFIX, header_json, header_rocketmq
from halfmoon.columns.signing import UNIQUE_KEY_QUERY
from halfmoon.conversion import json_decoder
from halfmoon.errors import BadHeader
from halfmoon.hot import Frame, head_json, request_frame
from halfmoon.limits import HEADER_FIELDS_MAX
from halfmoon.wire.codes import JSON, ONEWAY, RESPONSE, ROCKETMQ, VERSION, VERSION_UNSIGNED, Language
from halfmoon.wire.frame import Inbox
from halfmoon.wire.json import BadBody, standard
from halfmoon.wire.signature import Credentials, signer
from halfmoon.wire.table import Header, fields_of, parse, request_type

H = TypeVar("H", bound=Header)


class Command(msgspec.Struct):
    """One request or reply. ``fields`` are the header's own fields as text."""

    code: int
    flag: int = 0
    opaque: int = 0
    language: int = int(Language.PYTHON)
    version: int = VERSION
    remark: str | None = None
    fields: dict[str, str] = {}
    body: bytes | memoryview = b""
    serialization: int = JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours (match by ``opaque`` only then)."""
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no reply."""
        return self.flag & ONEWAY != 0

    def header(self, cls: type[H]) -> H:
        """Return the fields as a header class. Raises BadHeader."""
        return parse(cls, self.fields)


def request_command(
    header: Header,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    serialization: int = JSON,
    remark: str | None = None,
) -> Command:
    """Return the command that carries a request of the protocol table."""
    return Command(
        code=request_type(header).code,
        flag=ONEWAY if oneway else 0,
        opaque=opaque,
        remark=remark,
        fields=fields_of(header),
        body=body,
        serialization=serialization,
    )


def reply_command(
    request: Command,
    code: int = 0,
    remark: str | None = None,
    header: Header | None = None,
    body: bytes | memoryview = b"",
    *,
    language: int = int(Language.JAVA),
) -> Command:
    """Return the reply to a request: same opaque, same serialisation, response bit set.

    The language says JAVA, which every client knows. Follows the 4.9 broker, which answers in the serialisation asked.
    """
    return Command(
        code=code,
        flag=RESPONSE,
        opaque=request.opaque,
        language=language,
        remark=remark,
        fields=fields_of(header) if header is not None else {},
        body=body,
        serialization=request.serialization,
    )


class JsonReply:
    """Command with a well-formed JSON header that is parsed when a field is first read. Otherwise as `Command`."""

    __slots__ = ("_command", "_header", "body", "code", "flag", "opaque")
    serialization = JSON

    def __init__(self, head: tuple[int, int, int], header: bytes, body: bytes) -> None:
        self.code, self.flag, self.opaque = head
        self._header, self.body = header, body

    def header(self, cls: type[H]) -> H:
        """Return the fields as a header class. Raises BadHeader."""
        decoder = _decoders.get(cls) or _decoders.setdefault(cls, json_decoder(defstruct("Of", [("extFields", cls)]), strict=False))
        try:
            header: H = decoder.decode(self._header).extFields
        except msgspec.ValidationError:
            header = parse(cls, self.fields)
        return header

    def __getattr__(self, name: str) -> Any:
        if name == "_command":
            self._command = decode(self._header, self.body, JSON)
            return self._command
        return getattr(self._command, name)


_decoders: dict[type[Header], Any] = {}
"""Decoders by header class; bounded by the number of classes in the protocol."""


def commands(inbox: Inbox) -> Iterator[Command]:
    """Return the commands of whole frames, in order. Raises BadFrame, BadHeader."""
    for frame in inbox.frames():
        yield command_of(frame.header, frame.body, frame.serialization)


def command_of(header: bytes, body: bytes, serialization: int) -> Command:
    """Return the command of one frame as `decode` does, its header read when something of it is asked for. Raises BadHeader."""
    head = head_json(header, HEADER_FIELDS_MAX) if serialization == JSON else None
    return decode(header, body, serialization) if head is None else cast(Command, JsonReply(head, header, body))


# ---------------------------------------------------------------- encode


def encode(command: Command) -> bytes:
    """Return the whole frame of a command, body included."""
    head = encode_header(command)
    return b"".join((PREFIX.pack(4 + len(head) + len(command.body), command.serialization << 24 | len(head)), head, command.body))


def encode_header(command: Command) -> bytes:
    """Return the header's bytes in the command's own serialisation."""
    c = command
    if c.serialization == ROCKETMQ:
        return header_rocketmq(c.code, c.language, c.version, c.opaque, c.flag, c.remark, c.fields)
    return header_json(c.code, c.fields, c.flag, _LANGUAGE_NAMES.get(c.language, "OTHER"), c.opaque, c.remark, c.version)


def request_bytes(
    header: Header,
    body: bytes,
    opaque: int,
    serialization: int,
    *,
    oneway: bool = False,
    remark: str | None = None,
    credentials: Credentials | None = None,
) -> bytes:
    """Return the whole frame of the command that `request_command` makes, signed where there are credentials."""
    names: tuple[str, ...] = header.__struct_encode_fields__
    values = astuple(header)
    by, version = None, VERSION
    if credentials is not None:
        by = signer(credentials)
        if UNIQUE_KEY_QUERY in names and values[names.index(UNIQUE_KEY_QUERY)] is not None:
            version = VERSION_UNSIGNED
    return request_frame(
        request_type(header).code, ONEWAY if oneway else 0, opaque, version, names, values, body, serialization, remark, by
    )


_LANGUAGE_NAMES = {int(member): member.name for member in Language}
_LANGUAGE_CODES = {member.name: int(member) for member in Language}
_OTHER = int(Language.OTHER)


_FIXED = Struct(">hbhii")  # | code i16 | language i8 | version i16 | opaque i32 | flag i32 |
_I32 = Struct(">i")
_U32 = Struct(">I")
_U16 = Struct(">H")
_PAIR = Struct(">HxI")  # | name length u16 | name of one letter, as fields of sends have | value length u32 |


# ---------------------------------------------------------------- decode

_CODE = re.compile(rb'\{"code":(\d{1,5}),')


def code_at(data: bytes, frame: Frame) -> int:
    """Return the request code that the header of a frame begins with, -1 where it does not. Decoding tells for sure."""
    serialization, start, _, _ = frame
    if serialization == ROCKETMQ:
        return int.from_bytes(data[start : start + 2], "big")
    match = _CODE.match(data, start)
    return -1 if match is None else int(match[1])


_I32Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _JsonHeader(msgspec.Struct):
    code: int = 0
    flag: int = 0
    opaque: int = 0
    language: str | int | None = None
    version: int = 0
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None


class _TextHeader(msgspec.Struct):
    """Header in the usual form: text fields, numbers that fit. Parsed in one step; all other headers take the general way."""

    code: _I32Number
    flag: _I32Number
    opaque: _I32Number
    language: str
    version: _I32Number
    remark: str | None = None
    extFields: dict[str, str] = {}


_json_header = json_decoder(_JsonHeader, strict=False)
_text_header = json_decoder(_TextHeader)


def decode(header: bytes | memoryview, body: bytes | memoryview, serialization: int) -> Command:
    """Return the command of one frame.

    Raises:
        BadHeader: unknown serialisation, or bytes that are not a header in it.
    """
    if serialization == JSON:
        return _decode_json(header, body)
    if serialization == ROCKETMQ:
        return _decode_rocketmq(bytes(header), body)
    raise BadHeader(f"unknown serialisation {serialization}")


def _decode_json(header: bytes | memoryview, body: bytes | memoryview) -> Command:
    try:
        text = _text_header.decode(header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _decode_odd_json(header, body)
    fields, language = text.extFields, _LANGUAGE_CODES.get(text.language, _OTHER)
    if len(fields) > HEADER_FIELDS_MAX:
        raise BadHeader(f"more than {HEADER_FIELDS_MAX} header fields")
    return Command(text.code, text.flag, text.opaque, language, text.version, text.remark or None, fields, body, JSON)


def _decode_odd_json(header: bytes | memoryview, body: bytes | memoryview) -> Command:
    try:
        try:
            head = _json_header.decode(header)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # names without quotes, as fastjson reads them too
            head = _json_header.decode(standard(bytes(header), tokens_max=8 * HEADER_FIELDS_MAX))
    except (msgspec.MsgspecError, BadBody, RecursionError, UnicodeDecodeError) as exc:
        raise BadHeader(f"not a JSON header: {exc}") from None
    for number in (head.code, head.flag, head.opaque, head.version):
        if not -(2**31) <= number < 2**31:
            raise BadHeader("a number of the header does not fit 32 bits")
    fields = head.extFields or {}
    if len(fields) > HEADER_FIELDS_MAX:
        raise BadHeader(f"more than {HEADER_FIELDS_MAX} header fields")
    language = head.language
    if isinstance(language, str):
        language = _LANGUAGE_CODES.get(language, int(Language.OTHER))
    return Command(
        head.code,
        head.flag,
        head.opaque,
        int(Language.OTHER) if language is None else language,
        head.version,
        head.remark or None,
        {name: _text(value) for name, value in fields.items() if value is not None},
        body,
        JSON,
    )


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_rocketmq(header: bytes, body: bytes | memoryview) -> Command:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header, 0)
        (remark_length,) = _I32.unpack_from(header, 13)
        at = 17
        remark = None
        if remark_length:
            remark = _slice(header, at, remark_length).decode()
            at += remark_length
        (ext_length,) = _I32.unpack_from(header, at)
        at += 4
        if ext_length < 0 or at + ext_length > len(header):
            raise BadHeader("extension block does not fit the header")
        fields = decode_ext(header, at, at + ext_length)
    except (struct_error, IndexError, UnicodeDecodeError) as exc:
        raise BadHeader(f"not a ROCKETMQ header: {exc}") from None
    return Command(code, flag, opaque, language, version, remark, fields, body, ROCKETMQ)


def decode_ext(header: bytes, at: int, end: int) -> dict[str, str]:
    """Return the name and value pairs of a ROCKETMQ extension block; a name given twice counts as the last one.

    Empty values are left out, as decoders from 4.9 on read them. Raises BadHeader.
    """
    fields: dict[str, str] = {}
    for _ in range(HEADER_FIELDS_MAX + 1):
        if at == end:
            return fields
        name_size, value_size = _PAIR.unpack_from(header, at) if end - at >= _PAIR.size else (_U16.unpack_from(header, at)[0], 0)
        name_end = at + 2 + name_size
        if name_size != 1:
            (value_size,) = _U32.unpack_from(header, name_end)
        value_at = name_end + 4
        value_end = value_at + value_size
        if value_end > end:
            raise BadHeader("a length of the header reaches beyond it")
        name = header[at + 2 : name_end].decode()
        if value_size:
            fields[name] = header[value_at:value_end].decode()
        at = value_end
    raise BadHeader(f"more than {HEADER_FIELDS_MAX} header fields")


def _slice(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise BadHeader("a length of the header reaches beyond it")
    return data[at : at + size]
