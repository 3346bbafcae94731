"""The push consumer: pulls its queues, hands messages to a listener, and sends failed ones back to the broker.

Follows DefaultMQPushConsumerImpl and ConsumeMessageConcurrentlyService (RocketMQ 4.9.8). Ordered consumption is not here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from halfmoon.allocation import Strategy
from halfmoon.client.core.ask import ask
from halfmoon.client.core.consume.direct import consume_directly
from halfmoon.client.core.consume.listener import ConsumeContext, Listener, ListenerResult, listener_of
from halfmoon.client.core.consume.member import HeldQueue
from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.pull_loop import PullLoop
from halfmoon.client.core.consume.running_info import running_info
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import DLQ_PREFIX, INNER_PRODUCER, retry_topic, unwrap, wrap
from halfmoon.client.core.produce.outgoing import Outgoing, properties_text
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.tracing import Tracer
from halfmoon.client.settings import ProducerSettings, PushSettings
from halfmoon.effects import Now, Op, Run, Signal, SteadyTime, aside, now, run, sleep, spawn, steady, wait
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.limits import DELAY_LEVELS
from halfmoon.logs import log_failure
from halfmoon.model import RECONSUME_REASON, ConsumeStatus, MessageQueue, PullStatus, StoredMessage, Subscription, one_line
from halfmoon.shown.names import queue_name
from halfmoon.wire.bodies import ConsumeDirectlyResult, ConsumerRunningInfo
from halfmoon.wire.bodies.traces import ConsumeCode
from halfmoon.wire.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from halfmoon.wire.ids import UniqueIds

REDELIVER_MS = 5_000
"""After this a message that could not be given back is handed to the listener again."""
SEND_BACK_TIMEOUT_MS = 5_000
FIRST_DELAY_LEVEL, DELAYS = 3, DELAY_LEVELS.split()
"""Delay level of the first redelivery, then one more with each, and what the levels mean unless the broker says otherwise."""
OVERDUE_DELAY_LEVEL = 3
"""Delay level of messages that the listener held too long."""
RUN_CALLS, RUN_MS = 256, 20
"""Calls of the listener in one run, at most, and how long a run goes on taking new ones."""
WATCH_MS = 20
"""How often runs are checked: the longest time that a hanging call delays the results and the calls of others."""
QUICK_CALLS = 16
"""Calls count as slow when more than one in 16 saw the next millisecond: then they take 60 us or more, a few thread switches."""

_NOW, _STEADY = Now(), SteadyTime()
T = TypeVar("T")

log = logging.getLogger("halfmoon.client")


class PushConsumerCore(PullLoop):
    """A push consumer without its event loop.

    Calls of the listener are made by workers, up to ``threads`` of them, each a run of calls at a time where waiting is allowed
    (`RunAside`). Workers take calls from ``_todo`` and put what was consumed into ``_over``, in single steps, for other threads do
    the same; all else happens between runs, where the rest of the client lives.
    """

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
        self.listener: Listener | None = None
        self.paused = False
        self._closing = False
        self.consumed_count = self.failed_count = 0
        self.tracer = Tracer(settings, instance, ids) if settings.trace else None
        self._retry_topic = retry_topic(self.group)
        self._todo: deque[tuple[HeldQueue, list[StoredMessage]]] = deque()  # a call each
        self._over: deque[tuple[HeldQueue, list[StoredMessage], int]] = deque()  # calls that consumed all of theirs; ms
        self._slow = True  # calls are, as far as is known
        self._busy = 0
        self._quiet = Signal()
        self._watched = False
        inner = ProducerSettings(group=INNER_PRODUCER, nameserver=settings.nameserver, vip_channel=settings.vip_channel)
        self._sender = Sender(inner, instance.routes, ids)

    def on_message(self, listener: Callable[..., Any]) -> None:
        """Set the listener: ``listener(messages)`` or ``listener(messages, context)``, a function or a coroutine function.

        A second parameter with a default value is the listener's own and is not given the context.
        """
        self.listener = listener_of(listener)

    # ------------------------------------------------------------ life

    def start(self) -> Op[None]:
        """Subscribe to the group's retry topic and register. Raises UsageError without a listener or subscription."""
        if self.listener is None:
            raise UsageError("the listener is missing: set one with on_message(function) before the start")
        if not self.subscriptions:
            raise UsageError("nothing is subscribed: call subscribe(topic) before the start")
        if self.clustering:
            topic = retry_topic(self.group)
            self.subscriptions.setdefault(topic, Subscription(topic))
            self.routes.register(topic)
        self._sender.running = True
        yield from super().start()
        if self.tracer is not None:
            yield from spawn(self.tracer.keep_sending(), "traces")

    def background_work(self) -> list[Op[None]]:
        """Return the operations that run in the background until they are cancelled."""
        return [*super().background_work(), self._keep_looking()]

    def _crowded(self, held: HeldQueue) -> bool:
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
        self._closing = True
        for held in self.held.values():
            if held.handle is not None:
                held.handle.cancel()
        self._todo.clear()
        if self._busy and self.settings.close_wait_ms:
            self._quiet = Signal()  # the old one remembers that all was quiet some time ago
            yield from wait(self._quiet, self.settings.close_wait_ms)
        self._settle()
        self._sender.running = False
        if self.tracer is not None:
            yield from self.tracer.flush()
        yield from super().stop()

    # ------------------------------------------------------------ pulling

    def _wanted(self, queue: MessageQueue) -> Subscription | None:
        return None if self.paused or self._closing else self.subscriptions.get(queue.topic)

    def _pull_once(self, held: HeldQueue, wanted: Subscription) -> Op[None]:
        settings, window = self.settings, held.window
        commit = max(self.offsets.memory(held.queue), 0) if self.clustering else 0
        flags = PULL_SUSPEND | (PULL_COMMIT_OFFSET if commit else 0) | (PULL_SUBSCRIPTION if settings.post_subscription else 0)
        result = yield from self._pull(held, wanted, flags, send_expression=settings.post_subscription, commit_offset=commit)
        if result is None:
            return
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("offset illegal: queue=%s asked=%s next=%s", queue_name(held.queue), held.next_offset, result.next_offset)
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

    def _submit(self, held: HeldQueue, messages: list[StoredMessage]) -> Op[None]:
        size = self.settings.consume_batch_max
        self._todo.extend((held, messages[i : i + size]) for i in range(0, len(messages), size))
        yield from self._staff()

    def _staff(self, *, stuck: bool = False) -> Op[None]:
        """Start enough workers for the calls that wait.

        One where calls are quick, which has made them all before a second one is awake; one for each call where they are slow, or
        where nobody has taken the next for a while (``stuck``).
        """
        wanted = len(self._todo)
        if not self._slow and not stuck:
            wanted = 0 if self._busy else min(wanted, 1)
        for _ in range(min(wanted, self.settings.threads - self._busy)):
            yield from self._hire()

    def _hire(self) -> Op[None]:
        self._busy += 1
        yield from spawn(self._work(), f"consume {self.group}")
        if not self._watched:
            self._watched = True
            yield from spawn(self._watch(), f"watch {self.group}")

    def _work(self) -> Op[None]:
        """Make calls until none waits, a run of them for each change of threads."""
        try:
            while self._todo and self.running:
                failed = yield from self._run_of_calls(self._calls)
                if failed is not None:
                    yield from self._finish(*failed)
                yield from self._staff()
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.fire()

    def _run_of_calls(self, calls: Callable[[Listener], Op[T]]) -> Op[T]:
        listener = self.listener
        assert listener is not None
        try:
            return (yield from aside(calls(listener), listener.function))
        finally:
            self._settle()

    def _watch(self) -> Op[None]:
        """While calls are made: note what is over, though a later one of the run hangs, and have others take what waits behind."""
        while self._busy:
            first = self._todo[0] if self._todo else None
            yield from sleep(WATCH_MS)
            self._settle()
            if first is not None and self._todo and self._todo[0] is first:
                yield from self._staff(stuck=True)
        self._watched = False

    def _calls(self, listener: Listener) -> Op[tuple[HeldQueue, list[StoredMessage], ListenerResult] | None]:
        """Call the listener with what waits, one call after the other. Ends with a call that failed, and returns it."""
        count = late = 0
        begin: int = yield _STEADY
        ahead, at = (yield _NOW) - begin, begin
        while count < RUN_CALLS and self.listener is listener:
            # Not looked at before it is taken: other workers take from it too, in threads of their own.
            try:
                held, messages = self._todo.popleft()
            except IndexError:
                break
            if held.window.dropped:
                continue  # whoever has the queue now gets them again
            result = yield from self._call(held, messages, listener, at, ahead)
            at, count, late = result.over, count + 1, late + (result.over > result.start)
            if result.good < len(messages):
                return held, messages, result
            self._over.append((held, messages, result.over - result.start))
            if at - begin >= RUN_MS:
                break
        if count:
            self._slow = late * QUICK_CALLS > count
        return None

    def _call(
        self, held: HeldQueue, messages: list[StoredMessage], listener: Listener, start: int, ahead: int
    ) -> Op[ListenerResult]:
        """Hand messages to the listener once; return what came of it. Nothing that it raises goes further.

        ``start`` is now (steady): the end of the call before, or the begin of the run; so much is the date ``ahead`` of it.
        """
        begin = start + ahead
        held.window.started(messages, begin, start)
        for message in messages:
            self._show(message, held.queue.topic, begin)
        traced = self.tracer.handed(messages, begin) if self.tracer is not None else ""
        context = ConsumeContext(self.user_queue(held.queue) if listener.takes_context else held.queue)
        result = ListenerResult(start, context)
        try:
            status = self._meant((yield Run(listener.function, listener.given(messages, context))), context)
        except Exception as exc:
            result.raised = f"{type(exc).__name__}: {exc}"
            self._report(held, messages, context, exc)
            status = ConsumeStatus.RECONSUME_LATER
        result.over = yield _STEADY
        result.status = status
        if status is not ConsumeStatus.RECONSUME_LATER and status is not ConsumeStatus.ROLLBACK:
            last = context.ack_index
            result.good = len(messages) if last is None else max(0, min(len(messages), last + 1))
        if self.tracer is not None:
            code = ConsumeCode.EXCEPTION if result.raised else ConsumeCode.SUCCESS if result.good else ConsumeCode.FAILED
            took_ms = result.over - start
            late = took_ms >= self.settings.consume_timeout_ms
            self.tracer.returned(traced, messages, begin, begin + took_ms, ConsumeCode.TIME_OUT if late else code)
        return result

    def _report(
        self, held: HeldQueue, messages: list[StoredMessage], context: ConsumeContext, error: Exception, level: int = logging.ERROR
    ) -> None:
        """Log what the listener raised, and what becomes of its messages."""
        first, more = messages[0], len(messages) - 1
        tries, redeliveries = first.reconsume_times + 1, self._redeliveries()
        facts = {
            "group": self.group, "topic": first.topic, "queue": queue_name(held.queue, wrap(first.topic, self.settings.namespace)),
            "offset": first.queue_offset, "message": f"{first.msg_id} and {more} more" if more else first.msg_id, "tag": first.tag,
            "try": tries if redeliveries < 0 else f"{tries} of {redeliveries + 1}",
        }  # fmt: skip
        log_failure(log, "listener failed", error, facts, self._next_try(first, context), level=level)

    def _named(self, message: StoredMessage) -> str:
        queue = queue_name(message.queue, message.topic)
        return f"group={self.group} topic={message.topic} queue={queue} offset={message.queue_offset} message={message.msg_id}"

    def _redeliveries(self) -> int:
        """Return how often a message is handed over again, -1: for ever."""
        return self.settings.redeliveries if self.clustering else 0

    def _next_try(self, message: StoredMessage, context: ConsumeContext) -> str:
        """Return what becomes of a message on which the listener raised."""
        if not self.clustering:
            return "not delivered again (broadcasting)"
        wanted = context.delay_level if isinstance(context.delay_level, int) else 0
        if wanted < 0 or message.reconsume_times >= self._redeliveries():
            return "it goes to the dead letters of the group"
        level = min(wanted or FIRST_DELAY_LEVEL + message.reconsume_times, len(DELAYS))
        return f"delivered again in {DELAYS[level - 1]} (delay level {level})"

    def _settle(self) -> None:
        """Note what calls have consumed since the last time: one step of progress for each queue."""
        by_queue: dict[HeldQueue, tuple[list[StoredMessage], list[int]]] = {}
        while self._over:
            held, messages, took_ms = self._over.popleft()
            calls = by_queue.get(held)
            if calls is None:
                calls = by_queue[held] = ([], [])
            calls[0].extend(messages)
            calls[1].append(took_ms)
        for held, (done, times) in by_queue.items():
            self.rates_of(held.queue.topic).called(sum(times), len(done), 0, calls=len(times))
            if not held.window.dropped:
                self.consumed_count += len(done)
                self._consumed(held, done)
        if self.tracer is not None:
            self.tracer.look()

    def _let_go(self, held: HeldQueue) -> None:
        self._settle()  # what is consumed counts
        super()._let_go(held)

    def _consumed(self, held: HeldQueue, done: list[StoredMessage]) -> None:
        """Advance behind messages that the listener has consumed."""
        self._advance(held, done)

    def _meant(self, status: Any, context: ConsumeContext) -> ConsumeStatus:
        """Return what a listener said; nothing is success. COMMIT and ROLLBACK are for orderly consumers.

        Raises UsageError for anything else, which counts as raised by the listener.
        """
        if status is None:
            return ConsumeStatus.CONSUME_SUCCESS
        if status is ConsumeStatus.CONSUME_SUCCESS or status is ConsumeStatus.RECONSUME_LATER:
            return status
        shown = status.name if isinstance(status, ConsumeStatus) else f"{status!r:.100}"
        raise UsageError(f"the listener returned {shown}: return nothing or CONSUME_SUCCESS when it is done, else RECONSUME_LATER")

    def consume_directly(self, record: bytes, broker_name: str) -> Op[ConsumeDirectlyResult | None]:
        """Hand one message to the listener because an operator asked for it (309)."""
        return (yield from consume_directly(record, broker_name, self._hand, group=self.group, orderly=self.settings.orderly))

    def _hand(self, message: StoredMessage) -> Op[tuple[Any, bool]]:
        listener = self.listener
        assert listener is not None
        context = ConsumeContext(self.user_queue(MessageQueue(message.topic, message.broker_name, message.queue_id)))
        dead = message.topic == DLQ_PREFIX + self.group  # it goes to its own group as a redelivery does
        self._show(message, self._retry_topic if dead else message.topic, (yield from now()))
        status = yield from run(listener.function, *listener.given([message], context))
        return status, context.auto_commit

    def _show(self, message: StoredMessage, topic: str, begin: int) -> None:
        """Show a message to the user as it was sent, with the time when it was handed over."""
        if topic == self._retry_topic and (origin := message.properties.get("RETRY_TOPIC")):
            message.topic = origin
        if self.settings.namespace:
            message.topic = unwrap(message.topic, self.settings.namespace)
        message.note({"CONSUME_START_TIME": str(begin)})

    def _finish(self, held: HeldQueue, messages: list[StoredMessage], result: ListenerResult) -> Op[None]:
        """Send what a call did not consume back to the broker, or hand it over again here."""
        done, failed = messages[: result.good], messages[result.good :]
        self.rates_of(held.queue.topic).called(result.over - result.start, len(done), len(failed))
        if held.window.dropped:
            return  # whoever has the queue now gets them again
        self.consumed_count += len(done)
        self.failed_count += len(failed)
        for message in failed:
            if not self.clustering:
                if not result.raised:  # else that was logged
                    log.warning("message dropped after a failure (broadcasting): %s", self._named(message))
            elif message.queue_offset not in held.window:
                continue  # given back already, because the listener held it too long
            elif not (yield from self.give_back(message, result.context.delay_level, result.reason)):
                message.reconsume_times += 1
                yield from spawn(self._again(held, message), f"redeliver {message.msg_id}")
                continue
            done.append(message)
        self._advance(held, done)

    def _advance(self, held: HeldQueue, done: list[StoredMessage]) -> None:
        offset = held.window.remove(done)
        if offset >= 0 and not held.window.dropped:
            self.offsets.update(held.queue, offset)

    def _again(self, held: HeldQueue, message: StoredMessage) -> Op[None]:
        yield from sleep(REDELIVER_MS)
        if not held.window.dropped and message.queue_offset in held.window:
            yield from self._submit(held, [message])

    # ------------------------------------------------------------ giving back

    def give_back(self, message: StoredMessage, delay_level: int, reason: str = "") -> Op[bool]:
        """Have a message redelivered later: by its broker, else by sending it to the group's retry topic.

        Returns whether it is in safe hands. ``reason`` is kept with the message by brokers of Halfmoon, and by every broker that
        takes nothing back. Follows DefaultMQPushConsumerImpl.sendMessageBack (RocketMQ 4.9.8).
        """
        line = one_line(reason)
        times_max = self.settings.redeliveries
        request = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.offset_msg_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=times_max,
            broker_name=message.broker_name or None,
            reason=line or None,
        )
        try:
            address = self.routes.master(message.broker_name) or message.store_host
            yield from ask(address, request, b"", SEND_BACK_TIMEOUT_MS)
            return True
        except (NetworkError, BrokerError) as exc:
            log.info("broker did not take the message back: %s reason=%s", self._named(message), exc)
        try:
            yield from self._republish(message, times_max, delay_level, line)
            return True
        except HalfmoonError as exc:
            log.warning("message not sent back: %s reason=%s", self._named(message), exc)
            return False

    def _republish(self, message: StoredMessage, times_max: int, delay_level: int, reason: str) -> Op[None]:
        """Differs: ORIGIN_MESSAGE_ID is always that of the original; the original client loses it on the way, and the level too."""
        times = max(message.reconsume_times + 1, times_max if delay_level < 0 else 0)
        leave_out = (
            "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY",
            "REAL_TOPIC", "REAL_QID",
        )  # fmt: skip
        properties = {name: value for name, value in message.properties.items() if name not in leave_out}
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
        properties.setdefault("RETRY_TOPIC", self.wire_queue(MessageQueue(message.topic, "", 0)).topic)
        if delay_level >= 0:
            properties["DELAY"] = str(delay_level or FIRST_DELAY_LEVEL + message.reconsume_times)
        if reason:
            properties[RECONSUME_REASON] = reason
        begin = yield from steady()
        outgoing = Outgoing(
            retry_topic(self.group),
            message.body,
            properties_text(properties),
            message.msg_id,
            message.flag,
            reconsume_times=times,
            reconsume_max=times_max,
        )
        yield from self._sender.deliver(outgoing, begin, SEND_BACK_TIMEOUT_MS)

    def _keep_looking(self) -> Op[None]:
        """Send back messages that the listener holds for too long; its later result is ignored."""
        late = f"the listener held it for more than {self.settings.consume_timeout_ms} ms"
        while True:
            yield from sleep(self.settings.consume_timeout_ms)
            at = yield from steady()
            for held in list(self.held.values()):
                # As many in a round as ProcessQueue.cleanExpiredMsg.
                for _ in range(16):
                    message = held.window.overdue(at, self.settings.consume_timeout_ms)
                    if message is None or not self.clustering or held.window.dropped:
                        break
                    if not (yield from self.give_back(message, OVERDUE_DELAY_LEVEL, late)):
                        break
                    log.warning("message sent back, the listener held it too long: %s", self._named(message))
                    self._advance(held, [message])

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's state, for operators."""
        extra = {"PROP_THREADPOOL_CORE_SIZE": str(self.settings.threads), "PROP_CONSUMEORDERLY": "false"}
        extra["SKIPPED_RECORDS"] = str(self.skipped_count)
        return running_info(self, extra)
