"""Sending of the rows of one claim: many at once, rows of one order key one after another. Touches no database.

A row fails either by itself (its message is refused) or by its way: a name server or broker cannot be reached, or no broker has the
topic. In the second case the other rows of the topic are not tried, and the try does not count for the row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import inf
from queue import Empty, SimpleQueue

from halfmoon.errors import (
    HalfmoonError,
    MessageRefused,
    NetworkError,
    NoNameServer,
    NoPermission,
    NotRunning,
    NotWritable,
    RequestTimeout,
    SendFailed,
    SystemError_,
    UsageError,
)
from halfmoon.events.event import Event
from halfmoon.events.outbox import Unreadable, unpack
from halfmoon.events.outbox.claims import ClaimedRow
from halfmoon.events.publishing.transport import Transport
from halfmoon.events.tracing import step
from halfmoon.model import SendResult

ATTEMPT_MAX = 1_000_000
GRACE_S = 2.0
"""How much longer than a send's own time its answer is waited for."""
FLUSH_MORE_S = 0.2
"""How long after the time to send a relay that ends waits for answers; rows without one are sent again, as repeats."""
_LOOK_S = 0.1
"""How often a batch that waits looks whether it is to end."""

_Told = tuple[int, SendResult | None, BaseException | None]


class Batch:
    """Rows of one claim while they are sent. Run once, by one thread; afterwards each row is in one of the three lists.

    ``sent``: the broker's id of the message, by the number of its row. ``failed``: with the error; a broker may have it all the
    same. ``unsent``: not tried. ``probed`` are topics whose way was closed: their rows go one after another, for the first that
    cannot be sent ends it.
    """

    def __init__(
        self, transport: Transport, rows: Iterable[ClaimedRow], probed: Collection[str] = (), *, in_flight_max: int, timeout_ms: int
    ) -> None:
        self.sent: dict[int, str] = {}
        self.failed: list[tuple[ClaimedRow, BaseException]] = []
        self.unsent: list[ClaimedRow] = []
        self.up: set[str] = set()
        self.down: dict[str, BaseException] = {}
        """Topics to which a row could be sent, and those whose way is closed."""
        self._transport = transport
        self._in_flight_max, self._timeout_ms = in_flight_max, timeout_ms
        self._ready = deque(_lanes(rows, probed))
        self._in_flight: dict[int, deque[ClaimedRow]] = {}
        self._answers: SimpleQueue[_Told] = SimpleQueue()
        self._answer_until = 0.0

    def run(self, until_s: float, close_at: Callable[[], float] = lambda: inf) -> None:
        """Send all that can be sent. Nothing is begun after ``until_s``, or after ``close_at()``, which may come nearer meanwhile.

        Takes at most until then, and as long as a send may take; after ``close_at()`` answers are waited for only a moment.
        """
        while True:
            if len(self._in_flight) <= self._in_flight_max // 2:  # many at once cost less than one at a time
                while self._ready and len(self._in_flight) < self._in_flight_max and time.monotonic() < min(until_s, close_at()):
                    self._begin(self._ready.popleft())
            if not self._in_flight:
                break
            self._hear(min(self._answer_until, close_at() + FLUSH_MORE_S))
        self.unsent += [row for lane in self._ready for row in lane]

    def _begin(self, lane: deque[ClaimedRow]) -> None:
        row = lane[0]
        if row.topic in self.down:
            self.unsent += lane
            return
        self._in_flight[row.seq] = lane
        self._answer_until = time.monotonic() + self._timeout_ms / 1000 + GRACE_S
        try:
            message = unpack(row.topic, row.event_id, row.message, _attempt(row))
            self._transport.post(message, partial(self._tell, row.seq), timeout_ms=self._timeout_ms)
        except Exception as exc:
            self._answered(row.seq, exc)

    def _tell(self, seq: int, result: SendResult | None, error: BaseException | None) -> None:
        """Hand an answer over. Called on the transport's thread."""
        self._answers.put((seq, result, error))

    def _hear(self, until_s: float) -> None:
        """Take in an answer; rows whose answer is overdue failed."""
        left = until_s - time.monotonic()
        try:
            seq, result, error = self._answers.get(timeout=max(0.0, min(_LOOK_S, left)))
        except Empty:
            if left <= 0:
                for seq in list(self._in_flight):
                    self._answered(seq, RequestTimeout(f"no answer in {self._timeout_ms} ms, or before the end"))
        else:
            self._answered(seq, error, result)

    def _answered(self, seq: int, error: BaseException | None, result: SendResult | None = None) -> None:
        lane = self._in_flight.pop(seq, None)
        if lane is None:  # told twice
            return
        row = lane.popleft()
        if error is None:
            self.sent[seq] = result.offset_msg_id if result is not None else ""
            step("relayed", event_of(row), attempt=row.attempts)
            self.up.add(row.topic)
            self.down.pop(row.topic, None)
            if lane:
                self._ready.appendleft(lane)
        else:
            self.failed.append((row, error))
            self.unsent += lane
            if blames_the_way(error) and row.topic not in self.up:
                self.down[row.topic] = error


def blames_the_way(error: BaseException) -> bool:
    """Return whether an error says nothing of the message: another message to that topic would have failed as well."""
    error = _cause(error)
    if isinstance(error, NetworkError | NotRunning | NoNameServer):
        return True
    return isinstance(error, HalfmoonError) and error.retry and not is_final(error)


def is_final(error: BaseException) -> bool:
    """Return whether no further try of the row can succeed: its name, size or form is refused, or its topic may not be written to.

    A broker that takes no messages at all is none of that: its operator closed it for a while.
    """
    error = _cause(error)
    if isinstance(error, NoPermission):
        return not error.retry
    return isinstance(error, Unreadable | MessageRefused | NotWritable) or (
        isinstance(error, UsageError) and not isinstance(error, NotRunning | NoNameServer)
    )


def counts(error: BaseException, *, topic_is_up: bool) -> bool:
    """Return whether a failed try counts as one of the row's own. In an outage it counts only while other rows come through.

    A broker that has no better word than "system error" did answer: that counts.
    """
    return topic_is_up or isinstance(_cause(error), SystemError_) or not blames_the_way(error)


def _cause(error: BaseException) -> BaseException:
    """Return the last refusal of a send that was tried at several brokers."""
    return error.cause if isinstance(error, SendFailed) and error.cause is not None else error


def event_of(row: ClaimedRow) -> Event:
    """Return the event of a row, as a step names it."""
    return Event(id=row.event_id, topic=row.topic, code="")


def _attempt(row: ClaimedRow) -> int:
    """Return the number of a row's sending; a row that has failed, or whose relay vanished, is a repeat, which brokers merge."""
    return min(ATTEMPT_MAX, max(row.attempts, 2 if row.error else 1))


def _lanes(rows: Iterable[ClaimedRow], probed: Collection[str]) -> list[deque[ClaimedRow]]:
    """Return the rows in lanes: one for each order key or probed topic and for each other row, in the order of the first rows."""
    lanes: dict[int | str, deque[ClaimedRow]] = {}
    for row in rows:
        lanes.setdefault(row.topic if row.topic in probed else row.order_key or -row.seq, deque()).append(row)
    return list(lanes.values())
