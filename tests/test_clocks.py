"""Whatever a core keeps of the time it is told moves along when the clock is set, or stands here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import halfmoon

ROOT = Path(halfmoon.__file__).parent
CORES = ("broker", "nameserver", "store", "wire")

DATE = "a date: it is compared with dates, or shown as one"
PAUSE = "a pause of 100 ms at most: a step cuts it short, a clock that is held back doubles it"
MOVED = "moved by who holds it"
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
    "stats.Stats._next_ms": "Stats takes what a clock is ahead off every time that it is told",
    "stats.PutTimes._began_ms": "the same: Stats tells it the time",
    "stats.Stats.booted_ms": DATE,
    "topics.Topics.birth_ms": DATE,
    "commit_log.CommitLog.last_store_ms": DATE,
    "appending.Appending.end_ms": DATE,
    "check_rate.TokenBucket.filled_ms": MOVED,
    "broker.Broker.now": TURN,
    "access.Access._now": TURN,
    "routes.LiveBroker.heard_ms": MOVED,
    "ids.UniqueIds._begin": "what the ids of one millisecond begin with: another one is computed anew",
    "peer.Peer.heard_ms": MOVED,
    "queue_waiters.QueueWaiters.now": TURN,
    "pulls.Pulls._now": TURN,
    "duplicates.Duplicates.now": TURN,
    "reply_messages.ReplyMessages.now": TURN,
    "store.Store._now": TURN,
    "store.Store.now": TURN,
}
"""What is made of ``now`` and kept, by module, class that assigns it and attribute, and not named in ``stepped`` of that class."""


def test_what_a_core_keeps_of_the_time_moves_along_when_the_clock_is_set_or_says_why_not() -> None:
    assert {name for module, found in classes() for name in kept(module, found)} == KEPT.keys()


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for package in CORES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield path.stem, node


def kept(module: str, found: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class sets to a time, and that its ``stepped`` does not name."""
    stepped = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "stepped"]
    moved = {node.attr for method in stepped for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    for node in ast.walk(found):
        for target, value in pairs(node):
            if isinstance(target, ast.Attribute) and is_time(value) and target.attr not in moved:
                yield f"{module}.{found.name}.{target.attr}"


def pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts)
            else:
                yield target, node.value


def is_time(value: ast.AST) -> bool:
    """Whether an expression is a time: made of ``now``, but not what a call returns that is only told of it."""
    if isinstance(value, ast.Call) and not (isinstance(value.func, ast.Name) and value.func.id in ("min", "max")):
        return False
    if isinstance(value, ast.Name | ast.Attribute):
        return (value.id if isinstance(value, ast.Name) else value.attr) in ("now", "_now")
    return any(is_time(child) for child in ast.iter_child_nodes(value))
