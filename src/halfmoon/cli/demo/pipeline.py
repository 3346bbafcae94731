"""Spark's part in the demo: its driver is started, killed in mid-stream and started again; and what came of it, counted.

Loads no PySpark: the driver is a process of its own (`spark_driver`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec

from halfmoon.cli.demo.ledgers import LARGE_CENTS, PAID, PIPELINE, PLACED, REFUSED, REMINDERS, ROWS, TOPIC
from halfmoon.cli.demo.processes import Cast
from halfmoon.conversion import convert, json_decoder

DRIVER = "Spark driver"
BATCHES = 12
"""Into so many batches the first driver's stream is cut, one a second."""

NEEDED = ("pyspark", "pyarrow", "numpy", "matplotlib")
"""What the extra ``lake`` brings and Spark's part uses."""

Pair = tuple[str | None, int | None]
"""An order and its cents, as a message says them."""


class Half(Protocol):
    """A half message as the broker's table has it."""

    msg_id: str
    state: str

    @property
    def last_answer(self) -> str:
        """What came back on the last check; empty when none was sent."""


class Decision(msgspec.Struct):
    """How long decisions of one state took, from half message to decision, in ms."""

    state: str
    count: int
    p50: float
    p95: float
    p99: float
    max: float


class Audit(msgspec.Struct):
    """What Spark finds of transactions in the log: how many of each state, how long decisions took, what should not be."""

    states: dict[str, int]
    decisions: list[Decision]
    duplicates: int
    orphans: int
    picture: str


class Brought(NamedTuple):
    """What Spark's acts brought: rows of its table (topic, order, cents), bodies of the copies, and how many copies were there when
    the driver was killed."""

    rows: Sequence[tuple[str, str | None, int | None]]
    copies: Sequence[bytes]
    killed_at: int
    audit: Audit
    seconds: float


class Pipeline(msgspec.Struct):
    """What the closing table says of Spark. ``table`` and ``copies``: how many orders of an outcome each has.

    ``table_differs`` and ``copies_differ``: messages that only one of it and the log has, or has more often. ``at_broker``: states
    of the same transactions in the broker's table; ``again_visible``: messages of the log beyond one an order. The driver was
    killed when ``killed_at`` of ``copied`` messages were there.
    """

    table: dict[str, int]
    copies: dict[str, int]
    table_differs: int
    copies_differ: int
    killed_at: int
    copied: int
    audit: Audit
    at_broker: dict[str, int]
    again_visible: int
    seconds: float

    def has(self, outcome: str, count: int) -> bool:
        """Whether table and copies have so many orders of an outcome; the copies have no reminders."""
        return all(there[outcome] == count for there in (self.table, self.copies) if outcome in there)

    @property
    def killed_in_the_middle(self) -> bool:
        """Whether copies were there and missing when the driver was killed; fewer than three messages have no middle."""
        return 0 < self.killed_at < self.copied or self.copied < 3

    @property
    def audit_agrees(self) -> bool:
        """Whether the log tells of the same transactions as the broker's table, none without a half message, and of no more that
        are visible twice than consumers see: a half message whose answer was lost may be stored, and committed, again."""
        return self.audit.states == self.at_broker and self.audit.duplicates <= self.again_visible and not self.audit.orphans

    @property
    def agrees(self) -> bool:
        """Whether table and copies have what the log has, message by message, and the audit agrees."""
        return not self.table_differs and not self.copies_differ and self.killed_in_the_middle and self.audit_agrees


def missing() -> str:
    """Return which package Spark's part lacks, as a sentence; empty: none. Java is looked for by the driver."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    return f"{absent[0]} is not installed: pip install 'halfmoon[lake]'" if absent else ""


class Until(Protocol):
    """Waits until something is true, and says meanwhile what happens."""

    def __call__(self, true: Callable[[], bool], what: str) -> None:
        """Wait. Raises DemoFailed when it takes too long, or somebody fails."""


class Driver:
    """Spark's driver as the demo sees it."""

    def __init__(self, cast: Cast, nameserver: str, total: int, picture: Path) -> None:
        self._cast, self._nameserver, self._total, self._picture = cast, nameserver, total, picture

    def perform(self, copied: Callable[[], int], until: Until) -> tuple[int, Audit] | str:
        """Copy, be killed, go on, make a table and audit. ``copied`` counts the messages that consumers of the copies would see.

        Returns how many copies were there when the driver was killed, and the audit; or why there is no Spark here.
        """
        batch = max(1, self._total // BATCHES)
        middle = max(1, self._total // 3)
        self._start(batch)
        until(lambda: bool(self._said("missing")) or copied() >= middle, "Spark copies the topic, exactly once")
        if reason := self._said("missing"):
            return str(reason)
        self._cast.kill(DRIVER)
        killed_at = copied()
        until(lambda: True, "the Spark driver is killed with -9")
        self._start(4 * batch, "--to-its-end")
        until(lambda: bool(self._said("copied")), "a second driver goes on from the checkpoint")
        until(lambda: bool(self._said("filled")), "Spark makes a table of the topic")
        until(lambda: bool(self._said("audit")), "Spark audits the transactions")
        return killed_at, cast(Audit, convert(self._said("audit"), Audit))

    def rows(self) -> list[tuple[str, str | None, int | None]]:
        """Return the rows of the table."""
        text = (self._cast.directory / PIPELINE / ROWS).read_bytes()
        return cast(list[tuple[str, str | None, int | None]], json_decoder(list[tuple[str, str | None, int | None]]).decode(text))

    def _start(self, batch: int, *more: str) -> None:
        shared = ("--directory", str(self._cast.directory), "--nameserver", self._nameserver, "--picture", str(self._picture))
        self._cast.start(DRIVER, "halfmoon.cli.demo.spark_driver", *shared, "--batch", str(batch), *more, family=True)

    def _said(self, name: str) -> object:
        """Return what the driver said of something; None: nothing yet."""
        return next((line[name] for line in self._cast.lines(DRIVER) if name in line), None)


# ---------------------------------------------------------------- the count


def pairs(bodies: Iterable[bytes]) -> list[Pair]:
    """Return what messages say: an order and its cents."""
    return [(said.get("order"), said.get("cents")) for said in map(json.loads, bodies)]


def compared(
    brought: Brought, log: Sequence[bytes], reminders: Sequence[bytes], halves: Iterable[Half], orders: Mapping[str, set[str]]
) -> Pipeline:
    """Compare Spark's table, its copies and its audit with the log and the broker's half messages; ``orders`` by state."""
    table = [(order, cents) for topic, order, cents in brought.rows if topic == TOPIC]
    told = [order for topic, order, _ in brought.rows if topic == REMINDERS]
    copies, logged = pairs(brought.copies), pairs(log)
    differs = _difference(table, logged) + _difference(told, [order for order, _ in pairs(reminders)])
    return Pipeline(
        table={**_by_outcome(table, orders), "reminders": len(set(told))},
        copies=_by_outcome(copies, orders),
        table_differs=differs + sum(topic not in (TOPIC, REMINDERS) for topic, _, _ in brought.rows),
        copies_differ=_difference(brought.copies, log),
        killed_at=brought.killed_at,
        copied=len(copies),
        audit=brought.audit,
        at_broker=_states(halves),
        again_visible=len(logged) - len({order for order, _ in logged}),
        seconds=brought.seconds,
    )


def _by_outcome(found: Iterable[Pair], orders: Mapping[str, set[str]]) -> dict[str, int]:
    large = {order for order, cents in found if cents is not None and cents > LARGE_CENTS}
    there = {order for order, _ in found}
    return {
        "paid": len(there & orders[PAID]),
        "refused": len(there & orders[REFUSED]),
        "left_behind": len(there - orders[PAID] - orders[REFUSED] - orders[PLACED]),
        "in_doubt": len(there & orders[PLACED]),
        "large": len(large),
    }


def _difference(one: Iterable[object], other: Iterable[object]) -> int:
    mine, theirs = Counter(one), Counter(other)
    return (mine - theirs).total() + (theirs - mine).total()


def _states(halves: Iterable[Half]) -> dict[str, int]:
    """Return how many transactions are in each state; one that was begun again under its id is in that of its last half message,
    but committed where one of them is."""
    last: dict[str, str] = {}
    for half in halves:
        if last.get(half.msg_id) != "COMMITTED":
            last[half.msg_id] = half.state
    return dict(Counter(last.values()))
