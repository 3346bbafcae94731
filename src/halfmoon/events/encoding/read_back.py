"""Test that typed payloads come back as they were written, with the first payload of each shape.

A class may write what it does not read: other names for its fields, fields that are left out, texts in place of secrets, fields of
a subclass where the base class is declared. Consumers would refuse each such event, or get other values. An object that came back
stands for all of its shape: the types of its fields' values, and of what is inside these. What depends on values alone is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from halfmoon.events.encoding.codec_check import NotEncodable, exact, fields_of

SHAPES_MAX = 1_000
"""Shapes remembered of a class; one that has more has them tried again, which costs what a consumer's reading does."""

_SCALARS = (str, int, float, bool, type(None))
_SCALAR_KINDS = frozenset(_SCALARS)
_PLAIN = (*_SCALARS, bytes, list, dict)


class ReadBack:
    """Tries payloads of one content type. Safe to use from many threads.

    ``plain(value)`` writes a value and reads it as plain data; ``into(data, kind)`` makes that one of a class, or raises;
    ``readable(kind)`` is whether consumers can name the class at all.
    """

    def __init__(self, plain: Callable[[Any], Any], into: Callable[[Any, type], Any], readable: Callable[[type], bool]) -> None:
        self._plain, self._into, self._readable = plain, into, readable
        self._proven: WeakKeyDictionary[type, set[int]] = WeakKeyDictionary()

    def check(self, value: Any) -> None:
        """Raise NotEncodable for an object of a class that does not come back as it is, unless one of its shape did before."""
        kind, shape = type(value), hash(_shape(value))
        proven = self._proven.get(kind)
        if proven is not None and shape in proven:
            return
        if self._readable(kind):
            self._try(value, kind)
        if proven is None or len(proven) >= SHAPES_MAX:
            self._proven[kind] = proven = set()
        proven.add(shape)

    def _try(self, value: Any, kind: type) -> None:
        try:
            read = self._into(self._plain(value), kind)
        except Exception as exc:
            raise NotEncodable(f"{kind.__name__} does not read what it writes: {exc}; {_REMEDY}") from exc
        try:
            _compare(value, read)
        except NotEncodable as exc:
            exc.what = f"{exc.what}; {_REMEDY}"
            raise


def _compare(wrote: Any, read: Any) -> None:
    """Raise NotEncodable, with its place, for a value that came back as another one."""
    kind = type(wrote)
    if (values := fields_of(wrote)) is not None and type(read) is kind:
        _compare_each(((f".{name}", value, getattr(read, name, None)) for name, value in values))
    elif isinstance(wrote, dict) and isinstance(read, dict) and wrote.keys() == read.keys():
        _compare_each(((f"[{name!r:.40}]", value, read[name]) for name, value in wrote.items()))
    elif isinstance(wrote, list | tuple) and isinstance(read, list | tuple) and len(wrote) == len(read):
        _compare_each(((f"[{at}]", value, read[at]) for at, value in enumerate(wrote)))
    elif not _stands_for(wrote, read):
        same = type(read) is kind or fields_of(wrote) is None
        raise NotEncodable(
            f"a {kind.__name__} comes back as another one" if same else f"a {kind.__name__} comes back as {type(read).__name__}"
        )


def _compare_each(pairs: Iterable[tuple[str, Any, Any]]) -> None:
    for place, wrote, read in pairs:
        try:
            _compare(wrote, read)
        except NotEncodable as exc:
            exc.path.append(place)
            raise


def _stands_for(wrote: Any, read: Any) -> bool:
    """Return whether a value came back, or the value that its declaration makes of it: plain data where it names no class."""
    kind = type(wrote)
    if wrote == read or (type(read) is kind and not _compares(kind)):
        return True
    if isinstance(wrote, _SCALARS):
        return type(read) is not kind  # made into what is declared
    return (type(read) in _PLAIN or isinstance(wrote, _PLAIN)) and bool(_as_json(wrote) == _as_json(read))


def _compares(kind: type) -> bool:
    """Return whether objects of a class are equal by their fields; objects of other classes cannot be compared."""
    return any("__eq__" in vars(base) for base in kind.__mro__[:-1])


def _as_json(value: Any) -> Any:
    """Return what stands for a value in JSON, that of a set in some order."""
    data = msgspec.to_builtins(value, enc_hook=exact)
    return sorted(data, key=repr) if isinstance(data, list) else data


def _shape(value: Any) -> Any:
    """Return the types of a value and of all inside it."""
    kind = type(value)
    if kind in _SCALAR_KINDS:
        return kind
    if isinstance(value, dict):
        return kind, frozenset(map(_shape, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return kind, frozenset(map(_shape, value))
    if (values := fields_of(value)) is None:
        return kind
    return kind, tuple([_shape(item) for _, item in values])


_REMEDY = "have the class read what it writes, or publish plain data, such as model_dump(mode='json') of a model"
