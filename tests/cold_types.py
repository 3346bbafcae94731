"""A program of its own: every type that values are converted to, from cold, by four threads at once, each in a fresh process.

It imports everything and converts nothing; then each child of it converts values of one type, of which msgspec knows nothing yet.
Prints a line for each child that died or in which a thread saw something else than the others; ends with how many there were.
``unguarded`` takes the lock away, and shows what it is for.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

import halfmoon
from halfmoon import conversion
from halfmoon.events.encoding.codec import JSON, Codecs
from halfmoon.model import MessageQueue
from halfmoon.wire.json import Body, from_json
from halfmoon.wire.table import Header, parse

THREADS = 4
T = TypeVar("T")


class Colour(Enum):
    """A member of payloads."""

    RED = "red"


class Price(msgspec.Struct):
    """A class of a user, as are those that follow."""

    amount: Annotated[int, msgspec.Meta(ge=0)]
    currency: Annotated[str, msgspec.Meta(max_length=3)]
    colour: Colour


class Address(TypedDict):
    street: str
    city: str
    price: Price


class Line(NamedTuple):
    name: str
    address: Address
    price: Price | None


@dataclass
class Order:
    number: int
    address: Address
    lines: list[Line]
    total: Price


class Page(msgspec.Struct, Generic[T]):
    of: T
    more: list[T]
    order: Order


class Chain(msgspec.Struct):
    line: Line
    page: Page[Price]
    next: Chain | None = None


PAYLOADS: list[Any] = [Price, Address, Line, Order, Page[Price], Chain, list[Chain], dict[str, Order]]


def imported() -> None:
    """Import every module of the package that needs nothing which is not there, and does not begin to run when imported."""
    for found in pkgutil.walk_packages(halfmoon.__path__, "halfmoon.", onerror=lambda name: None):
        last, place = found.name.rpartition(".")[2], found.name.split(".")
        if last != "__main__" and place[1] not in ("spark", "cli", "testing") and "django" not in place:
            try:
                import_module(found.name)
            except ImportError:
                continue
    try:
        import_module("halfmoon.spark.lake.manifest")
    except ImportError:
        return


def structs(base: type = msgspec.Struct) -> Iterator[type]:
    """Yield the classes of the package that msgspec can make values of."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("halfmoon."):
            yield kind
        yield from structs(kind)


def sample(kind: Any, depth: int = 0) -> Any:
    """Return plain data of a type, with something in every field: what is not there is not looked up."""
    origin, parts = get_origin(kind), get_args(kind)
    if depth > 6 or kind is type(None):
        return None
    if origin is Annotated:
        return sample(parts[0], depth)
    if origin in (Union, UnionType):
        return sample(parts[0], depth + 1)
    if origin in (list, tuple, set, frozenset) and parts:
        return [sample(parts[0], depth + 1)]
    if origin is dict:
        key = '{"topic":"T","brokerName":"b","queueId":1}' if parts[0] is MessageQueue else str(sample(parts[0], depth + 1))
        return {key: sample(parts[1], depth + 1)}
    if kind is MessageQueue:
        return {"topic": "T", "brokerName": "b", "queueId": 1}
    if isinstance(origin or kind, type):
        return _of_class(kind, origin or kind, depth)
    return {}


def _of_class(kind: Any, cls: type, depth: int) -> Any:
    if issubclass(cls, msgspec.Struct):
        return {field.encode_name: sample(field.type, depth + 1) for field in msgspec.structs.fields(kind)}
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [sample(hint, depth + 1) for hint in get_type_hints(cls).values()]
    if issubclass(cls, Enum):
        return next(iter(cls)).value
    if hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__total__"):
        return {name: sample(hint, depth + 1) for name, hint in get_type_hints(cls).items()}
    return {bool: True, int: 1, float: 1.5, str: "1", bytes: "MQ=="}.get(cls, {})


def way(kind: Any) -> Callable[[], Any]:
    """Return what makes a value of a type in the way in which the package does."""
    plain = sample(kind)
    if isinstance(kind, type) and issubclass(kind, Header):
        fields = {name: str(value).lower() for name, value in plain.items()}
        return lambda: parse(kind, fields)
    text = msgspec.json.encode(plain)
    if isinstance(kind, type) and issubclass(kind, Body):
        return lambda: from_json(kind, text)
    if kind in PAYLOADS:
        codecs = Codecs()
        return lambda: codecs.decode(JSON, 1, text, into=kind)
    return lambda: conversion.convert(plain, kind, strict=False)


def outcome(convert: Callable[[], Any]) -> str:
    """Return the value as text, or the error: what a thread saw."""
    try:
        return re.sub(r" at 0x\w+", "", repr(convert()))
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"


def in_a_child(convert: Callable[[], Any]) -> int:
    """Return how a child ended in which four threads convert: 0, -N for signal N, or 3 when they saw different things."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    barrier, seen = threading.Barrier(THREADS), []

    def go() -> None:
        barrier.wait()
        seen.append(outcome(convert))

    threads = [threading.Thread(target=go) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0 if set(seen) == {outcome(convert)} else 3)


def main() -> None:
    """Print the types of which a child died, and how many types there were."""
    imported()
    if "unguarded" in sys.argv:
        conversion._lock = nullcontext()  # type: ignore[assignment]
        conversion.make_known = lambda kind: None
    sys.setswitchinterval(1e-6)
    kinds: list[Any] = [*dict.fromkeys(structs()), *PAYLOADS]
    died = 0
    for kind in kinds:
        convert = way(kind)
        for _ in range(1 if "unguarded" in sys.argv else 2):
            if end := in_a_child(convert):
                died += 1
                print("died", kind, end)
    print(len(kinds), "types,", died, "died")


if __name__ == "__main__":
    main()
