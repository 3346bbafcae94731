"""The smallest operations: one request and its reply. Every other operation of the client is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from halfmoon.effects import Call, Op, Tell, gather
from halfmoon.errors import HalfmoonError, PartlyDone, RequestNotSupported, broker_error
from halfmoon.wire.command import Command
from halfmoon.wire.table import Header

T = TypeVar("T")


def call(address: str, request: Header, body: bytes = b"", timeout_ms: int = 3_000) -> Op[Command]:
    """Send a request; return the reply whatever its code. Raises NetworkError."""
    reply: Command = yield Call(address, request, body, timeout_ms)
    return reply


def knows(address: str, request: Header, timeout_ms: int = 3_000) -> Op[bool]:
    """Return whether a server knows a request, even where it refuses it to us. Raises NetworkError."""
    reply = yield from call(address, request, b"", timeout_ms)
    return reply.code != RequestNotSupported.code


def ask(address: str, request: Header, body: bytes = b"", timeout_ms: int = 3_000) -> Op[Command]:
    """Send a request; return the reply of code 0. Raises NetworkError, BrokerError."""
    reply: Command = yield Call(address, request, body, timeout_ms)
    if reply.code != 0:
        raise broker_error(reply.code, reply.remark, address)
    return reply


def tell(address: str, request: Header, body: bytes = b"", timeout_ms: int = 3_000, remark: str | None = None) -> Op[None]:
    """Send a one-way request; ``remark`` is a text for the broker's log. Raises NetworkError."""
    yield Tell(address, request, body, timeout_ms, remark)


def at_each(changes: Mapping[str, Op[T]]) -> Op[dict[str, T]]:
    """Carry out changes at several servers, by the server's name, side by side; return the results.

    A server that fails keeps none of the others from its change. Raises its error where no server made the change, else PartlyDone.
    """
    done: dict[str, T] = {}
    failed: dict[str, HalfmoonError] = {}
    for name, outcome in zip(changes, (yield from gather([*changes.values()]))):
        if isinstance(outcome, HalfmoonError):
            failed[name] = outcome
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            done[name] = outcome
    if failed and not done:
        raise next(iter(failed.values()))
    if failed:
        raise PartlyDone(done, failed)
    return done
