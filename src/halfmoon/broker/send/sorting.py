"""Kinds of the requests of a turn: sends and decisions, those that are handled last, and all others. Decodes nothing."""

from __future__ import annotations

from collections.abc import Container

from halfmoon.broker.request import Handler
from halfmoon.broker.send.gate import Gate
from halfmoon.broker.transactions.decisions import END_TRANSACTION, Decisions
from halfmoon.hot import Frame
from halfmoon.wire.command import code_at
from halfmoon.wire.peer import Asked, Peer
from halfmoon.wire.table import request_type

Cut = tuple[Peer, bytes, list[Frame]]
"""Frames that a connection brought, and the bytes that they lie in."""


def sort(
    asked: list[Asked], gathered: Container[int], last: Container[int], requests: list[Asked], pulls: list[Asked]
) -> list[Asked]:
    """Append requests to those of a turn, those with ``last`` codes to its pulls; return those with codes that are ``gathered``.

    One that stands behind another request of its connection, which may be what it needs, is handled in their order.
    """
    others = {peer for peer, _, _ in requests}
    found: list[Asked] = []
    for one in asked:
        peer, data, frame = one
        code = code_at(data, frame)
        if code in gathered and peer not in others:
            found.append(one)
        elif code in last:
            pulls.append(one)
        else:
            requests.append(one)
            others.add(peer)
    return found


def split(cut: list[Cut], gathered: Container[int], waits: Container[Peer], requests: list[Asked]) -> tuple[list[Asked], list[Cut]]:
    """Return the requests with ``gathered`` codes at the begin of what connections brought, and all others.

    The former do not count in a connection's share of a turn: they are carried out together. A connection with requests that wait,
    or that have to be handled before, keeps its order.
    """
    others = {peer for peer, _, _ in requests}
    found: list[Asked] = []
    rest: list[Cut] = []
    for peer, data, frames in cut:
        end = 0
        if peer not in waits and peer not in others:
            end = next((at for at, frame in enumerate(frames) if code_at(data, frame) not in gathered), len(frames))
            found += [(peer, data, frame) for frame in frames[:end]]
        if end < len(frames):
            rest.append((peer, data, frames[end:]))
    return found, rest


def takers(gate: Gate, decisions: Decisions) -> dict[int, Handler]:
    """Return what takes sends and decisions, by request code: those of a turn are carried out together."""
    return {END_TRANSACTION: decisions.take, **{request_type(header).code: gate.take for header in gate.handlers()}}
