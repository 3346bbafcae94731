"""The push consumer: pulls its queues without end, hands messages to a listener, and gives back what failed.

Follows DefaultMQPushConsumerImpl and ConsumeMessageConcurrentlyService (RocketMQ 4.9.8). Ordered consumption is not here.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from halfmoon.client.core.ask import ask
from halfmoon.client.core.direct import consume_directly
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.member import Held
from halfmoon.client.core.names import INNER_PRODUCER, retry_topic
from halfmoon.client.core.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.outgoing import Outgoing
from halfmoon.client.core.pulling import Puller
from halfmoon.client.core.rebalance import Strategy
from halfmoon.client.core.running import running_info
from halfmoon.client.core.send import Sender, properties_text
from halfmoon.client.core.tracing import Tracer
from halfmoon.client.settings import ProducerSettings, PushSettings
from halfmoon.effects import Op, Signal, now, run, sleep, spawn, steady, wait
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.model import RECONSUME_REASON, ConsumeStatus, MessageQueue, PullStatus, StoredMessage, Subscription
from halfmoon.wire.bodies import ConsumeDirectlyResult, ConsumerRunningInfo
from halfmoon.wire.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.properties import one_line
from halfmoon.wire.traces import ConsumeCode

REDELIVER_MS = 5_000
"""After this a message that could not be given back is handed to the listener again."""
SEND_BACK_TIMEOUT_MS = 5_000
OVERDUE_DELAY_LEVEL = 3
"""Delay level of messages that the listener held too long."""

log = logging.getLogger("halfmoon.client")


class ConsumeContext(msgspec.Struct):
    """What a listener may say beside its result.

    ``ack_index``: with success, messages behind this index of the list count as failed (None: none). ``delay_level``: when
    failed messages come again (0: the broker decides by their count, -1: dead letters at once). ``reason``: why they failed, which
    Halfmoon's brokers keep with them; an exception that the listener raises says it by itself. ``suspend_ms``: how long the queue
    of an orderly consumer rests after a failure (None: as the settings say). ``auto_commit`` False, for orderly consumers: what
    is consumed is kept back until the listener returns COMMIT, and all that is kept back comes again when it returns ROLLBACK.
    """

    queue: MessageQueue
    ack_index: int | None = None
    delay_level: int = 0
    reason: str | None = None
    suspend_ms: int | None = None
    auto_commit: bool = True


class PushCore(Puller):
    """A push consumer without its event loop."""

    settings: PushSettings

    def __init__(
        self,
        settings: PushSettings,
        instance: Instance,
        offsets: RemoteOffsets | LocalOffsets,
        ids: UniqueIds,
        allocate: Strategy | None = None,
    ) -> None:
        super().__init__(settings, instance, offsets, allocate)
        self.listener: Callable[..., Any] | None = None
        self.paused = False
        self.consumed_count = self.failed_count = 0
        self.tracer = Tracer(settings, instance, ids) if settings.trace else None
        self._takes_context = False
        self._todo: deque[tuple[Held, list[StoredMessage]]] = deque()
        self._busy = 0
        self._quiet = Signal()
        inner = ProducerSettings(group=INNER_PRODUCER, nameserver=settings.nameserver, vip_channel=settings.vip_channel)
        self._sender = Sender(inner, instance.routes, ids)

    def on_message(self, listener: Callable[..., Any]) -> None:
        """Set the listener: ``listener(messages)`` or ``listener(messages, context)``, a function or a coroutine function.

        A second parameter with a default value is the listener's own and is not given the context.
        """
        try:
            required = [
                p
                for p in inspect.signature(listener).parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
            ]
        except (TypeError, ValueError):
            required = []
        self._takes_context = len(required) >= 2
        self.listener = listener

    # ------------------------------------------------------------ life

    def start(self) -> Op[None]:
        """Subscribe the redeliveries of the group and show ourselves. Raises UsageError without a listener or subscription."""
        if self.listener is None:
            raise UsageError("the listener is missing: set one with on_message")
        if not self.subscriptions:
            raise UsageError("nothing is subscribed")
        if self.clustering:
            topic = retry_topic(self.group)
            self.subscriptions.setdefault(topic, Subscription(topic))
            self.routes.register(topic)
        self._sender.running = True
        yield from super().start()
        if self.tracer is not None:
            yield from spawn(self.tracer.keep_sending(), "traces")

    def tend(self) -> list[Op[None]]:
        """Return what runs beside the work."""
        return [*super().tend(), self._keep_looking()]

    def _crowded(self, held: Held) -> bool:
        """Follows RebalancePushImpl.messageQueueChanged (RocketMQ 4.9.8): queues share what their topic may have.

        Differs: they are those of the topic, not all that the member has; and a bound of its own holds for each queue beside it.
        """
        count_max, bytes_max = self.settings.cached_topic_max, self.settings.cached_topic_bytes_max
        if count_max < 0 and bytes_max < 0:
            return super()._crowded(held)
        sharers = sum(queue.topic == held.queue.topic for queue in self.held) or 1
        if count_max >= 0 and len(held.window) > max(1, count_max // sharers):
            return True
        if bytes_max >= 0 and held.window.size_bytes > max(1, bytes_max // sharers):
            return True
        return super()._crowded(held)

    def stop(self) -> Op[None]:
        """Stop pulling, wait a while for the listener, store the progress, leave the group."""
        for held in self.held.values():
            if held.handle is not None:
                held.handle.cancel()
        self._todo.clear()
        if self._busy and self.settings.close_wait_ms:
            self._quiet = Signal()  # the old one remembers that all was quiet some time ago
            yield from wait(self._quiet, self.settings.close_wait_ms)
        self._sender.running = False
        if self.tracer is not None:
            yield from self.tracer.flush()
        yield from super().stop()

    # ------------------------------------------------------------ pulling

    def _wanted(self, queue: MessageQueue) -> Subscription | None:
        return None if self.paused else self.subscriptions.get(queue.topic)

    def _pull_once(self, held: Held, wanted: Subscription) -> Op[None]:
        settings, window = self.settings, held.window
        commit = max(self.offsets.memory(held.queue), 0) if self.clustering else 0
        flags = PULL_SUSPEND | (PULL_COMMIT_OFFSET if commit else 0) | (PULL_SUBSCRIPTION if settings.post_subscription else 0)
        result = yield from self._pull(held, wanted, flags, send_expression=settings.post_subscription, commit_offset=commit)
        if result is None:
            return
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("offset illegal: queue=%s asked=%s next=%s", held.queue, held.next_offset, result.next_offset)
            yield from self.restart(held.queue, result.next_offset, by_itself=True)
            return
        moved, held.next_offset = result.next_offset != held.next_offset, result.next_offset
        if result.messages:
            yield from self._submit(held, window.add(result.messages))
        elif not len(window):
            self.offsets.update(held.queue, held.next_offset)
        if settings.pull_interval_ms:
            yield from sleep(settings.pull_interval_ms)
        else:
            yield from self._breathe(held, moved)

    # ------------------------------------------------------------ consuming

    def _submit(self, held: Held, messages: list[StoredMessage]) -> Op[None]:
        size = self.settings.consume_batch_max
        for i in range(0, len(messages), size):
            self._todo.append((held, messages[i : i + size]))
        for _ in range(min(len(self._todo), self.settings.threads - self._busy)):
            self._busy += 1
            yield from spawn(self._work(), f"consume {self.group}")

    def _work(self) -> Op[None]:
        try:
            while self._todo and self.running:
                held, messages = self._todo.popleft()
                yield from self._consume(held, messages)
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.fire()

    def _consume(self, held: Held, messages: list[StoredMessage]) -> Op[None]:
        """Hand messages to the listener once, then finish them or give them back. Nothing it raises goes further."""
        if held.window.dropped:
            return
        assert self.listener is not None
        begin, start = (yield from now()), (yield from steady())
        held.window.started(messages, begin, start)
        shown = [self._shown(message, begin) for message in messages]
        context = ConsumeContext(self.user_queue(held.queue))
        raised = ""
        traced = self.tracer.handed(shown, begin) if self.tracer is not None else ""
        try:
            status = yield from run(self.listener, *((shown, context) if self._takes_context else (shown,)))
        except Exception as exc:
            raised = f"{type(exc).__name__}: {exc}"
            log.exception("listener failed: group=%s queue=%s first=%s", self.group, held.queue, messages[0].msg_id)
            status = ConsumeStatus.RECONSUME_LATER
        status = self._meant(status, context)
        good = 0 if status in (ConsumeStatus.RECONSUME_LATER, ConsumeStatus.ROLLBACK) else len(messages)
        if context.ack_index is not None:
            good = max(0, min(good, context.ack_index + 1))
        took_ms = (yield from steady()) - start
        failed = 0 if status is ConsumeStatus.ROLLBACK else len(messages) - good
        self.figures_of(held.queue.topic).called(took_ms, good, failed)
        if self.tracer is not None:
            code = ConsumeCode.EXCEPTION if raised else ConsumeCode.SUCCESS if good else ConsumeCode.FAILED
            late = took_ms >= self.settings.consume_timeout_ms
            self.tracer.returned(traced, shown, begin, begin + took_ms, ConsumeCode.TIME_OUT if late else code)
        yield from self._finish(held, messages, good, context, raised or context.reason or "", status)

    def _meant(self, status: Any, context: ConsumeContext) -> ConsumeStatus:
        """Return what a listener said; nothing is success. COMMIT and ROLLBACK are for orderly consumers."""
        if status is None:
            return ConsumeStatus.CONSUME_SUCCESS
        if status is ConsumeStatus.CONSUME_SUCCESS or status is ConsumeStatus.RECONSUME_LATER:
            return status
        log.warning("listener returned what it may not: group=%s value=%r", self.group, status)
        return ConsumeStatus.RECONSUME_LATER

    def consume_directly(self, record: bytes, broker_name: str) -> Op[ConsumeDirectlyResult | None]:
        """Hand one message to the listener because an operator asked for it (309)."""
        return (yield from consume_directly(record, broker_name, self._hand, orderly=self.settings.orderly))

    def _hand(self, message: StoredMessage) -> Op[tuple[Any, bool]]:
        assert self.listener is not None
        begin = yield from now()
        context = ConsumeContext(self.user_queue(MessageQueue(message.topic, message.broker_name, message.queue_id)))
        shown = [self._shown(message, begin)]
        status = yield from run(self.listener, *((shown, context) if self._takes_context else (shown,)))
        return status, context.auto_commit

    def _shown(self, message: StoredMessage, begin: int) -> StoredMessage:
        origin = message.properties.get("RETRY_TOPIC")
        if origin and message.topic == retry_topic(self.group):
            message.topic = origin
        message.topic = self.user_queue(MessageQueue(message.topic, "", 0)).topic
        message.properties["CONSUME_START_TIME"] = str(begin)
        return message

    def _finish(
        self, held: Held, messages: list[StoredMessage], good: int, context: ConsumeContext, reason: str, status: ConsumeStatus
    ) -> Op[None]:
        if held.window.dropped:
            return  # whoever has the queue now gets them again
        done, failed = messages[:good], messages[good:]
        self.consumed_count += len(done)
        self.failed_count += len(failed)
        for message in failed:
            if not self.clustering:
                log.warning("message dropped after a failure, as broadcasting does: msg_id=%s", message.msg_id)
            elif message.queue_offset not in held.window:
                continue  # given back already, because the listener held it too long
            elif not (yield from self.give_back(message, context.delay_level, reason)):
                message.reconsume_times += 1
                yield from spawn(self._again(held, message), f"redeliver {message.msg_id}")
                continue
            done.append(message)
        self._advance(held, done)

    def _advance(self, held: Held, done: list[StoredMessage]) -> None:
        offset = held.window.remove(done)
        if offset >= 0 and not held.window.dropped:
            self.offsets.update(held.queue, offset)

    def _again(self, held: Held, message: StoredMessage) -> Op[None]:
        yield from sleep(REDELIVER_MS)
        if not held.window.dropped and message.queue_offset in held.window:
            yield from self._submit(held, [message])

    # ------------------------------------------------------------ giving back

    def give_back(self, message: StoredMessage, delay_level: int, reason: str = "") -> Op[bool]:
        """Have a message delivered again later: by its broker, else by publishing it to the group's retry topic.

        Returns whether it is in safe hands. ``reason`` is kept with the message by brokers of Halfmoon, and by every broker that
        takes nothing back. Follows DefaultMQPushConsumerImpl.sendMessageBack (RocketMQ 4.9.8).
        """
        told = one_line(reason)
        times_max = 16 if self.settings.reconsume_max < 0 else self.settings.reconsume_max
        request = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.offset_msg_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=times_max,
            broker_name=message.broker_name or None,
            reason=told or None,
        )
        try:
            address = self.routes.master(message.broker_name) or message.store_host
            yield from ask(address, request, b"", SEND_BACK_TIMEOUT_MS)
            return True
        except (NetworkError, BrokerError) as exc:
            log.info("broker takes no message back: msg_id=%s reason=%s", message.msg_id, exc)
        try:
            yield from self._republish(message, times_max, delay_level, told)
            return True
        except HalfmoonError as exc:
            log.warning("message could not be given back: msg_id=%s reason=%s", message.msg_id, exc)
            return False

    def _republish(self, message: StoredMessage, times_max: int, delay_level: int, reason: str) -> Op[None]:
        """Differs: ORIGIN_MESSAGE_ID is always that of the original; the original client loses it on the way, and the level too."""
        times = max(message.reconsume_times + 1, times_max if delay_level < 0 else 0)
        leave_out = (
            "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY",
            "REAL_TOPIC", "REAL_QID",
        )  # fmt: skip
        found = {name: value for name, value in message.properties.items() if name not in leave_out}
        found.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
        found.setdefault("RETRY_TOPIC", self.wire_queue(MessageQueue(message.topic, "", 0)).topic)
        if delay_level >= 0:
            found["DELAY"] = str(delay_level or 3 + message.reconsume_times)
        if reason:
            found[RECONSUME_REASON] = reason
        begin = yield from steady()
        outgoing = Outgoing(
            retry_topic(self.group),
            message.body,
            properties_text(found),
            message.msg_id,
            message.flag,
            reconsume_times=times,
            reconsume_max=times_max,
        )
        yield from self._sender.deliver(outgoing, begin, SEND_BACK_TIMEOUT_MS)

    def _keep_looking(self) -> Op[None]:
        """Give back messages that the listener holds for too long; what it says of them later is ignored."""
        late = f"the listener held it for more than {self.settings.consume_timeout_ms} ms"
        while True:
            yield from sleep(self.settings.consume_timeout_ms)
            at = yield from steady()
            for held in list(self.held.values()):
                for _ in range(16):
                    message = held.window.overdue(at, self.settings.consume_timeout_ms)
                    if message is None or not self.clustering or held.window.dropped:
                        break
                    if not (yield from self.give_back(message, OVERDUE_DELAY_LEVEL, late)):
                        break
                    log.warning("message given back, the listener held it too long: msg_id=%s", message.msg_id)
                    self._advance(held, [message])

    def running_info(self) -> ConsumerRunningInfo:
        """Return how this consumer is, for operators."""
        extra = {"PROP_THREADPOOL_CORE_SIZE": str(self.settings.threads), "PROP_CONSUMEORDERLY": "false"}
        extra["SKIPPED_RECORDS"] = str(self.skipped_count)
        return running_info(self, extra)
