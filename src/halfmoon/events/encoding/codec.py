"""Payloads as bytes and back, by content type and version. Never builds a type that a message names, and knows no message.

JSON, msgpack, bytes and text are there; others are added. What is decoded is plain data (dicts, lists, texts, numbers) unless
the reader says into which type. Old versions of a payload are turned into new ones by functions that the reader gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from halfmoon.conversion import convert, make_known
from halfmoon.events.encoding.codec_check import NotEncodable, check, exact
from halfmoon.events.encoding.read_back import ReadBack
from halfmoon.events.errors import PayloadRefused
from halfmoon.limits import BODY_BYTES_MAX

JSON, MSGPACK, BYTES, TEXT = "application/json", "application/msgpack", "application/octet-stream", "text/plain"

CODECS_MAX = 100
UPCASTS_MAX = 10_000
VERSION_MAX = 1_000_000

Upcast = TypeVar("Upcast", bound=Callable[[Any], Any])


class EncodedPayload(msgspec.Struct, frozen=True):
    """A payload as it travels. ``type_name`` says of what type it was, for people to read; empty for plain data."""

    content_type: str
    version: int
    body: bytes
    type_name: str = ""


class Codecs:
    """Turns payloads into bytes and back.

    ::

        codecs = Codecs()

        @codecs.upcast("TP_ORDER", "EC_PAID", from_version=1)  # version 2 is the newest now
        def with_currency(payload): return {**payload, "currency": "EUR"}

    JSON (the default) and msgpack take dicts with texts as names, lists, texts, finite numbers (ints of 64 bits), None,
    dataclasses, msgspec Structs, pydantic models, TypedDicts, and datetimes, UUIDs, Decimals and Enums as `msgspec` writes them;
    msgpack takes bytes and ints as names besides. Tuples and sets arrive as lists. Bytes travel as they are, and a text does with
    content type ``text/plain``. Any other value is refused with the place inside the payload; nothing is lost silently.

    Declare before messages flow; after that it may be used by many threads.
    """

    def __init__(self) -> None:
        self._codecs: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
            JSON: (_encode_json, msgspec.json.decode),
            MSGPACK: (_encode_msgpack, msgspec.msgpack.decode),
            BYTES: (_encode_bytes, bytes),
            TEXT: (_encode_text, _decode_text),
        }
        self._upcasts: dict[tuple[str, str, int], Callable[[Any], Any]] = {}
        self._newest: dict[tuple[str, str], int] = {}

    # ------------------------------------------------------------ declarations

    def add(self, content_type: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        """Carry another content type, or carry one differently.

        ``decode`` gets bytes that anybody may have sent: it must not build objects that they name. An error of either one refuses
        the payload.
        """
        if len(self._codecs) >= CODECS_MAX:
            raise PayloadRefused(f"more than {CODECS_MAX} content types")
        self._codecs[_media_type(content_type)] = (encode, decode)

    def upcast(self, topic: str = "*", code: str = "*", *, from_version: int) -> Callable[[Upcast], Upcast]:
        """Have a function turn payloads of one version into the next: plain data in, plain data out; a decorator.

        ``*`` stands for any topic or code. Several are chained. The newest version is then at least ``from_version + 1``.
        """
        _check_version(from_version)

        def keep(function: Upcast) -> Upcast:
            if (topic, code, from_version) in self._upcasts:
                raise PayloadRefused(f"{topic}/{code}: two functions turn version {from_version} into {from_version + 1}; keep one")
            if len(self._upcasts) >= UPCASTS_MAX:
                raise PayloadRefused(f"more than {UPCASTS_MAX} functions turn old payloads into new ones")
            self.accept(from_version + 1, topic, code)
            self._upcasts[topic, code, from_version] = function
            return function

        return keep

    def accept(self, version: int, topic: str = "*", code: str = "*") -> None:
        """Say that payloads up to ``version`` are understood here; without it, and without an upcast, that is 1."""
        _check_version(version)
        self._newest[topic, code] = max(version, self._newest.get((topic, code), 1))

    def newest(self, topic: str = "*", code: str = "*") -> int:
        """Return the newest version of a payload that is understood here."""
        return max((self._newest.get(place, 1) for place in _places(topic, code)), default=1)

    # ------------------------------------------------------------ both ways

    def encode(self, payload: Any, *, content_type: str | None = None, version: int = 1) -> EncodedPayload:
        """Return a payload as bytes, at most 4 MiB. Without a content type bytes travel as they are, the rest as JSON.

        Raises PayloadRefused, with the place inside the payload and what to do.
        """
        _check_version(version)
        if not content_type:
            content_type = BYTES if isinstance(payload, bytes | bytearray | memoryview) else JSON
        encode, _ = self._codec(content_type)
        try:
            body = encode(payload)
        except NotEncodable as exc:
            raise PayloadRefused(f"{exc}; the payload cannot be encoded as {content_type}") from None
        except PayloadRefused:
            raise
        except Exception as exc:
            raise PayloadRefused(f"payload: it cannot be encoded as {content_type}: {exc}") from exc
        if not isinstance(body, bytes):
            raise PayloadRefused(f"payload: the codec of {content_type} gave {type(body).__name__}, not bytes")
        if not body:
            raise PayloadRefused("payload: it has no bytes, and brokers take no empty message; publish None or a text that says so")
        if len(body) > BODY_BYTES_MAX:
            raise PayloadRefused(
                f"payload: {len(body)} bytes, over the {BODY_BYTES_MAX} a message holds; store it elsewhere and publish where"
            )
        kind = type(payload)
        return EncodedPayload(
            content_type, version, body, "" if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )

    def decode(self, content_type: str, version: int, body: bytes, *, topic: str = "*", code: str = "*", into: Any = None) -> Any:
        """Return a payload: plain data, or ``into`` (a dataclass, Struct, TypedDict or pydantic model, or `list` of them).

        Raises PayloadRefused for an unknown content type, a version newer than is known here, and bytes that do not fit.
        """
        _, decode = self._codec(content_type)
        newest = self.newest(topic, code)
        if not 1 <= version <= newest:
            raise PayloadRefused(
                f"payload of {topic}/{code}: version {version} is not understood here, {newest} is the newest; "
                f"bring this program up to date, or declare it with Codecs.accept({version}, {topic!r}, {code!r})"
            )
        try:
            payload = decode(body)
        except Exception as exc:
            raise PayloadRefused(f"payload of {topic}/{code}: the bytes are not {content_type}: {exc}") from exc
        for old in range(version, newest):
            payload = self._raised(payload, old, topic, code)
        return payload if into is None else _into(payload, into, f"payload of {topic}/{code}")

    def _raised(self, payload: Any, version: int, topic: str, code: str) -> Any:
        function = next((f for place in _places(topic, code) if (f := self._upcasts.get((*place, version)))), None)
        if function is None:
            raise PayloadRefused(
                f"payload of {topic}/{code}: nothing turns version {version} into {version + 1}; "
                f"add a function with @Codecs.upcast({topic!r}, {code!r}, from_version={version})"
            )
        try:
            return function(payload)
        except Exception as exc:
            raise PayloadRefused(f"payload of {topic}/{code}: version {version} does not become {version + 1}: {exc!r}") from exc

    def _codec(self, content_type: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        codec = self._codecs.get(content_type) or self._codecs.get(_media_type(content_type))
        if codec is None:
            known = ", ".join(sorted(self._codecs))
            raise PayloadRefused(f"content type {content_type!r:.80}: unknown; use one of {known}, or add it with Codecs.add")
        return codec


def _places(topic: str, code: str) -> tuple[tuple[str, str], ...]:
    return (topic, code), (topic, "*"), ("*", code), ("*", "*")


def _media_type(content_type: str) -> str:
    """``Text/Plain; charset=utf-8`` is ``text/plain``; another charset is another content type."""
    name, _, parameters = content_type.partition(";")
    options = parameters.strip().lower().replace('"', "")
    return name.strip().lower() if options in ("", "charset=utf-8", "charset=utf8") else content_type


def _check_version(version: object) -> None:
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise PayloadRefused(f"version {version!r:.40}: use a whole number from 1 to {VERSION_MAX}")


# ---------------------------------------------------------------- the four that are there

_json = msgspec.json.Encoder(enc_hook=exact)
_msgpack = msgspec.msgpack.Encoder(enc_hook=exact)


def _encode_json(payload: Any) -> bytes:
    for value in check(payload, with_bytes=False):
        _json_back.check(value)
    return _json.encode(payload)


def _encode_msgpack(payload: Any) -> bytes:
    for value in check(payload, with_bytes=True):
        _msgpack_back.check(value)
    return _msgpack.encode(payload)


def _encode_bytes(payload: Any) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise NotEncodable(f"{type(payload).__name__} is not bytes")
    return bytes(payload)


def _encode_text(payload: Any) -> bytes:
    if not isinstance(payload, str):
        raise NotEncodable(f"{type(payload).__name__} is no text")
    check(payload, with_bytes=False)
    return payload.encode()


def _decode_text(body: bytes) -> str:
    return body.decode()


def make_payload_known(into: Any) -> None:
    """Look up what a type of payloads is made of, before threads use it. Raises PayloadRefused for one that is no such type."""
    if into is None or hasattr(into, "__pydantic_validator__"):
        return
    try:
        make_known(into)
    except Exception as exc:
        raise PayloadRefused(f"payload={getattr(into, '__name__', into)}: nothing can be decoded into it: {exc}") from exc


def _into(payload: Any, into: Any, place: str) -> Any:
    try:
        return _read(payload, into)
    except Exception as exc:
        raise PayloadRefused(f"{place}: does not match {getattr(into, '__name__', into)}: {exc}") from exc


def _read(payload: Any, into: Any) -> Any:
    if hasattr(into, "__pydantic_validator__"):  # its dataclasses, too: msgspec would not validate them
        return _validated(into, payload)
    return convert(payload, into, str_keys=True, dec_hook=_validated)


def _readable(kind: type) -> bool:
    try:
        make_payload_known(kind)
    except PayloadRefused:
        return False
    return True


def _validated(kind: type, value: Any) -> Any:
    """Build a pydantic model, which validates by its own rules; as JSON, for strict ones take a date only from there."""
    validator = getattr(kind, "__pydantic_validator__", None)
    if validator is None:
        raise TypeError(f"{kind.__name__} is not a type that payloads can be decoded into")
    return validator.validate_json(_json.encode(value))


_json_back = ReadBack(lambda value: msgspec.json.decode(_json.encode(value)), _read, _readable)
_msgpack_back = ReadBack(lambda value: msgspec.msgpack.decode(_msgpack.encode(value)), _read, _readable)
