"""Which payloads JSON and msgpack carry unchanged: finds what they do not, and where it stands. Encodes nothing.

An encoder alone does not do: it writes NaN as null, joins the names 1 and "1", and says of a lone surrogate not where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec

DEPTH_MAX = 100
"""Bound of the depth of lists and dicts, which also finds a value that contains itself."""

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""Range of 64 bits, signed or unsigned; other languages read no more."""

_MOMENTS = (datetime, date, time, timedelta, UUID)


class NotEncodable(Exception):
    """Something in a payload cannot travel. The text begins with its place: ``payload.items[3].price: …``."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"payload{''.join(reversed(self.path))}: {self.what}"


class _Walk(msgspec.Struct, kw_only=True):
    """One payload's check. ``typed`` are the objects of typed classes in it that are not inside another one."""

    with_bytes: bool
    inside: bool = False
    typed: list[Any] = []


def check(value: Any, *, with_bytes: bool) -> list[Any]:
    """Raise NotEncodable unless a payload can travel. ``with_bytes``: bytes, and ints as names, may be inside it (msgpack).

    Returns the Structs, objects of dataclasses and models in it, but not those inside others.
    """
    walk = _Walk(with_bytes=with_bytes)
    _check(value, walk, DEPTH_MAX)
    return walk.typed


def exact(value: Any) -> Any:
    """Return what stands for a value that msgspec does not know: a pydantic model's fields, a text of a subclass of str."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__name__} cannot travel")


def _check(value: Any, walk: _Walk, depth: int) -> None:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value)
    elif kind is dict:
        _check_dict(value, walk, depth)
    elif kind is list or kind is tuple:
        _check_list(value, walk, depth)
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise NotEncodable("the number has more than 64 bits; send it as a text")
    elif kind is float:
        if not isfinite(value):
            raise NotEncodable(f"{value} is not a finite number; send None or a text")
    elif value is not None and kind is not bool:
        _check_other(value, walk, depth)


def _check_other(value: Any, walk: _Walk, depth: int) -> None:
    """Check the kinds that are rarer than plain data."""
    if isinstance(value, Enum):
        _check(value.value, walk, depth)
    elif isinstance(value, str | int | float):
        _check(exact(value), walk, depth)
    elif isinstance(value, dict):
        _check_dict(value, walk, depth)
    elif isinstance(value, list | tuple | set | frozenset):
        _check_list(value, walk, depth)
    elif isinstance(value, bytes | bytearray | memoryview):
        if not walk.with_bytes:
            raise NotEncodable("JSON holds no bytes; encode them as base64, or use content_type='application/msgpack'")
    elif isinstance(value, Decimal):
        if not value.is_finite():
            raise NotEncodable(f"{value} is not a finite number; send None or a text")
    elif is_model(value):
        if not walk.inside:
            walk.typed.append(value)
        _check(exact(value), walk, depth)
        _check_finite(value.model_dump(round_trip=True))  # as JSON, some of these are None by now
    elif (items := fields_of(value)) is not None:
        outermost, walk.inside = not walk.inside, True
        if outermost:
            walk.typed.append(value)
        _check_dict({name: item for name, item in items if item is not msgspec.UNSET}, walk, depth)  # such a field is left out
        walk.inside = not outermost
    elif not isinstance(value, _MOMENTS):
        raise NotEncodable(f"{type(value).__name__} cannot be encoded; use dicts, lists, texts, numbers, dataclasses or models")


def _check_finite(value: Any) -> None:
    if isinstance(value, float):
        _check(float.__pos__(value), _Walk(with_bytes=False), 1)
    elif isinstance(value, dict | list | tuple):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                _check_finite(item)
            except NotEncodable as exc:
                exc.path.append(f".{name}" if isinstance(name, str) else f"[{name}]")
                raise


def _check_dict(value: Mapping[Any, Any], walk: _Walk, depth: int) -> None:
    if depth <= 0:
        raise NotEncodable(_TOO_DEEP)
    for name, item in value.items():
        try:
            if type(name) is not str:
                _check_name(name, walk)
            elif not name.isascii():
                _check_text(name)
            _check(item, walk, depth - 1)
        except NotEncodable as exc:
            exc.path.append(f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r:.40}]")
            raise


def _check_list(value: Any, walk: _Walk, depth: int) -> None:
    if depth <= 0:
        raise NotEncodable(_TOO_DEEP)
    for index, item in enumerate(value):
        try:
            _check(item, walk, depth - 1)
        except NotEncodable as exc:
            exc.path.append(f"[{index}]")
            raise


def _check_name(name: Any, walk: _Walk) -> None:
    if isinstance(name, str):
        _check_text(str.__str__(name))
    elif not (walk.with_bytes and type(name) is int and INT_MIN <= name <= INT_MAX):
        remedy = "use a text or an int" if walk.with_bytes else "use a text"
        raise NotEncodable(f"a {type(name).__name__} cannot be a key; {remedy}")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise NotEncodable(f"the text has an unpaired surrogate at character {exc.start}, which UTF-8 cannot encode") from None


def fields_of(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the fields of an object of a typed class with their values; None for anything else."""
    if isinstance(value, msgspec.Struct):
        return zip(value.__struct_fields__, msgspec.structs.astuple(value), strict=True)
    if is_model(value):
        return [*value.__dict__.items(), *(value.__pydantic_extra__ or {}).items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return None


def is_model(value: Any) -> bool:
    """Return whether a value is a pydantic model."""
    return hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump")


_TOO_DEEP = f"more than {DEPTH_MAX} lists and dicts inside each other, or one that contains itself"
