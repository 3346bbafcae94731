"""Queries of simulated batch transactions: what they write, the same at every try, and what is known of them. Sends nothing.

A message may ask to come later, by a level or at a point in time, and a task may send its messages compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from zlib import compress, crc32

from halfmoon.wire.codes import COMPRESSED, ZLIB
from halfmoon.wire.properties import encode
from halfmoon.wire.record import BatchItem
from simulation.ledger import Place

TOPIC, QUEUES = "out", 2
SENDS = ("level", "time", "compressed")
"""Kinds of messages that a query may send beside plain ones."""
LEVELS, LEVELS_MS = "1s 2s 4s", (1000, 2000, 4000, 4000)
"""Delay levels of a history; one above the last is the last."""
TIMED_MS_MAX = 15_000
"""A point in time lies within so long after a history's beginning: some are over when their batch is published."""
_FLAGS = (0, 0, COMPRESSED, COMPRESSED | ZLIB)


class QueryRow(NamedTuple):
    """One message. It asks for a ``level`` or for a time, ``deliver_ms`` (0: it does not); ``sys_flag``: it is compressed."""

    batch: int
    partition: int
    name: str
    level: int = 0
    deliver_ms: int = 0
    sys_flag: int = 0

    @property
    def waits(self) -> bool:
        """Whether it asks to come later."""
        return bool(self.level or self.deliver_ms)

    @property
    def body(self) -> bytes:
        """Its body as it travels and is stored."""
        return compress(self.name.encode()) if self.sys_flag else self.name.encode()

    @property
    def item(self) -> BatchItem:
        """The message as a batch carries it; its key is its name."""
        asked = {"DELAY": str(self.level)} if self.level else {"TIMER_DELIVER_MS": str(self.deliver_ms)} if self.deliver_ms else {}
        return BatchItem(self.body, encode({"KEYS": self.name, **asked}))


class QueryPiece(NamedTuple):
    """Rows of a task in one request; ``sys_flag`` is that of all of them."""

    place: Place
    first_seq: int
    rows: tuple[QueryRow, ...]
    sys_flag: int


@dataclass
class Query:
    """One stream of batches. ``done`` is what its checkpoint says; ``target`` how many batches it has."""

    id: str
    brokers: dict[str, str]
    """Name → address of all that there ever were; more may join."""
    partitions: int
    rows: int
    target: int
    wandering: bool
    """Whether each attempt sends a message elsewhere: then only whole attempts make a batch."""
    sends: tuple[str, ...] = ()
    """Which of `SENDS`."""
    seed: int = 0
    """From which it is drawn which message asks for what."""
    since_ms: int = 0
    """When it began; times that messages ask for count from then."""
    done: int = -1
    lives: int = 0
    problems: list[str] = field(default_factory=list)
    requests: int = 0
    already: int = 0
    refused: int = 0
    noes: int = 0
    attempts: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """(batch, partition) → names of all tries."""
    seen: dict[str, list[str]] = field(default_factory=dict)
    """Attempt → the brokers among which it chose."""
    chosen: dict[int, set[str]] = field(default_factory=dict)
    """Batch → attempts that its decision names, where a driver was told."""
    asked_ms: dict[int, dict[str, int]] = field(default_factory=dict)
    """Batch → broker → what its clock said when a decision was asked for first: nothing is published before."""

    def task(self, batch: int, partition: int) -> Iterator[QueryRow]:
        """Yield the messages of one task, the same at every try."""
        ways = [way for way in self.sends if way != "compressed"]
        sys_flag = Random(f"{self.seed} {self.id}/{batch}/{partition}").choice(_FLAGS) if "compressed" in self.sends else 0
        for number in range(self.rows):
            name = f"{self.id}/{batch}/{partition}/{number}"
            chance = Random(f"{self.seed} {name}")
            way = chance.choice(("", "", *ways)) if ways else ""
            level = chance.randint(1, len(LEVELS_MS)) if way == "level" else 0
            deliver_ms = self.since_ms + chance.randint(1, TIMED_MS_MAX) if way == "time" else 0
            yield QueryRow(batch, partition, name, level, deliver_ms, sys_flag)

    def place(self, row: QueryRow, attempt: str) -> Place:
        """Return where an attempt sends a message."""
        names = self.seen[attempt]
        chance = crc32(row.name.encode(), crc32(attempt.encode()) if self.wandering else 0)
        return Place(names[chance % len(names)], TOPIC, chance // 7 % QUEUES)

    def places(self, row: QueryRow) -> set[Place]:
        """Return where a message may be: where the decided attempt sent it, or any, when no driver was told which that is."""
        tried = self.attempts.get((row.batch, row.partition), set())
        return {self.place(row, attempt) for attempt in tried & self.chosen.get(row.batch, set()) or tried}

    def pieces(self, batch: int, partition: int, attempt: str, most: int) -> list[QueryPiece]:
        """Return one task's requests, ``most`` messages in each."""
        queues: dict[Place, list[QueryRow]] = {}
        for row in self.task(batch, partition):
            queues.setdefault(self.place(row, attempt), []).append(row)
        return [
            QueryPiece(place, first, tuple(rows[first : first + most]), rows[first].sys_flag)
            for place, rows in queues.items()
            for first in range(0, len(rows), most)
        ]

    def expected(self) -> list[QueryRow]:
        """Return all messages in their order: that of batches, of partitions, of rows."""
        return [row for batch in range(self.target) for partition in range(self.partitions) for row in self.task(batch, partition)]
