"""What consumer groups have still to be given, in memory: new messages in order, and those that come again later.

Pure: `next_job` says what to hand to whom, `ended` is told how it went. Each group gets every message that it subscribes to; its
members take turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from halfmoon.errors import UsageError
from halfmoon.model import RECONSUME_REASON, StoredMessage

Deliver = Callable[[StoredMessage, int], tuple[bool, str]]
"""Is given a message and which attempt it is, from 1; returns whether it is consumed, and the reason when it is not."""

DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""After how long a message comes again that failed for the n-th time. Follows the levels 3 to 18 of RocketMQ."""

GROUPS_MAX, MEMBERS_MAX = 1_000, 1_000
REASON_LENGTH_MAX = 512


class Waiting(NamedTuple):
    """A message that comes again at ``due_ms``, as attempt ``attempt``, because of ``reason``."""

    due_ms: int
    number: int
    group: str
    message: StoredMessage
    attempt: int
    reason: str


class Job(NamedTuple):
    """A message to hand to one member of a group."""

    group: str
    deliver: Deliver
    message: StoredMessage
    attempt: int


class _Member:
    """One subscriber. ``wants`` gives the codes of each topic; None: all of them."""

    def __init__(self, wants: Mapping[str, Collection[str] | str], deliver: Deliver) -> None:
        self.wants = {topic: _codes(codes) for topic, codes in wants.items()}
        self.deliver = deliver


class _Group:
    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.position = 0
        self.turn = 0
        self.consumed: list[StoredMessage] = []
        self.dead: list[Waiting] = []

    def taker(self, message: StoredMessage) -> _Member | None:
        """Return the member whose turn it is with a message; None when nobody wants it."""
        for step in range(len(self.members)):
            member = self.members[(self.turn + step) % len(self.members)]
            codes = member.wants.get(message.topic, frozenset())
            if codes is None or message.tag in codes:
                self.turn += step + 1
                return member
        return None


class Groups:
    """The consumer groups of one bus. Not safe for many threads: the bus holds its lock."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._waiting: list[Waiting] = []
        self._number = 0

    def join(
        self, group: str, wants: Mapping[str, Collection[str] | str], deliver: Deliver, *, position: int
    ) -> Callable[[], None]:
        """Add a member; returns what takes it out again. ``position``: where a group begins of which nobody is there."""
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise UsageError(f"more than {GROUPS_MAX} consumer groups on one bus")
        found = self._groups.setdefault(group, _Group())
        if len(found.members) >= MEMBERS_MAX:
            raise UsageError(f"more than {MEMBERS_MAX} members of {group}")
        if not found.members:
            found.position = max(found.position, position)
        member = _Member(wants, deliver)
        found.members.append(member)
        return lambda: found.members.remove(member) if member in found.members else None

    def next_job(self, visible: list[StoredMessage], now_ms: int) -> Job | None:
        """Take out what comes next: what is due again first, then what is new, group by group."""
        if (again := self._again(now_ms)) is not None:
            return again
        for name, group in self._groups.items():
            while group.members and group.position < len(visible):
                message = visible[group.position]
                group.position += 1
                if (member := group.taker(message)) is not None:
                    return Job(name, member.deliver, message, 1)
        return None

    def _again(self, now_ms: int) -> Job | None:
        left: list[Waiting] = []  # nobody is there who wants these now
        found = None
        while found is None and self._waiting and self._waiting[0].due_ms <= now_ms:
            one = heapq.heappop(self._waiting)
            if (member := self._groups[one.group].taker(one.message)) is None:
                left.append(one)
            else:
                found = Job(one.group, member.deliver, one.message, one.attempt)
        for one in left:
            heapq.heappush(self._waiting, one)
        return found

    def ended(self, job: Job, *, consumed: bool, reason: str, now_ms: int) -> Waiting | None:
        """Be told how a job went. Returns when it comes again; None when it does not."""
        group = self._groups[job.group]
        if consumed:
            group.consumed.append(job.message)
            return None
        reason = " ".join(reason.split())[:REASON_LENGTH_MAX]
        properties = {**job.message.properties, **({RECONSUME_REASON: reason} if reason else {})}
        again = replace(job.message, properties=properties, reconsume_times=job.attempt)
        self._number += 1
        if job.attempt > len(DELAYS_S):
            group.dead.append(Waiting(now_ms, self._number, job.group, again, job.attempt, reason))
            return None
        due = now_ms + DELAYS_S[job.attempt - 1] * 1000
        waiting = Waiting(due, self._number, job.group, again, job.attempt + 1, reason)
        heapq.heappush(self._waiting, waiting)
        return waiting

    def hurry(self, now_ms: int) -> None:
        """Make everything that comes again due now, in the order in which it would have come."""
        self._waiting = [one._replace(due_ms=min(one.due_ms, now_ms), number=n) for n, one in enumerate(sorted(self._waiting))]
        self._number = max(self._number, len(self._waiting))
        heapq.heapify(self._waiting)

    def clear(self) -> None:
        """Forget what was and what comes again; the members stay."""
        self._waiting = []
        for group in self._groups.values():
            group.position, group.consumed, group.dead = 0, [], []

    def due_ms(self, after_ms: int) -> int | None:
        """When something comes again next, later than ``after_ms``; None for nothing."""
        return min((one.due_ms for one in self._waiting if one.due_ms > after_ms), default=None)

    def waiting(self) -> list[Waiting]:
        """What comes again, the next first."""
        return sorted(self._waiting)

    def consumed(self, group: str) -> list[StoredMessage]:
        """What a group has consumed, in order."""
        return list(self._groups[group].consumed) if group in self._groups else []

    def dead(self) -> list[Waiting]:
        """What groups have given up."""
        return [one for group in self._groups.values() for one in group.dead]


def _codes(codes: Collection[str] | str) -> frozenset[str] | None:
    found = frozenset(part.strip() for part in codes.split("||")) if isinstance(codes, str) else frozenset(codes)
    return None if "*" in found else found
