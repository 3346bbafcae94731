"""Which broker coordinates a transactional id: a stored fact, asked of all brokers before the first message.

Never guessed from which brokers there are today. Where nobody knows the id, one broker of today is chosen, told first and durably,
and then the others. Two clients that see different brokers may choose two at once: then the one that has decided nothing gives the
id up, durably, before anybody who was told of it is told otherwise. So of two only one ever decides, as long as one broker is
there, or missed, that knows. Where all who know have left the cluster nobody does; nor where a name server that was started empty
has heard so far only of a broker that knows nothing, for then the others are not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from halfmoon.effects import Op, gather
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, RequestNotSupported, UsageError
from halfmoon.wire.bodies.batches import coordinator_of
from halfmoon.wire.command import Command
from halfmoon.wire.headers.batch import CoordinateBatches, CoordinateBatchesReply
from halfmoon.wire.table import Header

ROUNDS_MAX = 10
"""How often brokers are asked anew when others change what they know meanwhile."""

Ask = Callable[[str, Header], Op[Command]]
"""Asks an address once; returns the reply of code 0. Raises NetworkError, BrokerError."""


def coordinator(owner: str, masters: Mapping[str, str], absent: Sequence[str], ask: Ask) -> Op[str]:
    """Return who coordinates an id; every broker that answers knows it then.

    ``masters`` are the brokers by name, with their addresses; ``absent`` those whose master no name server knows.

    Raises:
        UsageError: no broker knows batch transactions; the coordinator knows nothing of an id that others know (its store was
            lost); or two have decided batches of it.
        NetworkError: the coordinator cannot be reached; or nobody knows one, and a broker that may cannot; or there is no broker.
    """
    for _ in range(ROUNDS_MAX):
        name = yield from _round(owner, masters, absent, ask)
        if name is not None:
            return name
    raise NetworkError(f"brokers do not agree on who coordinates {owner}")


def _round(owner: str, masters: Mapping[str, str], absent: Sequence[str], ask: Ask) -> Op[str | None]:
    """Ask all brokers, and bring those that do not agree to do so; return None to ask again."""
    known, silent = yield from _everybody(owner, masters, ask)
    named = sorted({reply.coordinator for reply in known.values() if reply.coordinator})
    if not named:
        unheard = {**silent, **dict.fromkeys(absent, "no name server knows its master")}
        return (yield from _first(owner, masters, known, unheard, ask))
    for name in named:
        if name not in known:
            raise NetworkError(f"{name} coordinates {owner}, and {silent.get(name, 'no name server knows it')}")
        yield from _confirm(owner, name, masters, known, ask)
    claimants = [name for name in named if known[name].coordinator == name]
    if not claimants:
        return None
    return (yield from _agree(owner, _elected(owner, claimants, known), claimants, masters, known, ask))


def _confirm(owner: str, name: str, masters: Mapping[str, str], known: dict[str, CoordinateBatchesReply], ask: Ask) -> Op[None]:
    """Ask the broker that others name who coordinates an id. Raises UsageError when it does not know."""
    if not known[name].coordinator:  # it is told first: asked now, it knows what others knew a moment ago
        reply = yield from ask(masters[name], CoordinateBatches(transactional_id=owner))
        known[name] = reply.header(CoordinateBatchesReply)
    if not known[name].coordinator:
        raise UsageError(
            f"{name} coordinates {owner} and knows nothing of it: its store was lost, or it knew of too many others "
            "(batch_ids_max). Nothing is written, for it could be there already. Compare the topic with the query's input; a "
            "new transactionalId begins anew"
        )


def _elected(owner: str, claimants: Sequence[str], known: Mapping[str, CoordinateBatchesReply]) -> str:
    """Return which of several coordinators stays: the one that has decided a batch. Raises UsageError when two have."""
    decided = [name for name in claimants if known[name].last >= 0]
    if len(decided) > 1:
        raise UsageError(
            f"{' and '.join(decided)} have both decided batches of {owner}: one was chosen when no broker was there that knew "
            "of the other. Compare the topic with the query's input; a new transactionalId begins anew"
        )
    return decided[0] if decided else coordinator_of(owner, claimants)


def _agree(
    owner: str, elected: str, claimants: Sequence[str], masters: Mapping[str, str], known: Mapping[str, CoordinateBatchesReply],
    ask: Ask,
) -> Op[str | None]:  # fmt: skip
    """Tell all brokers who coordinates an id, and return that; None when one of them knows better by now."""
    for name in claimants:  # they give it up before anybody is told to look elsewhere
        if name != elected and (yield from _tell(owner, masters[name], elected, name, ask)) != elected:
            return None
    others = [name for name, reply in known.items() if reply.coordinator != elected and name not in claimants]
    answers = yield from gather([_tell(owner, masters[name], elected, known[name].coordinator, ask) for name in others])
    for answer in answers:
        if isinstance(answer, Exception):
            if not isinstance(answer, (NetworkError, BrokerError)):
                raise answer  # a broker that cannot be told now is told by the first piece that it gets
        elif answer != elected:
            return None
    return elected


def _first(
    owner: str, masters: Mapping[str, str], known: Mapping[str, CoordinateBatchesReply], silent: Mapping[str, str], ask: Ask
) -> Op[str | None]:
    """Nobody knows the id: choose who coordinates it, unless somebody might know who could not be asked."""
    if silent:
        name, reason = next(iter(sorted(silent.items())))
        raise NetworkError(f"no broker that answers knows who coordinates {owner}, and {name} may: {reason}")
    if not masters:
        raise NetworkError(f"who coordinates {owner} is not known: name servers know no broker now")
    if not known:
        raise UsageError(
            f"no broker of {', '.join(sorted(masters))} knows batch transactions, so nothing can be written exactly once "
            "there: delivery=at-least-once works with every broker"
        )
    name = coordinator_of(owner, known)
    yield from _tell(owner, masters[name], name, "", ask)
    return None


def _everybody(owner: str, masters: Mapping[str, str], ask: Ask) -> Op[tuple[dict[str, CoordinateBatchesReply], dict[str, str]]]:
    """Return what brokers know, by name, and of those that do not answer why. One without batch transactions knows nothing."""
    names = sorted(masters)
    header = CoordinateBatches(transactional_id=owner)
    answers = yield from gather([ask(masters[name], header) for name in names])
    known: dict[str, CoordinateBatchesReply] = {}
    silent: dict[str, str] = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, RequestNotSupported):
            continue
        if isinstance(answer, HalfmoonError):
            silent[name] = str(answer)
        elif isinstance(answer, Exception):
            raise answer
        else:
            known[name] = answer.header(CoordinateBatchesReply)
    return known, silent


def _tell(owner: str, address: str, coordinator: str, instead_of: str, ask: Ask) -> Op[str]:
    """Tell a broker who coordinates an id; return who does as it knows now."""
    header = CoordinateBatches(transactional_id=owner, coordinator=coordinator, instead_of=instead_of or None)
    return (yield from ask(address, header)).header(CoordinateBatchesReply).coordinator
