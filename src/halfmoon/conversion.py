"""Typed decoding by msgspec: a type is made known to it here, by one thread, before any value is converted to it.

msgspec looks up the fields of a class when a value is first converted to it, and shows the class to other threads before it is
done: one that comes at that moment reads a null pointer, and the interpreter dies. So a type's first time is behind a lock here,
with everything that it is made of. No other module of the package calls msgspec with a type; a test of the house says so.
Encoding looks nothing up, and may be called anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import msgspec

Decoder = msgspec.json.Decoder[Any]
"""Decoder that `json_decoder` returns."""

CLASSES_MAX = 10_000
"""Most classes that are remembered as known. A program that makes classes without end has its lookups repeated, which is cheap."""

_lock = RLock()  # of one thread's lookups; one may lead to another, through what an annotation calls
_known: set[type] = set()
_convert = msgspec.convert


def make_known(kind: Any) -> None:
    """Have msgspec look up the fields of a type, once.

    Raises what msgspec does for one that it cannot handle: TypeError, NameError and their like.
    """
    with _lock:
        msgspec.msgpack.Decoder(kind)  # of all ways to have it looked up, the one that refuses least
        if isinstance(kind, type):  # anything else (``list[Order]``) is another object, and cold again, where it is written again
            if len(_known) >= CLASSES_MAX:
                _known.clear()
            _known.add(kind)


def convert(
    value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False, dec_hook: Callable[[type, Any], Any] | None = None
) -> Any:
    """Return plain data as a value of a type, as `msgspec.convert` does. Raises msgspec.ValidationError."""
    if not isinstance(kind, type) or kind not in _known:
        make_known(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys, dec_hook=dec_hook)


def from_texts(value: Any, kind: type) -> Any:
    """Return plain data as a value of a class; numbers and truth values may be texts. Every header comes through here."""
    if kind not in _known:
        make_known(kind)
    return _convert(value, kind, strict=False)


def json_decoder(kind: Any, *, strict: bool = True) -> Decoder:
    """Return a decoder of JSON text for a type; threads may share it."""
    with _lock:
        return msgspec.json.Decoder(kind, strict=strict)


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of msgpack for a type; threads may share it."""
    with _lock:
        return msgspec.msgpack.Decoder(kind)
