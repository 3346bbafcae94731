"""Transactions of a producer: store the half message, run the local transaction, send its outcome to the half message's broker.

`OpenHalf` is one half message; `Transactions` has what all of a producer share, with the local transactions that run in this
process. Answers no checks (see `halfmoon.client.core.produce.transaction_check`).
"""

from __future__ import annotations

import logging
from typing import Any, Self, TypedDict, Unpack
from weakref import WeakValueDictionary

import msgspec

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import no_message, wrap
from halfmoon.client.core.produce.attempts import PAUSE_MS, PAUSE_MS_MAX
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.transaction_check import (
    CheckFunction,
    CheckFunctions,
    LocalTransaction,
    PendingChecks,
    TransactionListener,
    remark_of,
    state_of,
)
from halfmoon.client.core.route_table import ROUTES_FAILED
from halfmoon.client.settings import TransactionSettings
from halfmoon.effects import Now, Op, SteadyTime, Tell, now, on_loop, run, sleep, spawn, steady
from halfmoon.errors import HalfmoonError, HalfRolledBack, NetworkError, NoNameServer, NoNameServerAnswers, NotRunning, UsageError
from halfmoon.hot import tag_hash
from halfmoon.logs import log_failure
from halfmoon.model import LocalTransactionState, Message, SendResult, SendStatus, TransactionSendResult
from halfmoon.wire.codes import TRANSACTION_PREPARED
from halfmoon.wire.headers.transaction import CheckTransactionState, EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id

EVERY_BROKER_TOPIC = "SELF_TEST_TOPIC"
"""A topic that every broker has: its route names the brokers that may ask us, also before we sent anything."""

MEET_PAUSE_MS, MEET_PAUSE_MS_MAX = 500, 30_000
"""Pauses between tries to learn of the brokers: the first, doubled with each, of which half to all is waited."""

CHECK_AFTER_S_MAX = 7 * 24 * 3600
"""Longest time before a first check that a message may ask for; at brokers it expires much earlier."""

TRAN_MSG, PGROUP, PCLIENT, CHECK_AFTER = "TRAN_MSG", "PGROUP", "PCLIENT", "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"

TOLD_AGAIN_MS, TOLD_AGAIN_MAX = 30_000, 1_000
"""Time within which a second phase is sent again, and the most of them at a time; brokers ask about the others."""

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN

log = logging.getLogger("halfmoon.client")


UNSURE: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError)
"""Errors after which it is unknown whether a database committed: the half message is then left to the broker's check."""


class Limits(TypedDict, total=False):
    """Age before which brokers do not ask about a half message, and the budget of storing it; see `Transactions.store`."""

    check_after_s: int | None
    timeout_ms: int | None


class OpenHalf:
    """Half message of a producer, from its first phase to its second: stored once, decided or left once. Made by `Transactions`.

    As long as it is kept, stored and undecided, its local transaction counts as running here. All that waits is an operation.
    """

    def __init__(
        self,
        transactions: Transactions,
        message: Message,
        *,
        unsure: tuple[type[BaseException], ...] = UNSURE,
        **limits: Unpack[Limits],
    ) -> None:
        """``unsure``: see `verdict`."""
        self.message = message
        """The message; once it is stored, as the local transaction sees it."""
        self.open = False
        """Whether it is stored and undecided."""
        self.question: CheckTransactionState | None = None
        """The last check of it that a broker asked while it was open."""
        self._transactions, self._unsure, self._limits = transactions, unsure, limits
        self._begun = False
        self._result: SendResult | None = None

    def store(self) -> Op[Self]:
        """Store it: the first phase. Raises UsageError the second time, and as `Transactions.store`."""
        if self._begun:
            raise UsageError("a half message is sent once: make another with half()")
        self._begun = True
        self._result = yield from self._transactions.store(self.message, half=self, **self._limits)
        self.open = True
        return self

    def store_safe(self) -> Op[Self]:
        """Store it; one that is not safe is rolled back, and HalfRolledBack raised."""
        yield from self.store()
        if not self.safe:
            yield from self._transactions.finish(self, ROLLBACK)
            raise HalfRolledBack(self.result, self.result.status.name)
        return self

    def decide(self, state: LocalTransactionState, error: Exception | None = None) -> Op[None]:
        """Tell the broker what to do with it: the second phase. Raises UsageError unless it is open, and nothing of the network."""
        self.leave()
        transactions = self._transactions
        yield from transactions.sender.placed(transactions.second_phase(self, state, error))

    def leave(self) -> None:
        """Leave it to the broker's check, which the user's code answers from now on. Raises UsageError unless it is open."""
        if not self.open:
            raise UsageError("this half message was decided, or its block has not begun")
        self.open = False
        self._transactions.running.pop(self.result.msg_id, None)

    def verdict(self, error: BaseException | None) -> LocalTransactionState | None:
        """Return the decision of the end of a block, which an error ended or none; None: it is decided, or left to the check now.

        Errors that are ``unsure``, and those that are no Exception, say nothing of the outcome.
        """
        if not self.open:
            return None
        if error is None:
            return COMMIT
        if isinstance(error, Exception) and not isinstance(error, self._unsure):
            return ROLLBACK
        self.leave()
        return None

    @property
    def safe(self) -> bool:
        """Whether the broker kept every promise, so that the local transaction may run."""
        return self.result.status is SendStatus.SEND_OK

    @property
    def result(self) -> SendResult:
        """Where it went. Raises UsageError before it is stored."""
        if self._result is None:
            raise UsageError("the half message is not stored: enter the block first")
        return self._result

    @property
    def message_id(self) -> str:
        """The message's id, which consumers see, and by which a check knows the transaction."""
        return self.result.msg_id


class Transactions:
    """The transactional half of a producer. Names its producer group in every half message, so that brokers know whom to ask.

    Follows DefaultMQProducerImpl.sendMessageInTransaction and endTransaction (RocketMQ 4.9.8).
    Differs: the caller's message is never changed; a failed half message raises the send's own error, not one around it.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        sender: Sender,
        instance: Instance,
        listener: TransactionListener | None = None,
        check: CheckFunction | None = None,
    ) -> None:
        """``check`` answers for topics without a function of their own; without it the listener does."""
        self.settings = settings
        self.sender = sender
        self.instance = instance
        self.listener = listener
        self.checkers = CheckFunctions(check if check is not None or listener is None else listener.check)
        self.running: WeakValueDictionary[str, OpenHalf] = WeakValueDictionary()
        """The local transactions that run in this process now, by id; one whose caller was interrupted goes by itself."""
        self._client = f"{tag_hash(instance.client_id.encode()) & 0xFFFFFF:06x}"
        """By this a Halfmoon broker knows the sender among the members of its group, and asks it first."""
        self.checks = PendingChecks(settings, sender, self.checkers, self.running)
        instance.on_asked[39] = self.checks.asked
        self._told_again = 0

    # ------------------------------------------------------------ beside the work

    def meet_brokers(self) -> Op[None]:
        """Learn of every broker, so that heartbeats show the group to all that may ask it, whether we send to them or not.

        Ends when a name server has answered; the refreshes of routes find the brokers that join later.
        """
        routes, troubles, pause_ms = self.instance.routes, self.instance.troubles, MEET_PAUSE_MS
        unknown = f"no broker known that may ask producer group {self.sender.group}"
        routes.register(EVERY_BROKER_TOPIC)
        while True:
            try:
                yield from routes.refresh(EVERY_BROKER_TOPIC)
                break
            except (NoNameServer, NoNameServerAnswers) as exc:
                troubles.failed(ROUTES_FAILED, exc, (yield from steady()))  # in the words of later refreshes: logged once
            except HalfmoonError as exc:
                troubles.failed(unknown, exc, (yield from steady()))
            yield from sleep(round(pause_ms * self.instance.random.uniform(0.5, 1)))
            pause_ms = min(pause_ms * 2, MEET_PAUSE_MS_MAX)
        troubles.recovered(ROUTES_FAILED)
        troubles.recovered(unknown)

    # ------------------------------------------------------------ all in one

    def send(
        self, message: Message, arg: Any = None, executor: LocalTransaction | None = None, **limits: Unpack[Limits]
    ) -> Op[TransactionSendResult]:
        """Store a half message, run the local transaction if that went well, and send its outcome to the broker.

        Raises UsageError before anything is sent, and whatever `Sender.deliver` raises; nothing afterwards.
        """
        local = self.local(executor)
        half = yield from OpenHalf(self, message, **limits).store()
        try:
            value, error = None, None
            if half.safe:
                try:
                    value = state_of((yield from run(local, half.message, arg)))
                except Exception as exc:
                    error = exc
            return (yield from self.finish(half, value, error))
        finally:
            if half.open:
                half.leave()

    def half(
        self,
        message: Message,
        *,
        check: CheckFunction | None = None,
        unsure: tuple[type[BaseException], ...] = UNSURE,
        **limits: Unpack[Limits],
    ) -> OpenHalf:
        """Return a half message that is to be stored. ``check`` answers checks for its topic from now on.

        Raises UsageError when nobody could answer a check.
        """
        if not isinstance(message, Message):
            raise no_message(message)
        if check is not None:
            self.checkers.add(message.topic, check)
        if self.checkers.find(message.topic) is None:
            raise UsageError(f"nobody could answer a broker's check: set one for topic {message.topic!r} (on_check or check=)")
        return OpenHalf(self, message, unsure=unsure, **limits)

    def local(self, executor: LocalTransaction | None) -> LocalTransaction:
        """Return what runs the local transaction: the executor of the call, else the listener. Raises UsageError for neither.

        The texts follow TransactionMQProducer and DefaultMQProducerImpl (RocketMQ 4.7.1).
        """
        if executor is not None:
            if not self.checkers:
                raise UsageError("localTransactionBranchCheckListener is null")
            return executor
        if self.listener is not None:
            return self.listener.execute
        raise UsageError("tranExecutor is null" if self.checkers else "TransactionListener is null")

    def finish(
        self, half: OpenHalf, state: LocalTransactionState | None, error: Exception | None = None
    ) -> Op[TransactionSendResult]:
        """Send the outcome of a local transaction to the broker, and return it with the send's result.

        A half message that is not safe is rolled back. An ``error`` of the local transaction is logged, remembered in the result
        and carried to the broker; the state is UNKNOWN then.
        """
        outcome = (state or UNKNOWN) if half.safe else ROLLBACK
        if error is not None:
            keys = half.message.keys
            facts = {
                "group": self.sender.group, "topic": half.message.topic, "message": half.message_id, "tag": half.message.tag,
                "keys": keys if isinstance(keys, str) else " ".join(keys), "body": _beginning(half.message),
            }  # fmt: skip
            log_failure(log, "local transaction failed", error, facts, "its outcome is UNKNOWN, so that the broker asks")
        elif outcome is not COMMIT:
            status, what = half.result.status.name, _described(half.message)
            log.info("local transaction not committed: state=%s status=%s %s", outcome.name, status, what)
        yield from half.decide(outcome, error)
        result = {name: getattr(half.result, name) for name in SendResult.__struct_fields__}
        return TransactionSendResult(**result, local_state=outcome, local_error=error)

    # ------------------------------------------------------------ the first phase

    def store(
        self, message: Message, *, half: OpenHalf, check_after_s: int | None = None, timeout_ms: int | None = None
    ) -> Op[SendResult]:
        """Send a half message with the retries of any send; from here on its transaction counts as running here.

        A delay is taken off, because brokers forget it. ``check_after_s`` is the age, in seconds, before which the broker does
        not ask; None: the broker's own (transactionTimeOut, 6 s).

        Raises UsageError, NoRoute, BrokerError, SendFailed, TooManyRequests.
        """
        sender, settings = self.sender, self.settings
        begin: int = yield SteadyTime()
        sender.check(message)
        if message.is_delayed:
            log.warning("delay of a half message ignored: topic=%s", message.topic)
        plain = msgspec.structs.replace(message, delay_level=0, delay=None, deliver_at=None)
        extra = {TRAN_MSG: "true", PGROUP: sender.group, PCLIENT: self._client}
        if check_after_s is not None:
            if not 0 <= check_after_s <= CHECK_AFTER_S_MAX:
                raise UsageError(f"check_after_s: {check_after_s!r} is outside 0 to {CHECK_AFTER_S_MAX}")
            extra[CHECK_AFTER] = str(check_after_s)
        outgoing = yield from sender.prepare(plain, (yield Now()), extra, sys_flag=TRANSACTION_PREPARED)
        # Before it leaves: a broker may ask while its reply is still on the way.
        self.running[outgoing.msg_id] = half
        try:
            budget_ms = settings.send_timeout_ms if timeout_ms is None else timeout_ms
            result = yield from sender.placed(sender.deliver(outgoing, begin, budget_ms))
        except BaseException:
            self.running.pop(outgoing.msg_id, None)
            raise
        given = {TRANSACTION_ID: result.transaction_id} if result.transaction_id else {}
        half.message = msgspec.structs.replace(plain, properties={**plain.properties, **given}, transaction_id=result.msg_id)
        return result

    # ------------------------------------------------------------ the second phase

    def second_phase(self, half: OpenHalf, state: LocalTransactionState, error: Exception | None = None) -> Op[None]:
        """Tell the broker that stored a half message what to do with it, one-way; a failure is logged, for the broker asks.

        Where the master is gone and another member may take over, that is told in the background, for up to 30 s.
        Where the broker asked while the local transaction ran, this is the late answer: it names the offsets of the question.
        Differs: the original names the first ones, and the copy that was written to ask is then asked for, and delivered, again.
        """
        result, check = half.result, half.question
        topic = wrap(result.queue.topic, self.settings.namespace)
        try:
            place = parse_offset_msg_id(result.offset_msg_id or result.msg_id)
            request = EndTransaction(
                producer_group=self.sender.group,
                tran_state_table_offset=result.queue_offset if check is None else check.tran_state_table_offset,
                commit_log_offset=place.physical_offset if check is None else check.commit_log_offset,
                commit_or_rollback=state.code,
                msg_id=result.msg_id,
                from_transaction_check=check is not None,
                transaction_id=result.transaction_id,
                topic=topic,
                broker_name=result.queue.broker_name,
            )
            remark = None if error is None else remark_of("executeLocalTransactionBranch exception: ", error)
            address = self.instance.routes.master(result.queue.broker_name) or place.address
            try:
                yield Tell(address, request, b"", self.settings.send_timeout_ms, remark)
            except NetworkError as exc:
                if not self._may_tell_again(request, address, state):
                    raise
                what = _described(half.message)
                log.info("second phase not sent, it follows with the next master: state=%s %s reason=%s", state.name, what, exc)
                self._told_again += 1
                yield from on_loop(spawn(self._tell_again(half, request, place.address, state, remark), "second phase"))
                return
            if self.sender.tracer is not None:
                yield from self._trace(half, request, address, state)
        except Exception as exc:
            _log_not_sent(half, state, exc)

    def _trace(self, half: OpenHalf, request: EndTransaction, address: str, state: LocalTransactionState) -> Op[None]:
        if (tracer := self.sender.tracer) is not None:
            topic, from_check, at = request.topic or "", bool(request.from_transaction_check), (yield from now())
            tracer.ended(half.message, topic, half.result.msg_id, address, state, at, from_check=from_check)

    def _may_tell_again(self, request: EndTransaction, address: str, state: LocalTransactionState) -> bool:
        """Return whether a second phase that did not leave decides something, and another member of the broker may take it."""
        name, routes = request.broker_name or "", self.instance.routes
        has_other = routes.has_slave(name) or routes.master(name) not in (None, address)
        return has_other and state is not UNKNOWN and self._told_again < TOLD_AGAIN_MAX and self.sender.running

    def _tell_again(
        self, half: OpenHalf, request: EndTransaction, first: str, state: LocalTransactionState, remark: str | None
    ) -> Op[None]:
        """Send a second phase again until it leaves, beside the user's work; the broker keeps the first decision that it gets."""
        try:
            end, pause = (yield from steady()) + TOLD_AGAIN_MS, PAUSE_MS
            while True:
                yield from sleep(pause)
                pause = min(pause * 2, PAUSE_MS_MAX)
                yield from self.instance.routes.look_for(request.topic or "", request.broker_name or "")
                try:
                    address = self.instance.routes.master(request.broker_name or "") or first
                    yield Tell(address, request, b"", self.settings.send_timeout_ms, remark)
                    yield from self._trace(half, request, address, state)
                    return
                except NetworkError:
                    if (yield from steady()) >= end or not self.sender.running:
                        raise
        except GeneratorExit:
            _log_not_sent(half, state, NotRunning("the producer is closed"))
            raise
        except Exception as exc:
            _log_not_sent(half, state, exc)
        finally:
            self._told_again -= 1


def _log_not_sent(half: OpenHalf, state: LocalTransactionState, error: Exception) -> None:
    what = _described(half.message)
    log.warning("second phase not sent, the broker will ask: state=%s %s reason=%s", state.name, what, error)


def _described(message: Message) -> str:
    """Return a message as the log shows it, with the beginning of its body."""
    facts = f"transaction_id={message.transaction_id} tag={message.tag} keys={message.keys!r}"
    return f"topic={message.topic} {facts} body={_beginning(message)!r}"


def _beginning(message: Message) -> bytes:
    return bytes(memoryview(message.body)[:64])
