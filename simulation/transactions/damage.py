"""Which transactions a damaged disk concerns: of them nothing is asked but that none is visible undecided, or twice.

A half message, a visible record, a copy or an op record that is no record any more takes with it what it said: the half message is
asked about again, or is gone. Of all other transactions everything holds.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from simulation.damage.log import Hit
from simulation.transactions.log import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC, TxLog
from simulation.transactions.producers import key_of

ALWAYS = re.compile(r"leaked: \S+ was read|twice: ")
"""Problems that damaged transactions may not have either."""
_KEY = re.compile(r"\bP_\w+\.\d+-\d+")
_INDEX = re.compile(r"^(?:[\w ]+: )?(\S+): .*?half message (\d+)")
_SAID = re.compile(r"unexpected: logged: half message (\d+) is damaged: ")


class Concerned(NamedTuple):
    """Transactions by key (``keys``), and half messages by broker and index."""

    keys: frozenset[str]
    shown: frozenset[str]
    """Those of which a visible record was hit: another one may be in its place."""
    indexes: frozenset[tuple[str, int]]


def concerned(hits: dict[str, list[Hit]], known: dict[tuple[str, int], str], logs: dict[str, TxLog]) -> Concerned:
    """Return which transactions were hit; ``known`` are the keys of half messages by broker and index."""
    known = known | {(name, index): half.key for name, log in logs.items() for index, half in log.halves.items()}
    keys, shown, indexes = set[str](), set[str](), set[tuple[str, int]]()
    for name, those in hits.items():
        for hit in those:
            if hit.topic == OP_TOPIC:
                indexes |= {(name, int(part)) for part in hit.body.split(b",") if part.isdigit()}
            else:
                keys.add(key_of(hit.body))
            if hit.topic == HALF_TOPIC:
                indexes.add((name, hit.queue_offset))
            elif hit.topic not in (OP_TOPIC, EXPIRED_TOPIC):
                shown.add(key_of(hit.body))
    keys |= {known[at] for at in indexes if at in known}
    return Concerned(frozenset(keys), frozenset(shown), frozenset({*indexes, *(at for at, key in known.items() if key in keys)}))


def of_the_others(problems: dict[str, list[str]], these: Concerned) -> dict[str, list[str]]:
    """Return the problems that are about no damaged transaction, or that none may have; by checker."""
    return {
        checker: [problem for problem in those if not _is_excused(f"{checker}: {problem}", these)]
        for checker, those in problems.items()
    }


def _is_excused(problem: str, these: Concerned) -> bool:
    shown = problem.startswith("twice: ") and these.shown.intersection(_KEY.findall(problem))
    return _about(problem, these) and (not ALWAYS.match(problem) or bool(shown))


def _about(problem: str, these: Concerned) -> bool:
    if said := _SAID.match(problem):
        return any(int(said[1]) == index for _, index in these.indexes)
    found = _INDEX.match(problem)
    if found is not None and (found[1], int(found[2])) in these.indexes:
        return True
    return any(key in these.keys for key in _KEY.findall(problem))
