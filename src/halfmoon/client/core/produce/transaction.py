"""Transactions of a producer: store the half message, run the local transaction, send its outcome to the half message's broker.

Holds which local transactions run in this process. Answers no checks (see `halfmoon.client.core.produce.transaction_check`).
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from halfmoon.client.core.ask import tell
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.transaction_check import (
    CheckFunction,
    CheckFunctions,
    LocalTransaction,
    PendingChecks,
    RunningTransaction,
    TransactionListener,
    remark_of,
    state_of,
)
from halfmoon.client.core.route_table import ROUTES_FAILED
from halfmoon.client.settings import TransactionSettings
from halfmoon.effects import Op, now, run, sleep, steady
from halfmoon.errors import HalfmoonError, HalfRolledBack, NoNameServer, NoNameServerAnswers, UsageError
from halfmoon.hot import tag_hash
from halfmoon.model import LocalTransactionState, Message, SendResult, SendStatus, TransactionSendResult
from halfmoon.wire.codes import TRANSACTION_PREPARED
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.ids import parse_offset_msg_id

EVERY_BROKER_TOPIC = "SELF_TEST_TOPIC"
"""A topic that every broker has: its route names the brokers that may ask us, also before we sent anything."""

MEET_PAUSE_MS, MEET_PAUSE_MS_MAX = 500, 30_000
"""Pauses between tries to learn of the brokers: the first, doubled with each, of which half to all is waited."""

CHECK_AFTER_S_MAX = 7 * 24 * 3600
"""Longest time before a first check that a message may ask for; at brokers it expires much earlier."""

TRAN_MSG, PGROUP, PCLIENT, CHECK_AFTER = "TRAN_MSG", "PGROUP", "PCLIENT", "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN

log = logging.getLogger("halfmoon.client")


class StoredHalf(msgspec.Struct):
    """A half message that a broker has: the message as the local transaction sees it, and what the broker answered.

    While this is kept, or until `Transactions.leave`, the local transaction counts as running here.
    """

    message: Message
    result: SendResult
    running: RunningTransaction

    @property
    def safe(self) -> bool:
        """Whether the broker kept every promise, so that the local transaction may run."""
        return self.result.status is SendStatus.SEND_OK


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
        self.running: WeakValueDictionary[str, RunningTransaction] = WeakValueDictionary()
        """The local transactions that run in this process now, by id; one whose caller was interrupted goes by itself."""
        self._client = f"{tag_hash(instance.client_id.encode()) & 0xFFFFFF:06x}"
        """By this a Halfmoon broker knows the sender among the members of its group, and asks it first."""
        self.checks = PendingChecks(settings, sender, self.checkers, self.running)
        instance.on_asked[39] = self.checks.asked

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
        self, message: Message, arg: Any = None, executor: LocalTransaction | None = None, **limits: int | None
    ) -> Op[TransactionSendResult]:
        """Store a half message, run the local transaction if that went well, and send its outcome to the broker.

        ``limits`` are ``check_after_s`` and ``timeout_ms`` of `store`. Raises UsageError before anything is sent, and whatever
        `Sender.deliver` raises; nothing afterwards.
        """
        local = self.local(executor)
        stored = yield from self.store(message, **limits)
        try:
            value, error = None, None
            if stored.safe:
                try:
                    value = state_of((yield from run(local, stored.message, arg)))
                except Exception as exc:
                    error = exc
            return (yield from self.finish(stored, value, error))
        finally:
            self.leave(stored)

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
        self, stored: StoredHalf, state: LocalTransactionState | None, error: Exception | None = None
    ) -> Op[TransactionSendResult]:
        """Send the outcome of a local transaction to the broker, and return it with the send's result.

        A half message that is not safe is rolled back. An ``error`` of the local transaction is logged, remembered in the result
        and carried to the broker; the state is UNKNOWN then.
        """
        outcome = (state or UNKNOWN) if stored.safe else ROLLBACK
        if error is not None:
            log.error("local transaction failed: %s", _described(stored.message), exc_info=error)
        elif outcome is not COMMIT:
            status, what = stored.result.status.name, _described(stored.message)
            log.info("local transaction not committed: state=%s status=%s %s", outcome.name, status, what)
        yield from self.decide(stored, outcome, error)
        result = {name: getattr(stored.result, name) for name in SendResult.__struct_fields__}
        return TransactionSendResult(**result, local_state=outcome, local_error=error)

    # ------------------------------------------------------------ the first phase

    def store(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Op[StoredHalf]:
        """Send a half message with the retries of any send; from here on its transaction counts as running here.

        A delay is taken off, because brokers forget it. ``check_after_s`` is the age, in seconds, before which the broker does
        not ask; None: the broker's own (transactionTimeOut, 6 s).

        Raises UsageError, NoRoute, BrokerError, SendFailed, TooManyRequests.
        """
        sender, settings = self.sender, self.settings
        begin = yield from steady()
        sender.check(message)
        if message.is_delayed:
            log.warning("delay of a half message ignored: topic=%s", message.topic)
        plain = msgspec.structs.replace(message, delay_level=0, delay=None, deliver_at=None)
        extra = {TRAN_MSG: "true", PGROUP: sender.group, PCLIENT: self._client}
        if check_after_s is not None:
            if not 0 <= check_after_s <= CHECK_AFTER_S_MAX:
                raise UsageError(f"check_after_s: {check_after_s!r} is outside 0 to {CHECK_AFTER_S_MAX}")
            extra[CHECK_AFTER] = str(check_after_s)
        outgoing = yield from sender.prepare(plain, (yield from now()), extra, sys_flag=TRANSACTION_PREPARED)
        # Before it leaves: a broker may ask while its reply is still on the way.
        running = self.running[outgoing.msg_id] = RunningTransaction()
        try:
            result = yield from sender.deliver(outgoing, begin, settings.send_timeout_ms if timeout_ms is None else timeout_ms)
        except BaseException:
            self.running.pop(outgoing.msg_id, None)
            raise
        given = {TRANSACTION_ID: result.transaction_id} if result.transaction_id else {}
        seen = msgspec.structs.replace(plain, properties={**plain.properties, **given}, transaction_id=result.msg_id)
        return StoredHalf(seen, result, running)

    def store_safe(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Op[StoredHalf]:
        """Send a half message as `store` does; one that is not safe is rolled back and HalfRolledBack raised."""
        stored = yield from self.store(message, check_after_s=check_after_s, timeout_ms=timeout_ms)
        if not stored.safe:
            try:
                yield from self.finish(stored, ROLLBACK)
            finally:
                self.leave(stored)
            raise HalfRolledBack(stored.result, stored.result.status.name)
        return stored

    # ------------------------------------------------------------ the second phase

    def decide(self, stored: StoredHalf, state: LocalTransactionState, error: Exception | None = None) -> Op[None]:
        """Tell the broker that stored a half message what to do with it, one-way; a failure is logged, for the broker asks.

        Where the broker asked while the local transaction ran, this is the late answer: it names the offsets of the question.
        Differs: the original names the first ones, and the copy that was written to ask is then asked for, and delivered, again.
        """
        # From here on a check is for the user's code: nobody would look at its question any more.
        check = stored.running.asked
        self.leave(stored)
        result = stored.result
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
                topic=self.instance.wire(result.queue.topic),
                broker_name=result.queue.broker_name,
            )
            address = self.instance.routes.master(result.queue.broker_name) or place.address
            remark = None if error is None else remark_of("executeLocalTransactionBranch exception: ", error)
            yield from tell(address, request, b"", self.settings.send_timeout_ms, remark)
            if (tracer := self.sender.tracer) is not None:
                at, topic, late = (yield from now()), self.instance.wire(result.queue.topic), check is not None
                tracer.ended(stored.message, topic, result.msg_id, address, state, at, from_check=late)
        except Exception as exc:
            what = _described(stored.message)
            log.warning("second phase not sent, the broker will ask: state=%s %s reason=%s", state.name, what, exc)

    def leave(self, stored: StoredHalf) -> None:
        """The local transaction is over here, or nothing more is known of it: from now on checks ask the user's code."""
        self.running.pop(stored.result.msg_id, None)


def _described(message: Message) -> str:
    """Return a message as the log shows it, with the beginning of its body."""
    body = bytes(memoryview(message.body)[:64])
    return f"topic={message.topic} transaction_id={message.transaction_id} tag={message.tag} keys={message.keys!r} body={body!r}"
