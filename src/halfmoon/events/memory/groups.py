"""What consumer groups have still to be given, in memory: new messages in order, and those that come again later.

Pure: `next_job` says what to hand to whom, `ended` is told how it went. Each group gets every message that it subscribes to; its
members take turns. A group's progress is kept for each topic, as a broker keeps it: a topic that it asks for later begins with its
oldest message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from halfmoon.errors import UsageError
from halfmoon.model import DELAY, RECONSUME_REASON, WAIT, LocalTransactionState, StoredMessage, one_line

Deliver = Callable[[StoredMessage, int], tuple[bool, str]]
"""Is given a message and which attempt it is, from 1; returns whether it is consumed, and the reason when it is not."""

DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""After how long a message comes again that failed for the n-th time. Follows the levels 3 to 18 of RocketMQ."""

FIRST_LEVEL = 3

GROUPS_MAX, MEMBERS_MAX = 1_000, 1_000
_OF_THE_LAST_WAIT = frozenset({DELAY, "REAL_TOPIC", "REAL_QID", WAIT})


class Waiting(NamedTuple):
    """A message that comes again at ``due_ms``, as attempt ``attempt``, because of ``reason``."""

    due_ms: int
    number: int
    group: str
    message: StoredMessage
    attempt: int
    reason: str


class _Member(NamedTuple):
    """One subscriber. ``wants`` gives the codes of each topic; None: all of them. A message comes again at most so many times."""

    wants: Mapping[str, Collection[str] | None]
    deliver: Deliver
    times_max: int


class Job(NamedTuple):
    """A message to hand to one member of a group."""

    group: str
    member: _Member
    message: StoredMessage
    attempt: int


class Group:
    """A group. ``begins`` says of each topic with which visible message it goes on; before ``position`` there is nothing for it."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.begins: dict[str, int] = {}
        self.position = 0
        self.turn = 0
        self.again = 0
        """How many messages came again."""
        self.consumed: list[StoredMessage] = []
        self.dead: list[Waiting] = []

    def next_new(self, visible: list[StoredMessage]) -> tuple[StoredMessage, _Member] | None:
        """Take out the next new message that a member wants, with the member whose turn it is."""
        while self.members and self.position < len(visible):
            at, message = self.position, visible[self.position]
            self.position += 1
            if at < self.begins.get(message.topic, 0) or not any(message.topic in member.wants for member in self.members):
                continue
            self.begins[message.topic] = at + 1
            if (member := self.taker(message)) is not None:
                return message, member
        return None

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
        self.by_name: dict[str, Group] = {}
        self.waiting: list[Waiting] = []
        """What comes again, as a heap."""
        self._number = 0

    def join(
        self,
        group: str,
        wants: Mapping[str, Collection[str] | str],
        deliver: Deliver,
        *,
        skip: Collection[str],
        end: int,
        times_max: int,
    ) -> Callable[[], None]:
        """Add a member; returns what takes it out again. A group of which nobody is there begins topics of ``skip`` at ``end``."""
        if group not in self.by_name and len(self.by_name) >= GROUPS_MAX:
            raise UsageError(f"more than {GROUPS_MAX} consumer groups on one bus")
        joined = self.by_name.setdefault(group, Group())
        if len(joined.members) >= MEMBERS_MAX:
            raise UsageError(f"more than {MEMBERS_MAX} members of {group}")
        if not joined.members:
            joined.begins.update(dict.fromkeys(skip, end))
        member = _Member({topic: _codes(codes) for topic, codes in wants.items()}, deliver, times_max)
        joined.members.append(member)
        joined.position = 0  # a topic that is new to the group may lie anywhere
        return lambda: joined.members.remove(member) if member in joined.members else None

    def next_job(self, visible: list[StoredMessage], now_ms: int) -> Job | None:
        """Take out what comes next: what is due again first, then what is new, group by group."""
        if (again := self._again(now_ms)) is not None:
            return again
        for name, group in self.by_name.items():
            if (found := group.next_new(visible)) is not None:
                message, member = found
                return Job(name, member, message, 1)
        return None

    def _again(self, now_ms: int) -> Job | None:
        left: list[Waiting] = []  # nobody is there who wants these now
        job = None
        while job is None and self.waiting and self.waiting[0].due_ms <= now_ms:
            waiting = heapq.heappop(self.waiting)
            if (member := self.by_name[waiting.group].taker(waiting.message)) is None:
                left.append(waiting)
            else:
                group = self.by_name[waiting.group]
                message = replace(waiting.message, store_ms=waiting.due_ms, queue_offset=group.again)
                group.again += 1
                job = Job(waiting.group, member, message, waiting.attempt)
        for waiting in left:
            heapq.heappush(self.waiting, waiting)
        return job

    def ended(self, job: Job, *, consumed: bool, reason: str, now_ms: int) -> Waiting | None:
        """Be told how a job went. Returns when it comes again; None when it does not."""
        group = self.by_name[job.group]
        if consumed:
            group.consumed.append(job.message)
            return None
        reason = one_line(reason)
        self._number += 1
        copy = _copy(job, reason, self._number)
        if job.attempt > job.member.times_max:
            group.dead.append(Waiting(now_ms, self._number, job.group, copy, job.attempt, reason))
            return None
        level = min(job.attempt, len(DELAYS_S))
        copy.properties.update({DELAY: str(FIRST_LEVEL - 1 + level), "REAL_TOPIC": f"%RETRY%{job.group}", "REAL_QID": "0"})
        waiting = Waiting(now_ms + DELAYS_S[level - 1] * 1000, self._number, job.group, copy, job.attempt + 1, reason)
        heapq.heappush(self.waiting, waiting)
        return waiting

    def hurry(self, now_ms: int) -> None:
        """Make everything that comes again due now, in the order in which it would have come."""
        self.waiting = [
            waiting._replace(due_ms=min(waiting.due_ms, now_ms), number=n) for n, waiting in enumerate(sorted(self.waiting))
        ]
        self._number = max(self._number, len(self.waiting))
        heapq.heapify(self.waiting)

    def clear(self) -> None:
        """Forget what was and what comes again; the members stay."""
        self.waiting = []
        for group in self.by_name.values():
            group.begins, group.position, group.again, group.consumed, group.dead = {}, 0, 0, [], []


def _copy(job: Job, reason: str, number: int) -> StoredMessage:
    """Return the message as it is stored again, under an id of its own. Follows `halfmoon.broker.consumers.redelivery`."""
    message = job.message
    properties = {name: value for name, value in message.properties.items() if name not in _OF_THE_LAST_WAIT}
    properties.setdefault("RETRY_TOPIC", message.topic)
    properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
    if reason:
        properties[RECONSUME_REASON] = reason
    return replace(
        message, properties=properties, reconsume_times=job.attempt, offset_msg_id=f"{1:016X}{number:016X}",
        sys_flag=message.sys_flag & ~LocalTransactionState.ROLLBACK, prepared_transaction_offset=0,
    )  # fmt: skip


def _codes(codes: Collection[str] | str) -> frozenset[str] | None:
    wanted = frozenset(code.strip() for code in codes.split("||")) if isinstance(codes, str) else frozenset(codes)
    return None if "*" in wanted else wanted
