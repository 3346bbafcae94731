"""JSON as Java's fastjson writes and reads it: numbers and objects as raw keys, enums by name, no nulls. Knows no body's meaning.

`from_json` takes standard JSON and the raw form alike; `to_json` writes raw keys unless told otherwise. Type information
(``@type``) is never read or written. Bodies from outside are checked against `Bounds` before any object is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum, StrEnum
from functools import cache, partial
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import msgspec

from halfmoon.conversion import Decoder, convert, json_decoder
from halfmoon.errors import PeerError
from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.model import MessageQueue
from halfmoon.wire.table import I32

OBJECTS_MAX = 100_000
"""Bound of objects and lists in one body, about 300 bytes each in memory; also of the topics that one broker can register."""

COMMAS_MAX = 1_000_000
"""Bound of elements in one body, about 40 bytes each in memory."""

TOKENS_MAX = 500_000
"""Bound of tokens in a body with raw keys, which are read one by one: half a second. 10,000 queues as keys need 140,000."""


class Bounds(NamedTuple):
    """Bounds of a body from outside. Bodies with nulls, raw keys or raw words are read token by token and must be shorter."""

    bytes_max: int
    objects_max: int
    commas_max: int
    raw_bytes_max: int
    raw_tokens_max: int


REPLY = Bounds(FRAME_BYTES_MAX, OBJECTS_MAX, COMMAS_MAX, FRAME_BYTES_MAX, TOKENS_MAX)
"""Bounds of a server's reply to a client."""

REQUEST = Bounds(1024 * 1024, 5_000, 40_000, 1024 * 1024, 30_000)
"""Bounds of a request, parsed on the server's event loop: under 50 ms for any content. 2,000 subscriptions have 14,000 commas."""

REGISTRATION = Bounds(FRAME_BYTES_MAX, OBJECTS_MAX, COMMAS_MAX, 1024 * 1024, 30_000)
"""Bounds of a broker's registration, parsed off the name server's event loop: 50,000 topics are 9 MB."""

DEPTH_MAX = 64
"""Nesting of a body with raw keys. The deepest body of the protocol has 6."""

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
Reader = Callable[[Any], Any]


class BadBody(PeerError):
    """Body of a frame that does not fit its request. The request is refused; the connection continues."""


class Body(msgspec.Struct, rename="camel"):
    """Base of every JSON body: keys are the attributes in camelCase, None is left out when written, unknown keys are ignored."""


# ---------------------------------------------------------------- read


def from_json(cls: type[T], data: Buffer, *, bounds: Bounds | None = REPLY) -> T:
    """Return the value of JSON text.

    Keys may be numbers, objects, lists or bare words; numbers and booleans may be strings; an enum may be a name in any case or
    an ordinal, and an unknown one is None; null counts as missing. ``bounds`` None is for files of our own.

    Raises:
        BadBody: not such text, nested too deeply, or more of it than allowed.

    Follows RemotingSerializable.fromJson (RocketMQ 4.9.8 with fastjson 1.2.83).
    """
    text = bytes(data)
    if bounds is not None:
        _bound(text, bounds)
    try:
        kind: Any = cls
        if _reader(kind) is None:
            try:
                return cast(T, _decoder(kind).decode(text))
            except msgspec.DecodeError:
                if bounds is not None and len(text) > bounds.raw_bytes_max:
                    raise
        return _read_slowly(cls, text, bounds)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise BadBody(f"{getattr(cls, '__name__', cls)}: {exc}") from None
    except RecursionError:
        raise BadBody("JSON is nested too deeply") from None


def _read_slowly(cls: type[T], text: bytes, bounds: Bounds | None) -> T:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = msgspec.json.decode(standard(text, tokens_max=None if bounds is None else bounds.raw_tokens_max))
    value, kind = _without_nulls(value), cast(Any, cls)
    reader = _reader(kind)
    return cast(T, convert(reader(value) if reader else value, cls, strict=False))


def _bound(text: bytes, bounds: Bounds) -> None:
    if len(text) > bounds.bytes_max:
        raise BadBody(f"a body of {len(text)} bytes is longer than {bounds.bytes_max}")
    if text.count(b"{") + text.count(b"[") > bounds.objects_max:
        raise BadBody(f"a body has more than {bounds.objects_max} objects")
    if text.count(b",") > bounds.commas_max:
        raise BadBody(f"a body has more than {bounds.commas_max} elements")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


@cache
def _decoder(cls: Any) -> Decoder:
    return json_decoder(cls, strict=False)


# ---------------------------------------------------------------- raw keys

# An unclosed string reaches to the end of the text; if it were no token, each of its quotes would be tried as a beginning.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?"?|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_OBJECT, _LIST, _END_OBJECT, _END_LIST, _COLON, _COMMA, _QUOTE = b'{[}]:,"'


def standard(text: bytes, *, tokens_max: int | None = TOKENS_MAX) -> bytes:
    """Return JSON text with raw keys as standard JSON: each key that is not a string becomes the string of its text.

    One pass, linear in the length of the text; string literals are skipped. Text that is otherwise no JSON stays as it is.

    Raises:
        BadBody: nested deeper than `DEPTH_MAX`, or more than ``tokens_max`` words and signs.
    """
    chunks: list[bytes] = []
    copied = 0
    for begin, end in _raw_keys(text, tokens_max):
        chunks += (text[copied:begin], _quoted(text[begin:end]))
        copied = end
    chunks.append(text[copied:])
    return b"".join(chunks)


def _raw_keys(text: bytes, tokens_max: int | None) -> Iterator[tuple[int, int]]:
    """Yield where each raw key begins and ends: a bare word, or a whole object or list, inside which nothing else is a key."""
    open_objects = [False]  # for each open container whether it is an object; the first stands for the text itself
    key_at, key_depth = 0, -1  # a key that is an object or a list, while it is open
    expects_key = False
    for count, token in enumerate(_TOKEN.finditer(text)):
        if count == tokens_max:
            raise BadBody("too many words and signs in a body with raw keys")
        sign = text[token.start()]
        if sign in (_OBJECT, _LIST):
            if expects_key:
                key_at, key_depth = token.start(), len(open_objects)
            if len(open_objects) > DEPTH_MAX:
                raise BadBody("JSON is nested too deeply")
            open_objects.append(sign == _OBJECT)
            expects_key = sign == _OBJECT and key_depth < 0
        elif sign in (_END_OBJECT, _END_LIST):
            if len(open_objects) > 1:
                open_objects.pop()
            expects_key = False
            if len(open_objects) == key_depth:
                yield key_at, token.end()
                key_depth = -1
        elif key_depth < 0:
            if expects_key and sign not in (_COLON, _COMMA, _QUOTE):
                yield token.span()
            expects_key = sign == _COMMA and open_objects[-1]


def _quoted(raw: bytes) -> bytes:
    return msgspec.json.encode(raw.decode())


# ---------------------------------------------------------------- what msgspec does not know


@cache
def _reader(kind: Any) -> Reader | None:
    """Return a function that prepares decoded JSON for a type with queues or enums; None if nothing has to be prepared."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is MessageQueue:
        return _read_queue
    if isinstance(kind, type) and issubclass(kind, IntEnum | StrEnum):
        return partial(_read_member, kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        readers = {field.encode_name: reader for field in msgspec.structs.fields(kind) if (reader := _reader(field.type))}
        return partial(_read_struct, readers) if readers else None
    if origin in (Union, UnionType):
        return next((reader for argument in arguments if (reader := _reader(argument))), None)
    if origin is list:
        reader = _reader(arguments[0])
        return partial(_read_list, reader) if reader else None
    if origin is dict:
        reader = _reader(arguments[1])
        if arguments[0] is MessageQueue:
            return partial(_read_queue_table, reader or _same)
        return partial(_read_dict, reader) if reader else None
    return None


class _QueueBody(Body):
    topic: str = ""
    broker_name: str = ""
    queue_id: I32 = 0


def _read_queue(value: Any) -> MessageQueue:
    queue = convert(value, _QueueBody, strict=False)
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def _read_key(text: str) -> MessageQueue:
    queue = from_json(_QueueBody, text.encode())
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def _read_queue_table(reader: Reader, value: Any) -> Any:
    if isinstance(value, dict):
        return {_read_key(key): reader(item) for key, item in value.items()}
    if isinstance(value, list):  # the form for C++ clients: queues with an offset
        return {_read_queue(item): item.get("offset", 0) for item in value if isinstance(item, dict)}
    return value


def _read_member(kind: type[IntEnum] | type[StrEnum], value: Any) -> int | str | None:
    if isinstance(value, str):
        member = kind.__members__.get(value.upper())
        return None if member is None else member.value
    if isinstance(value, int) and issubclass(kind, StrEnum):
        return next((member.value for ordinal, member in enumerate(kind) if ordinal == value), None)
    return value if isinstance(value, int) and value in kind._value2member_map_ else None


def _read_struct(readers: dict[str, Reader], value: Any) -> Any:
    if isinstance(value, dict):
        for name, reader in readers.items():
            if name in value:
                value[name] = reader(value[name])
    return value


def _read_list(reader: Reader, value: Any) -> Any:
    return [reader(item) for item in value] if isinstance(value, list) else value


def _read_dict(reader: Reader, value: Any) -> Any:
    return {key: reader(item) for key, item in value.items()} if isinstance(value, dict) else value


def _same(value: Any) -> Any:
    return value


# ---------------------------------------------------------------- write


def to_json(value: Any, *, quoted: bool = False) -> bytes:
    """Return a value as compact JSON, keys of objects in alphabetical order as fastjson writes them.

    Keys that are numbers or queues are written raw, as every known client reads them, or with ``quoted`` as strings, which is
    standard JSON. Enums go by name, sets as lists, None is left out.
    """
    chunks: list[bytes] = []
    _write(value, quoted, chunks)
    return b"".join(chunks)


def _write(value: Any, quoted: bool, out: list[bytes]) -> None:
    if type(value) in _SIMPLE:
        out.append(msgspec.json.encode(value))
    elif isinstance(value, MessageQueue):
        out.append(_queue_text(value))
    elif isinstance(value, msgspec.Struct):
        names, items = _names(type(value))
        named = {name: item for name, item in zip(names, items(value)) if item is not None}
        if _SIMPLE.issuperset(map(type, named.values())):  # most of a large body: one call writes it
            out.append(msgspec.json.encode(named))
        else:
            _write_pairs([(msgspec.json.encode(name), item) for name, item in named.items()], quoted, out)
    elif isinstance(value, dict):
        _write_pairs([(_key(key, quoted), item) for key, item in value.items() if item is not None], quoted, out)
    elif isinstance(value, Enum):
        out.append(b'"%s"' % value.name.encode())
    elif value is None or isinstance(value, (str, int, float)):
        out.append(msgspec.json.encode(value))
    else:
        listed = sorted(value) if isinstance(value, (set, frozenset)) else value
        for index, item in enumerate(listed):
            out.append(b"," if index else b"[")
            _write(item, quoted, out)
        out.append(b"]" if listed else b"[]")


def _write_pairs(pairs: list[tuple[bytes, Any]], quoted: bool, out: list[bytes]) -> None:
    sign = b"{"
    for key, item in pairs:
        out += (sign, key, b":")
        _write(item, quoted, out)
        sign = b","
    out.append(b"}" if pairs else b"{}")


_SIMPLE = frozenset((str, int, float, bool))


@cache
def _names(cls: type[msgspec.Struct]) -> tuple[list[str], Callable[[Any], tuple[Any, ...]]]:
    """Return the sorted wire names of a struct's fields, and a function that reads the fields in that order."""
    pairs = sorted((field.encode_name, field.name) for field in msgspec.structs.fields(cls))
    attributes = [attribute for _, attribute in pairs]
    read = attrgetter(*attributes) if len(attributes) > 1 else lambda value: tuple(getattr(value, name) for name in attributes)
    return [name for name, _ in pairs], read


def _key(key: Any, quoted: bool) -> bytes:
    if isinstance(key, str):
        return msgspec.json.encode(key)
    raw = _queue_text(key) if isinstance(key, MessageQueue) else b"%d" % key
    return _quoted(raw) if quoted else raw


def _queue_text(queue: MessageQueue) -> bytes:
    name, topic = msgspec.json.encode(queue.broker_name), msgspec.json.encode(queue.topic)
    return b'{"brokerName":%s,"queueId":%d,"topic":%s}' % (name, queue.queue_id, topic)
