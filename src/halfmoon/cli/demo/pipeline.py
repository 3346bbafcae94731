"""Spark's part in the demo: its driver is started, killed in mid-stream and started again; and what it wrote, compared.

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
from halfmoon.cli.demo.processes import Processes
from halfmoon.conversion import convert, json_decoder

DRIVER = "Spark driver"
BATCHES = 12
"""How many batches the first driver's stream has, one a second."""

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


class SparkResults(NamedTuple):
    """What Spark wrote: rows of its table (topic, order, cents), the bodies of the copies, and the audit. ``killed_at``: how many
    copies there were when the driver was killed."""

    rows: Sequence[tuple[str, str | None, int | None]]
    copies: Sequence[bytes]
    killed_at: int
    audit: Audit
    seconds: float


class SparkOutcome(msgspec.Struct):
    """What the closing table shows of Spark. ``table`` and ``copies``: how many orders of an outcome each has.

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

    def __call__(self, condition: Callable[[], bool], what: str) -> None:
        """Wait. Raises DemoFailed when it takes too long, or somebody fails."""


class Driver:
    """Spark's driver as the demo sees it."""

    def __init__(self, processes: Processes, nameserver: str, total: int, picture: Path) -> None:
        self._processes, self._nameserver, self._total, self._picture = processes, nameserver, total, picture

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
        self._processes.kill(DRIVER)
        killed_at = copied()
        until(lambda: True, "the Spark driver is killed with -9")
        self._start(4 * batch, "--to-end")
        until(lambda: bool(self._said("copied")), "a second driver goes on from the checkpoint")
        until(lambda: bool(self._said("filled")), "Spark makes a table of the topic")
        until(lambda: bool(self._said("audit")), "Spark audits the transactions")
        return killed_at, cast(Audit, convert(self._said("audit"), Audit))

    def rows(self) -> list[tuple[str, str | None, int | None]]:
        """Return the rows of the table."""
        text = (self._processes.directory / PIPELINE / ROWS).read_bytes()
        return cast(list[tuple[str, str | None, int | None]], json_decoder(list[tuple[str, str | None, int | None]]).decode(text))

    def _start(self, batch: int, *more: str) -> None:
        shared = ("--directory", str(self._processes.directory), "--nameserver", self._nameserver, "--picture", str(self._picture))
        self._processes.start(DRIVER, "halfmoon.cli.demo.spark_driver", *shared, "--batch", str(batch), *more, family=True)

    def _said(self, name: str) -> object:
        """Return what the driver said of something; None: nothing yet."""
        return next((line[name] for line in self._processes.lines(DRIVER) if name in line), None)


# ---------------------------------------------------------------- the count


def pairs(bodies: Iterable[bytes]) -> list[Pair]:
    """Return what messages say: an order and its cents."""
    return [(fields.get("order"), fields.get("cents")) for fields in map(json.loads, bodies)]


def compared(
    results: SparkResults, log: Sequence[bytes], reminders: Sequence[bytes], halves: Iterable[Half], orders: Mapping[str, set[str]]
) -> SparkOutcome:
    """Compare Spark's table, its copies and its audit with the log and the broker's half messages; ``orders`` by state."""
    table = [(order, cents) for topic, order, cents in results.rows if topic == TOPIC]
    reminded = [order for topic, order, _ in results.rows if topic == REMINDERS]
    copies, logged = pairs(results.copies), pairs(log)
    differs = _difference(table, logged) + _difference(reminded, [order for order, _ in pairs(reminders)])
    return SparkOutcome(
        table={**_by_outcome(table, orders), "reminders": len(set(reminded))},
        copies=_by_outcome(copies, orders),
        table_differs=differs + sum(topic not in (TOPIC, REMINDERS) for topic, _, _ in results.rows),
        copies_differ=_difference(results.copies, log),
        killed_at=results.killed_at,
        copied=len(copies),
        audit=results.audit,
        at_broker=_states(halves),
        again_visible=len(logged) - len({order for order, _ in logged}),
        seconds=results.seconds,
    )


def _by_outcome(messages: Iterable[Pair], orders: Mapping[str, set[str]]) -> dict[str, int]:
    large = {order for order, cents in messages if cents is not None and cents > LARGE_CENTS}
    seen = {order for order, _ in messages}
    return {
        "paid": len(seen & orders[PAID]),
        "refused": len(seen & orders[REFUSED]),
        "left_behind": len(seen - orders[PAID] - orders[REFUSED] - orders[PLACED]),
        "in_doubt": len(seen & orders[PLACED]),
        "large": len(large),
    }


def _difference(left: Iterable[object], right: Iterable[object]) -> int:
    lefts, rights = Counter(left), Counter(right)
    return (lefts - rights).total() + (rights - lefts).total()


def _states(halves: Iterable[Half]) -> dict[str, int]:
    """Return how many transactions are in each state; one that was begun again under its id is in that of its last half message,
    but committed where one of them is."""
    last: dict[str, str] = {}
    for half in halves:
        if last.get(half.msg_id) != "COMMITTED":
            last[half.msg_id] = half.state
    return dict(Counter(last.values()))
