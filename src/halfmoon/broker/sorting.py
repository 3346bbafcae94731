"""Kinds of the requests of a turn: sends and decisions, those that are handled last, and all others. Decodes nothing."""

from __future__ import annotations

from collections.abc import Container

from halfmoon.broker.request import Handler
from halfmoon.broker.send.gate import Gate
from halfmoon.broker.transactions.decisions import END_TRANSACTION, Decisions
from halfmoon.wire.command import code_at
from halfmoon.wire.peer import Asked
from halfmoon.wire.table import request_type


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


def takers(gate: Gate, decisions: Decisions) -> dict[int, Handler]:
    """Return what takes sends and decisions, by request code: those of a turn are carried out together."""
    return {END_TRANSACTION: decisions.take, **{request_type(header).code: gate.take for header in gate.handlers()}}
