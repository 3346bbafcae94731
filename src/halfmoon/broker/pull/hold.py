"""Pulls that wait for a message (long polling): a list by queue and a heap of deadlines. Answers nothing; returns what may go on.

Follows PullRequestHoldService (RocketMQ 4.9.8).
Differs: a waiting pull is answered in the turn in which its message becomes visible, its deadline is exact instead of looked at
each 5 s, it is parked in the turn that found nothing (so no message can fall between), and it is forgotten with its connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

QueueKey = tuple[str, int]

EXPIRED_A_TICK = 500
"""Pulls whose time is up that one tick goes on with, some milliseconds; the next comes at once."""

HOLDS_OF_PEER_MAX = 10_000
"""Waiting pulls of one connection. A consumer has one for each queue it reads. One with a long expression counts as several."""


class Hold(msgspec.Struct, eq=False):
    """One waiting pull: whose, from which queue offset, for which tag codes (None: all), until when; ``pull`` is itself.

    ``room`` is what it takes of the bounds: 1, and more when much must be kept for it.
    """

    peer: int
    key: QueueKey
    queue_offset: int
    codes: frozenset[int] | None
    deadline_ms: int
    pull: Any
    over: bool = False
    room: int = 1


class Holds:
    """All waiting pulls of a broker, at most ``holds_max``. ``count`` is how many there are, ``room`` what they take of that."""

    def __init__(self, holds_max: int) -> None:
        self._by_queue: dict[QueueKey, dict[int, Hold]] = {}  # then by id(hold): taking one out costs the same among thousands
        self._by_peer: dict[int, dict[int, Hold]] = {}
        self._room_of_peer: dict[int, int] = {}
        self._deadlines: list[tuple[int, int, Hold]] = []
        self._number = 0
        self._holds_max = holds_max
        self.count = self.room = 0

    def park(self, hold: Hold) -> bool:
        """Let a pull wait; return False when a bound is reached, so that it is answered at once."""
        of_peer = self._room_of_peer.get(hold.peer, 0) + hold.room
        if self.room + hold.room > self._holds_max or of_peer > HOLDS_OF_PEER_MAX:
            return False
        self._room_of_peer[hold.peer] = of_peer
        self.room += hold.room
        self.count += 1
        self._number += 1
        self._by_queue.setdefault(hold.key, {})[id(hold)] = hold
        self._by_peer.setdefault(hold.peer, {})[id(hold)] = hold
        heappush(self._deadlines, (hold.deadline_ms, self._number, hold))
        return True

    def arrived(self, topic: str, queue_id: int, max_offset: int, tag_codes: list[int] | None) -> list[Hold]:
        """Take out the pulls of a queue that new messages may satisfy: new ones at or behind their offset, with a tag they want."""
        key = (topic, queue_id)
        waiting = self._by_queue.get(key)
        if not waiting:
            return []
        codes = None if tag_codes is None else set(tag_codes)
        found = [
            hold for hold in waiting.values()
            if hold.queue_offset < max_offset and (codes is None or hold.codes is None or not hold.codes.isdisjoint(codes))
        ]  # fmt: skip
        for hold in found:
            self._remove(hold)
        return found

    def due(self) -> int | None:
        """When the first waiting pull must be answered."""
        while self._deadlines and self._deadlines[0][2].over:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: int, count_max: int = sys.maxsize) -> list[Hold]:
        """Take out the pulls whose time is up, first those that waited longest for it."""
        found: list[Hold] = []
        while len(found) < count_max and (deadline := self.due()) is not None and deadline <= now:
            hold = heappop(self._deadlines)[2]
            self._remove(hold)
            found.append(hold)
        return found

    def stepped(self, by_ms: int) -> Iterator[Hold]:
        """The clock was set: each waits as long as it would have. Yields those that wait."""
        self._deadlines = [(deadline + by_ms, number, hold) for deadline, number, hold in self._deadlines if not hold.over]
        heapify(self._deadlines)
        for _, _, hold in self._deadlines:
            hold.deadline_ms += by_ms
            yield hold

    def lost(self, peer: int) -> None:
        """Forget the pulls of a connection that is gone."""
        for hold in list(self._by_peer.get(peer, {}).values()):
            self._remove(hold)

    def of_queue(self, topic: str, queue_id: int) -> int:
        """Return how many pulls wait for a queue."""
        return len(self._by_queue.get((topic, queue_id), ()))

    def of_topic(self, topic: str) -> list[Hold]:
        """Take out all pulls that wait for a topic (it was deleted)."""
        found = [hold for key, holds in self._by_queue.items() if key[0] == topic for hold in holds.values()]
        for hold in found:
            self._remove(hold)
        return found

    def _remove(self, hold: Hold) -> None:
        hold.over = True
        self.count -= 1
        self.room -= hold.room
        self._room_of_peer[hold.peer] -= hold.room
        waiting = self._by_queue[hold.key]
        del waiting[id(hold)]
        if not waiting:
            del self._by_queue[hold.key]
        of_peer = self._by_peer[hold.peer]
        del of_peer[id(hold)]
        if not of_peer:
            del self._by_peer[hold.peer], self._room_of_peer[hold.peer]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.count:
            self._deadlines = sorted(entry for entry in self._deadlines if not entry[2].over)
