"""What a core keeps of a date stands here with its reason: durations are kept in steady time, which a set clock does not move."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import halfmoon

ROOT = Path(halfmoon.__file__).parent
CORES = ("broker", "nameserver", "store", "wire")

DATE = "it is compared with dates, or shown as one"
PAUSE = "a pause of 100 ms at most before a date: a step cuts it short, a clock that is held back doubles it"
TURN = "the time of this turn"

KEPT: dict[str, str] = {
    "batches.Batches._snapshot_ms": DATE,
    "state.Streams.touched_ms": DATE,
    "read_ahead.ReadAhead.due": DATE,
    "level_queue.LevelQueue.due": PAUSE,
    "timer.Timer._not_before": PAUSE,
    "uptime.BrokerUptime._gaps": DATE,
    "uptime.BrokerUptime._saved_ms": DATE,
    "uptime.BrokerUptime._seen_ms": DATE,
    "stats.Stats.booted_ms": DATE,
    "lag.CopyLag._copied_ms": DATE,
    "topics.Topics.birth_ms": DATE,
    "commit_log.CommitLog.last_store_ms": DATE,
    "appending.Appending.end_ms": DATE,
    "access.Access._now": TURN,
    "checks.Checks._answers_lost_ms": DATE,
    "ids.UniqueIds._begin": "what the ids of one millisecond begin with: another one is computed anew",
    "store.Store._date": TURN,
}
"""What is made of a date and kept, by module, class and attribute."""


def test_what_a_core_keeps_of_a_date_is_one_and_no_duration() -> None:
    assert {name for module, found in classes() for name in kept(module, found)} == KEPT.keys()


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for package in CORES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield path.stem, node


def kept(module: str, found: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class sets to something made of a date."""
    for function in ast.walk(found):
        if isinstance(function, ast.FunctionDef):
            dates = {each.arg for each in (*function.args.args, *function.args.kwonlyargs) if each.arg == "now" and is_int(each)}
            for node in ast.walk(function):
                for target, value in pairs(node):
                    if isinstance(target, ast.Attribute) and is_date(value, dates):
                        yield f"{module}.{found.name}.{target.attr}"


def is_int(argument: ast.arg) -> bool:
    return isinstance(argument.annotation, ast.Name) and argument.annotation.id == "int"


def pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts)
            else:
                yield target, node.value


def is_date(value: ast.AST, dates: set[str]) -> bool:
    """Whether an expression is made of a date: of ``now.date``, or of a ``now`` that is a number. Not the result of a call."""
    if isinstance(value, ast.Call) and not (isinstance(value.func, ast.Name) and value.func.id in ("min", "max", "int")):
        return False
    if isinstance(value, ast.Attribute):
        return value.attr == "date"
    if isinstance(value, ast.Name):
        return value.id in dates
    return any(is_date(child, dates) for child in ast.iter_child_nodes(value))
