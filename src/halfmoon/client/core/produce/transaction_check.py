"""Transaction checks: a broker asks for the outcome of a half message, the user's code answers, on the same connection.

Holds the checks that wait, within bounds, and which function answers for which topic. Sends no half messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from halfmoon.client.core.ask import tell
from halfmoon.client.core.consume.pull import unpacked
from halfmoon.client.core.names import check_topic, unwrap
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.settings import TransactionSettings
from halfmoon.effects import Op, now, run
from halfmoon.errors import UsageError
from halfmoon.logs import log_failure
from halfmoon.model import LocalTransactionState, Message, StoredMessage
from halfmoon.wire.command import Command
from halfmoon.wire.headers.transaction import CheckTransactionState, EndTransaction
from halfmoon.wire.record import decode_record

ANSWER_TIMEOUT_MS = 3_000
"""For handing the answer to the network. Follows DefaultMQProducerImpl.checkTransactionState."""

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Bodies of the checks that wait; beyond it a check is dropped, and the broker asks again."""

CHECKERS_MAX = 10_000
"""Topics and patterns with a function of their own; more are a mistake of the caller."""

REMARK_LENGTH_MAX = 1_000
"""Characters of an error that travel to the broker, which writes them into its log."""

LocalTransaction = Callable[[Message, Any], Any]
"""Runs a local transaction: ``(message, arg)`` gives a `LocalTransactionState`, None for UNKNOWN. May be a coroutine function."""

CheckFunction = Callable[[StoredMessage], Any]
"""Returns the outcome of the local transaction of a half message; a function of the same kinds as `LocalTransaction`."""

log = logging.getLogger("halfmoon.client")


class TransactionListener(Protocol):
    """Runs local transactions and answers checks about them. Both methods may be coroutine functions.

    Follows TransactionListener (RocketMQ 4.7.1).
    """

    def execute(self, message: Message, arg: Any) -> Any:
        """Run the local transaction of a half message that is stored; return a `LocalTransactionState`, None for UNKNOWN.

        ``message.transaction_id`` is what `check` will know the transaction by; ``arg`` is what the sender of the message gave.
        """

    def check(self, message: StoredMessage) -> Any:
        """Return the outcome of the local transaction with ``message.transaction_id``, perhaps run by another process."""


class RunningTransaction(Protocol):
    """A local transaction that runs in this process, with the last check that a broker asked meanwhile."""

    question: CheckTransactionState | None


class CheckFunctions:
    """Which function answers for which topic: the topic's own, else that of the first pattern that fits, else ``otherwise``.

    Topics are the user's names. Patterns are those of a shell: ``orders_*``.
    """

    def __init__(self, otherwise: CheckFunction | None = None) -> None:
        """Take the function of all other topics. Raises UsageError for what is none."""
        if otherwise is not None and not callable(otherwise):
            raise UsageError(f"a check is a function of a message, not {otherwise!r}")
        self._otherwise = otherwise
        self._by_topic: dict[str, CheckFunction] = {}
        self._patterns: dict[str, CheckFunction] = {}

    def __bool__(self) -> bool:
        return self._otherwise is not None or bool(self._by_topic) or bool(self._patterns)

    def add(self, topic: str, function: CheckFunction) -> None:
        """Set the function of a topic or pattern, instead of the one before. Raises UsageError."""
        if not callable(function):
            raise UsageError(f"a check is a function of a message, not {function!r}")
        is_pattern = isinstance(topic, str) and any(sign in topic for sign in "*?[")
        if not is_pattern:
            check_topic(topic)
        table = self._patterns if is_pattern else self._by_topic
        if topic not in table and len(self._by_topic) + len(self._patterns) >= CHECKERS_MAX:
            raise UsageError(f"more than {CHECKERS_MAX} topics with a check of their own; use a pattern")
        table[topic] = function

    def find(self, topic: str) -> CheckFunction | None:
        """Return the function that answers for a topic, or None."""
        if (function := self._by_topic.get(topic)) is not None:
            return function
        return next((by for pattern, by in self._patterns.items() if fnmatchcase(topic, pattern)), self._otherwise)


class _Check(NamedTuple):
    address: str
    header: CheckTransactionState
    message: StoredMessage


class PendingChecks:
    """The checks that brokers asked and that wait for an answer; up to ``check_threads`` are answered side by side.

    Follows ClientRemotingProcessor.checkTransactionState and DefaultMQProducerImpl.checkTransactionState (RocketMQ 4.9.8).
    Differs: while the local transaction still runs in this process the answer is OPEN, the user's code is not asked, and the
    question is kept for the decision to come. Without a function for the topic the answer is NOT_MINE; the original gives none.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        sender: Sender,
        checkers: CheckFunctions,
        running: Mapping[str, RunningTransaction],
    ) -> None:
        self.settings = settings
        self.group = sender.group
        self._sender = sender
        self._checkers = checkers
        self._running = running
        self._held: deque[_Check] = deque()
        self._held_bytes = 0
        self._busy = 0

    def asked(self, address: str, command: Command) -> Op[None] | None:
        """Take a broker's question and return the operation that answers it, or None when one is at work already.

        Raises BadHeader, BadMessage.
        """
        header = command.header(CheckTransactionState)
        message = decode_record(bytes(command.body))
        group = message.properties.get("PGROUP")
        if group != self.group:
            log.warning("check ignored, it is for another group: group=%s ours=%s msg_id=%s", group, self.group, message.msg_id)
            return None
        size = len(message.body)
        if len(self._held) >= self.settings.check_hold_max or self._held_bytes + size > HELD_BYTES_MAX:
            log.warning("check dropped, the broker will ask again: held=%s msg_id=%s", len(self._held), message.msg_id)
            return None
        self._held.append(_Check(address, header, message))
        self._held_bytes += size
        if self._busy >= self.settings.check_threads:
            return None
        self._busy += 1
        return self._work()

    def _work(self) -> Op[None]:
        try:
            while self._held:
                check = self._held.popleft()
                self._held_bytes -= len(check.message.body)
                yield from self._answer(check)
        finally:
            self._busy -= 1

    def _answer(self, check: _Check) -> Op[None]:
        """Ask the user's code and answer the broker. Nothing that the code raises goes further."""
        message = unpacked(check.message)
        wire_topic = message.topic
        message.topic = unwrap(wire_topic, self.settings.namespace)
        state, remark = LocalTransactionState.UNKNOWN, None
        if (running := self._running.get(message.transaction_id)) is not None:
            running.question = check.header
            state = LocalTransactionState.OPEN
            remark = "the local transaction is still running"
        elif (checker := self._checkers.find(message.topic)) is None:
            state = LocalTransactionState.NOT_MINE
        else:
            try:
                state = state_of((yield from run(checker, message)))
            except Exception as exc:
                tries = message.properties.get("TRANSACTION_CHECK_TIMES")
                facts = {"group": self.group, "topic": message.topic, "message": message.msg_id, "tag": message.tag, "try": tries}
                log_failure(log, "check failed", exc, facts, "the broker asks again")
                remark = remark_of("checkLocalTransactionState Exception, ", exc)
        log.info("check answered: state=%s topic=%s transaction_id=%s", state.name, message.topic, message.transaction_id)
        try:
            request = _request(self.group, check.header, check.message, state, topic=wire_topic)
            yield from tell(check.address, request, b"", ANSWER_TIMEOUT_MS, remark)
            if (tracer := self._sender.tracer) is not None:
                tracer.ended(message, wire_topic, message.msg_id, check.address, state, (yield from now()), from_check=True)
        except Exception as exc:
            log.warning("answer not sent, the broker will ask again: msg_id=%s reason=%s", message.msg_id, exc)


def answer_not_mine(group: str) -> Callable[[str, Command], Op[None] | None]:
    """Return the function that answers checks with NOT_MINE, for a producer of a group that sends no half messages itself."""

    def asked(address: str, command: Command) -> Op[None] | None:
        header, message = command.header(CheckTransactionState), decode_record(bytes(command.body))
        if message.properties.get("PGROUP") != group:
            return None
        return tell(address, _request(group, header, message, LocalTransactionState.NOT_MINE), b"", ANSWER_TIMEOUT_MS)

    return asked


def _request(
    group: str, question: CheckTransactionState, message: StoredMessage, state: LocalTransactionState, *, topic: str | None = None
) -> EndTransaction:
    """Return the answer to a check. Its offsets are the question's, since brokers write the half message anew before they ask."""
    return EndTransaction(
        producer_group=group,
        tran_state_table_offset=question.tran_state_table_offset,
        commit_log_offset=question.commit_log_offset,
        commit_or_rollback=state.code,
        msg_id=message.msg_id,
        from_transaction_check=True,
        transaction_id=question.transaction_id,
        topic=topic or message.topic,
        broker_name=question.broker_name,
        still_open=True if state is LocalTransactionState.OPEN else None,
        not_mine="true" if state is LocalTransactionState.NOT_MINE else None,
    )


def state_of(value: Any) -> LocalTransactionState:
    """Return what the user's code said; None is UNKNOWN. Raises UsageError for anything that is no `LocalTransactionState`."""
    if value is None:
        return LocalTransactionState.UNKNOWN
    if not isinstance(value, LocalTransactionState):
        raise UsageError(f"expected a LocalTransactionState or None, got {value!r}")
    return value


def remark_of(begin: str, error: BaseException) -> str:
    """Return the text of an error for the broker's log, on one line, with a bound, and fit for UTF-8."""
    text = f"{begin}{type(error).__name__}: {error}"[:REMARK_LENGTH_MAX]
    return " ".join(text.split()).encode(errors="replace").decode()
