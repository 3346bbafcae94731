"""Facts of a history: what users of a simulated cluster did and saw, for `simulation.checkers`. Values only.

Everything is written down with the world's time, at the moment when the user learned of it: an `Acked` when the answer arrived,
a `Seen` when the pull's answer arrived. A ledger knows what was promised; it never asks a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.damage.fsck import PlantedDamage
from simulation.damage.log import Hit


class Place(NamedTuple):
    """One queue of one broker."""

    broker: str
    topic: str
    queue_id: int


class Acked(NamedTuple):
    """A send that a broker answered with code 0. ``sender`` sends one at a time; ``number`` counts its messages."""

    at_ms: int
    place: Place
    queue_offset: int
    msg_id: str
    sender: str
    number: int
    body: bytes


class Seen(NamedTuple):
    """A message that a reader got. ``record`` is the whole stored record as it travelled."""

    at_ms: int
    place: Place
    queue_offset: int
    physical_offset: int
    body: bytes
    record: bytes


class Commit(NamedTuple):
    """A consumer offset that a broker confirmed (in ``Ledger.commits``) or answered when asked (in ``Ledger.positions``)."""

    at_ms: int
    group: str
    place: Place
    offset: int


class Waited(NamedTuple):
    """A pull that was answered that there is nothing, how long it was to wait for something, and how long it did."""

    at_ms: int
    place: Place
    wait_ms: int
    took_ms: int


class FoundFault(NamedTuple):
    """Fault of a broker, or its end.

    Kinds: ``kill``, ``power``, ``stop`` (asked), ``left``, ``sync`` (one failed), ``start``, ``torn`` (in the middle of a write),
    ``vanish`` (files of its queues), ``unwritable`` and ``writable`` (its tables).
    """

    at_ms: int
    broker: str
    kind: str


@dataclass
class Ledger:
    """All facts of one history. ``flush`` is the mode of its brokers: ``sync`` or ``async``.

    ``flush_window_ms`` is how much a loss of power may take with async flush: the time between syncs and that of a slow one.
    ``save_window_ms`` is how much of consumers' progress a crash may take: the same for saved tables.
    ``network_ms`` is for how long the network may keep an answer.
    """

    flush: str
    flush_window_ms: int = 12_000
    save_window_ms: int = 9_000
    network_ms: int = 50
    attempted: dict[bytes, set[Place]] = field(default_factory=dict)
    acked: list[Acked] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    positions: list[Commit] = field(default_factory=list)
    waits: list[Waited] = field(default_factory=list)
    faults: list[FoundFault] = field(default_factory=list)
    spoilt: set[tuple[Place, int]] = field(default_factory=set)
    """Queue offsets whose records a disk damaged: nobody can read those again."""
    spoilt_bytes: set[tuple[str, int]] = field(default_factory=set)
    """The same records: brokers and physical offsets."""
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    """And what they were, by broker."""
    unexpected: list[str] = field(default_factory=list)

    def damage_of(self, broker: str) -> PlantedDamage:
        """Return what a disk damaged of a broker's log."""
        return PlantedDamage(
            frozenset(place for name, place in self.spoilt_bytes if name == broker),
            frozenset((place.topic, place.queue_id) for place, _ in self.spoilt if place.broker == broker),
        )

    def faults_of(self, broker: str, *kinds: str) -> list[FoundFault]:
        """Return the faults of these kinds that hit a broker, in order."""
        return [fault for fault in self.faults if fault.broker == broker and fault.kind in kinds]

    def longest_run_ms(self, broker: str, begin_ms: int, end_ms: int) -> int:
        """Return the longest time that a broker ran without a break between two times; it runs from the beginning."""
        longest, since = 0, begin_ms
        runs = True
        for fault in self.faults_of(broker, "start", "kill", "power", "left"):
            if fault.at_ms > end_ms:
                break
            if fault.kind == "start":
                runs, since = True, max(begin_ms, fault.at_ms)
            elif runs:
                runs = False
                longest = max(longest, fault.at_ms - since)
        return max(longest, end_ms - since) if runs else longest


class Queue(NamedTuple):
    """Messages of a queue at the end, read from its lowest offset to its highest."""

    min_offset: int
    max_offset: int
    messages: dict[int, Seen]


Contents = dict[Place, Queue]
"""Messages of all queues at the end."""
