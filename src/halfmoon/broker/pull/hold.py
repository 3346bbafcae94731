"""Held pulls (long polling): by queue, and by deadline. Answers none; returns those to resume.

Follows PullRequestHoldService (RocketMQ 4.9.8).
Differs: a held pull is answered in the turn in which its message becomes visible; its deadline is exact, not checked every 5 s; it
is held in the turn that found nothing, so that no message is missed; and it is forgotten with its connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import msgspec

from halfmoon.instant import Steady

QueueKey = tuple[str, int]

EXPIRED_A_TICK = 500
"""Expired pulls that one tick resumes, which takes some milliseconds; the next tick follows at once."""

HOLDS_OF_PEER_MAX = 10_000
"""Held pulls of one connection. A consumer has one for each queue it reads; a long expression counts as several."""


class Hold(msgspec.Struct, eq=False):
    """One held pull: its connection, queue offset, tag codes (None: all) and deadline; ``pull`` is the pull itself.

    ``room`` is what it counts against the bounds: 1, and more with a long expression.
    """

    peer: int
    key: QueueKey
    queue_offset: int
    codes: frozenset[int] | None
    deadline: Steady
    pull: Any
    over: bool = False
    room: int = 1


class Holds:
    """All held pulls of a broker, at most ``holds_max``, and ``of_peer_max`` of one connection.

    ``count`` is their number, ``room`` their share of the bounds.
    """

    def __init__(self, holds_max: int, of_peer_max: int = HOLDS_OF_PEER_MAX) -> None:
        self._by_queue: dict[QueueKey, dict[int, Hold]] = {}  # then by id(hold): removing one is as cheap among thousands
        self._by_peer: dict[int, dict[int, Hold]] = {}
        self._room_of_peer: dict[int, int] = {}
        self._deadlines: list[tuple[Steady, int, Hold]] = []
        self._number = 0
        self._holds_max, self._of_peer_max = holds_max, of_peer_max
        self.count = self.room = 0

    def park(self, hold: Hold) -> bool:
        """Hold a pull; False: a bound is reached, and it is to be answered at once."""
        of_peer = self._room_of_peer.get(hold.peer, 0) + hold.room
        if self.room + hold.room > self._holds_max or of_peer > self._of_peer_max:
            return False
        self._room_of_peer[hold.peer] = of_peer
        self.room += hold.room
        self.count += 1
        self._number += 1
        self._by_queue.setdefault(hold.key, {})[id(hold)] = hold
        self._by_peer.setdefault(hold.peer, {})[id(hold)] = hold
        heappush(self._deadlines, (hold.deadline, self._number, hold))
        return True

    def arrived(self, topic: str, queue_id: int, max_offset: int, tag_codes: list[int] | None) -> list[Hold]:
        """Take out the pulls of a queue that new messages may satisfy: at or behind their offset, with one of their tags."""
        key = (topic, queue_id)
        waiting = self._by_queue.get(key)
        if not waiting:
            return []
        codes = None if tag_codes is None else set(tag_codes)
        satisfied = [
            hold for hold in waiting.values()
            if hold.queue_offset < max_offset and (codes is None or hold.codes is None or not hold.codes.isdisjoint(codes))
        ]  # fmt: skip
        for hold in satisfied:
            self._remove(hold)
        return satisfied

    def due(self) -> Steady | None:
        """When the first pull must be answered."""
        while self._deadlines and self._deadlines[0][2].over:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: Steady, count_max: int = sys.maxsize) -> list[Hold]:
        """Take out the pulls whose deadline has passed, the earliest first."""
        expired: list[Hold] = []
        while len(expired) < count_max and (deadline := self.due()) is not None and deadline <= now:
            hold = heappop(self._deadlines)[2]
            self._remove(hold)
            expired.append(hold)
        return expired

    def lost(self, peer: int) -> None:
        """Forget the pulls of a connection that was lost."""
        for hold in list(self._by_peer.get(peer, {}).values()):
            self._remove(hold)

    def refused(self, may_stay: Callable[[Hold], bool]) -> list[Hold]:
        """Take out the pulls that may not be held any more."""
        holds = [hold for of_peer in self._by_peer.values() for hold in of_peer.values() if not may_stay(hold)]
        for hold in holds:
            self._remove(hold)
        return holds

    def of_queue(self, topic: str, queue_id: int) -> int:
        """Return the number of held pulls of a queue."""
        return len(self._by_queue.get((topic, queue_id), ()))

    def of_topic(self, topic: str) -> list[Hold]:
        """Take out all held pulls of a topic (it was deleted)."""
        holds = [hold for key, of_queue in self._by_queue.items() if key[0] == topic for hold in of_queue.values()]
        for hold in holds:
            self._remove(hold)
        return holds

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
