"""The attempts of one send: which brokers failed and how, and what is repeated while a broker has no master.

While other members of such a broker are registered, one of them may take over. An attempt finds no master where nobody connects,
the broker takes no writes, or the name servers know no master. A member that says that it is a slave has a master, or gets one,
though no other is registered yet. A broker whose disk fails refuses what its follower may have: after a refusal, as after an answer
that is lost, the message is marked as one that may be there.

A master that is silent (a lost machine, a process that stands still) breaks no connection. So an attempt at a broker with several
members takes only a part of the send's time (`attempt_ms`), and is repeated where the route names another master; at the same one,
which may be slow, once late. A send that was not answered once fails with that, whatever came after it.

Beyond one send, the last few messages whose answer was lost are remembered by id (`UnansweredSends`): the next attempt under the
same id goes to the broker that may have it. Only that one can tell (`halfmoon.model.Message.attempt`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.send_result import failure_code
from halfmoon.client.core.route import PublishInfo
from halfmoon.client.core.route_table import RouteTable
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

SILENCE = (RequestTimeout, TooManyRequests, *ABSENT)
"""Failures after an attempt without an answer that do not say what became of the message."""

IS_SLAVE = "is a slave"
"""Part of the refusal of a member that is not the master."""

ATTEMPT_MS_MIN, ATTEMPTS_IN_TIME = 6_000, 5
"""An attempt at a broker with several members has a fifth of the send's time, but not less than this: a broker that waits for its
disk answers after 5 s."""

LOOK_MS_MIN = 100
"""At least so long the name servers are waited for after an attempt without an answer, so that the next send knows the route."""

UNSURE_MAX = 4096
"""Ids that are remembered; the oldest goes. An attempt follows within seconds, or never."""


class FirstAttempt(msgspec.Struct, gc=False):
    """The first attempt of a send that knows its way: what goes to which queue, and the address of its broker.

    ``info`` is the way; ``target`` is the queue that the user chose, None for any; ``begin`` is when it began (ms, steady).
    """

    outgoing: Outgoing
    info: PublishInfo
    queue: MessageQueue
    target: MessageQueue | None
    address: str
    begin: int
    budget_ms: int
    wait_ms: int
    """Time for which the answer to this attempt is waited for."""
    refused_by: str = ""
    """The broker, where it refused the message and may have it all the same."""


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


def attempt_ms(outgoing: Outgoing, budget_ms: int) -> int:
    """Return how long an attempt at a broker with several members is waited for, of the time of a send.

    All of it for a message that a broker would store twice if it was sent again.
    """
    return max(ATTEMPT_MS_MIN, budget_ms // ATTEMPTS_IN_TIME) if outgoing.is_stored_once else budget_ms


def may_get_master(error: Exception, *, has_member: bool) -> bool:
    """Return whether an attempt failed because its broker has no master now, and one may come."""
    if isinstance(error, ServiceNotAvailable) and IS_SLAVE in error.remark:
        return True
    return has_member and isinstance(error, ABSENT)


class Attempts:
    """The brokers that were tried, in order, the last of them perhaps just now; ``cause`` is the last failure.

    ``refused_by`` refused the message before, and may have it all the same.
    """

    def __init__(self, refused_by: str = "") -> None:
        self.brokers: list[str] = []
        self.cause: Exception | None = None
        self._may_be_stored = False
        self._absent: set[str] = set()
        self._unsure = {refused_by}
        self._refusing: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Note how the last attempt failed. One that did not leave says less than the one before it."""
        if self.cause is None or not isinstance(error, TooManyRequests):
            self.cause = error
        if isinstance(error, RequestTimeout | ConnectionLost | ServiceNotAvailable):
            self._unsure.add(self.brokers[-1])
        self._may_be_stored |= isinstance(error, RequestTimeout | ConnectionLost)
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

    def failure(self, topic: str, info: PublishInfo, cost_ms: int) -> HalfmoonError:
        """Return what to raise when no broker stored a message: TooManyRequests where no attempt left in time, else SendFailed.

        Differs: the original raises RemotingTooMuchRequestException also where the time was over and a broker did not answer.
        """
        if self.cause is None or isinstance(self.cause, TooManyRequests):
            reason, tried = failure_text(self.brokers[-1] if self.brokers else "", self.cause), ", ".join(self.brokers)
            return TooManyRequests(f"Could not send to {topic} in time: {reason} (tried: {tried or 'none'})")
        return SendFailed(
            topic, self.brokers, cost_ms, failure_code(self.cause), self.cause,
            retry=not self.are_refused(info), may_be_stored=self._may_be_stored,
        )  # fmt: skip


def until_present(attempt: Callable[[], Op[T]], may_return: Callable[[Exception], bool], end: int) -> Op[T]:
    """Make an attempt, and repeat it while it finds no master and one may come before ``end`` (steady); raises its last failure.

    ``may_return`` is asked with the failure.
    """
    pause = PAUSE_MS
    while True:
        try:
            return (yield from attempt())
        except ABSENT as exc:
            if not may_return(exc) or (yield from steady()) + pause >= end:
                raise
        yield from on_loop(sleep(pause))
        pause = min(pause * 2, PAUSE_MS_MAX)


def raise_lost(silent: str, error: Exception) -> NoReturn:
    """Raise the failure of a send: the lost answer of ``silent`` (empty: none was lost), if the last one says less than that."""
    if silent and isinstance(error, SILENCE) and not isinstance(error, RequestTimeout):
        raise RequestTimeout(f"no answer from {silent}, and since then: {error}", silent) from error
    raise error


def until_other(
    routes: RouteTable, topic: str, broker_name: str, known: Callable[[], str | None], silent: str, begin: int, budget_ms: int
) -> Op[bool]:  # fmt: skip
    """Wait, after an attempt without an answer, until the route names another master; return whether to repeat the attempt.

    Where it names the silent one still, after two thirds of the time: it may be slow, and have the message.
    """
    pause = PAUSE_MS
    while True:
        yield from on_loop(routes.look_for(topic, broker_name, LOOK_MS_MIN if routes.has_slave(broker_name) else 0))
        address, left = known(), begin + budget_ms - (yield from steady())
        is_other = address not in (None, silent)
        if left <= 0 or not (is_other or routes.has_slave(broker_name)):
            return False
        if is_other:
            return True
        yield from on_loop(sleep(min(pause, left)))  # also before the same one is asked again: nobody may connect there
        if address == silent and left <= budget_ms // 3:
            return True
        pause = min(pause * 2, PAUSE_MS_MAX)
