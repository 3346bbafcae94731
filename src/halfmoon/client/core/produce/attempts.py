"""The attempts of one send: which brokers failed and how, and what is repeated while a broker has no master.

While other members of such a broker are registered, one of them may take over. An attempt finds no master where nobody connects,
the broker takes no writes, or the name servers know no master. A broker whose disk fails refuses what its follower may have: after
a refusal, as after an answer that is lost, the message is marked as one that may be there.

Beyond one send, the last few messages whose answer was lost are remembered by id (`UnansweredSends`): the next attempt under the
same id goes to the broker that may have it. Only that one can tell (`halfmoon.model.Message.attempt`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.send_result import failure_code
from halfmoon.client.core.route import PublishInfo
from halfmoon.effects import Op, on_loop, sleep, steady
from halfmoon.errors import (
    ConnectFailed,
    ConnectionLost,
    HalfmoonError,
    NetworkError,
    NoMaster,
    NoPermission,
    RequestTimeout,
    SendFailed,
    ServiceNotAvailable,
    TooManyRequests,
    failure_text,
)
from halfmoon.model import MessageQueue

T = TypeVar("T")

PAUSE_MS, PAUSE_MS_MAX = 100, 500
"""First and longest pause between two attempts; each is twice the one before."""

ABSENT = (ConnectFailed, ServiceNotAvailable, NoMaster)
"""Failures of an attempt at a broker that has no master now."""

UNSURE_MAX = 4096
"""Ids that are remembered; the oldest goes. An attempt follows within seconds, or never."""


class UnansweredSends:
    """The brokers that may have a message, by its id. Safe to use from many threads."""

    def __init__(self) -> None:
        self._brokers: dict[str, str] = {}

    def note(self, outgoing: Outgoing, queue: MessageQueue, error: NetworkError) -> None:
        """Remember an attempt that left and was not answered."""
        if isinstance(error, RequestTimeout | ConnectionLost):
            for msg_id in outgoing.msg_id.split(","):
                self._brokers[msg_id] = queue.broker_name
                if len(self._brokers) > UNSURE_MAX:
                    # A copy: other threads may change the table while its first key is looked for.
                    self._brokers.pop(next(iter(self._brokers.copy()), ""), None)

    def queue(self, outgoing: Outgoing, info: PublishInfo) -> MessageQueue | None:
        """Return a queue of the broker that may have the message, once; None where nothing is known, or the broker is gone."""
        name = self._brokers.pop(outgoing.msg_id, None) if self._brokers else None
        if name is None:
            return None
        return next((queue for queue in info.queues if queue.broker_name == name), None)


class Attempts:
    """The brokers that were tried, in order, the last of them perhaps just now; ``cause`` is the last failure.

    ``refused_by`` refused the message before, and may have it all the same.
    """

    def __init__(self, refused_by: str = "") -> None:
        self.brokers: list[str] = []
        self.cause: Exception | None = None
        self._absent: set[str] = set()
        self._unsure = {refused_by}
        self._refusing: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Note how the last attempt failed."""
        self.cause = error
        if isinstance(error, RequestTimeout | ConnectionLost | ServiceNotAvailable):
            self._unsure.add(self.brokers[-1])
        if isinstance(error, ABSENT):
            self._absent.add(self.brokers[-1])
        elif isinstance(error, NoPermission) and not error.retry:
            self._refusing.add(self.brokers[-1])

    def may_be_at(self, broker_name: str) -> bool:
        """Return whether a broker may have the message from an attempt before: its answer was lost, or its disk failed."""
        return broker_name in self._unsure

    def are_last(self, broker_name: str, info: PublishInfo | None) -> bool:
        """Return whether a broker is the last to try: the others of the topic have no master, or there are none."""
        return info is None or all(name == broker_name or name in self._absent for name in info.write_counts)

    def are_refused(self, info: PublishInfo) -> bool:
        """Return whether each broker of the topic refused, and will refuse again."""
        return bool(self._refusing) and self._refusing.issuperset(info.write_counts)

    def failure(self, topic: str, info: PublishInfo, cost_ms: int, *, in_time: bool) -> HalfmoonError:
        """Return what to raise when no broker stored a message: all refused, or the attempts were used up in time, or not."""
        are_refused, reason = self.are_refused(info), failure_text(self.brokers[-1] if self.brokers else "", self.cause)
        if in_time or are_refused:
            return SendFailed(topic, self.brokers, cost_ms, failure_code(self.cause), self.cause, retry=not are_refused)
        return TooManyRequests(f"Could not send to {topic} in time: {reason} (tried: {', '.join(self.brokers) or 'none'})")


def until_present(attempt: Callable[[], Op[T]], may_return: Callable[[], bool], end: int) -> Op[T]:
    """Make an attempt, and repeat it while it finds no master and one may come before ``end`` (steady); raises its last failure."""
    pause = PAUSE_MS
    while True:
        try:
            return (yield from attempt())
        except ABSENT:
            if not may_return() or (yield from steady()) + pause >= end:
                raise
        yield from on_loop(sleep(pause))
        pause = min(pause * 2, PAUSE_MS_MAX)
