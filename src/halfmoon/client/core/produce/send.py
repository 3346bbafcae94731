"""Sending: a message made ready, and the attempts until a broker stored it within one budget of time. Knows no transactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict, TypeGuard, TypeVar, Unpack

from halfmoon.client.core.ask import tell
from halfmoon.client.core.names import check_batch, check_message, check_sendable, check_topic, unwrap, whole, wrap
from halfmoon.client.core.produce.attempts import (
    SILENCE,
    Attempts,
    FirstAttempt,
    UnansweredSends,
    attempt_ms,
    may_get_master,
    raise_lost,
    until_other,
    until_present,
)  # fmt: skip
from halfmoon.client.core.produce.faults import FaultTable, choose_queue
from halfmoon.client.core.produce.outgoing import Outgoing, SendObserver, compressed, properties_bytes, properties_text, send_header
from halfmoon.client.core.produce.selector import Selector, check_choice, select_by_hash, selected
from halfmoon.client.core.produce.send_result import send_result
from halfmoon.client.core.route import PublishInfo, vip_address
from halfmoon.client.core.route_table import RouteTable
from halfmoon.client.settings import ProducerSettings
from halfmoon.effects import Call, Now, Op, SteadyTime, at_once, now, on_loop, steady
from halfmoon.errors import (
    AccessRefused,
    BrokerError,
    ConnectFailed,
    MessageIllegal,
    NetworkError,
    NotRunning,
    RequestTimeout,
    ServiceNotAvailable,
    TooManyRequests,
    UsageError,
)
from halfmoon.model import UNIQ_KEY, WAIT, Message, MessageQueue, SendResult, SendStatus
from halfmoon.wire.command import Command
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.record import BatchItem, encode_batch

T = TypeVar("T")

_NOW, _STEADY = Now(), SteadyTime()


class Chosen(TypedDict, total=False):
    """Options of a send: a queue, a selector or a key, and the budget of time."""

    queue: MessageQueue | None
    selector: Selector | None
    key: Any
    timeout_ms: int | None


class Sender:
    """The sending half of a producer: settings, routes, ids and what is known of slow brokers."""

    def __init__(self, settings: ProducerSettings, routes: RouteTable, ids: UniqueIds) -> None:
        self.settings = settings
        self.group = wrap(settings.group, settings.namespace)
        self.routes = routes
        self.ids = ids
        self.faults = FaultTable(enabled=settings.latency_avoidance)
        self.unanswered = UnansweredSends()
        self._observes = settings.latency_avoidance or settings.retry_not_stored  # every attempt, so that `deliver` must make it
        self.running = False
        self.anywhere = True
        """Whether any thread may run its operations: nothing is noted of attempts but what threads may share."""
        self.tracer: SendObserver | None = None
        """Is called for every attempt, where tracing is on."""

    # ------------------------------------------------------------ what users ask for

    def send(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """Send and return where the message went; brokers are tried in turn within one time budget.

        With an explicit queue, a selector or a key (then `select_by_hash`) there is one attempt. While no broker of the topic has a
        master, and other members of them are registered, the send waits for one that takes over, as long as its time allows.
        Raises UsageError, NoRoute, BrokerError, SendFailed, TooManyRequests.
        """
        budget = self.budget(chosen.get("timeout_ms"))
        begin, outgoing, target = yield from self._ready(message, chosen)
        if target is not None:
            return (yield from self.send_to(outgoing, target, begin, budget))
        return (yield from self.deliver(outgoing, begin, budget))

    def send_async(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """Send by the rules of asynchronous sends: only failures of the network are tried again, refusals are raised at once.

        Follows MQClientAPIImpl.onExceptionImpl (RocketMQ 4.9.8): with an explicit queue the same broker is tried again.
        Differs: another broker gets a queue of its own, where the original keeps the first one's queue number.
        """
        budget = self.budget(chosen.get("timeout_ms"))
        begin, outgoing, target = yield from self._ready(message, chosen)
        return (yield from self.deliver_async(outgoing, target, begin, budget))

    def first(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
        timeout_ms: int | None,
        begin: int,
        born_ms: int,
    ) -> FirstAttempt | None:
        """Return what `send` and `send_async` would do first, where that needs no waiting and nobody observes attempts.

        None: nothing was done, and they must be run. Else the caller sends it, and passes the reply to `send_result` or the error
        to `continue_send`. ``begin`` and ``born_ms`` are now (steady, and since the epoch). Raises UsageError, and what
        ``selector`` raises.
        """
        settings = self.settings
        if self.tracer is not None or self._observes:
            return None
        budget_ms = self.budget(timeout_ms)
        self.check(message)
        if len(message.body) >= settings.compress_over_bytes or budget_ms <= 0:
            return None
        topic = wrap(message.topic, settings.namespace)
        info = self.routes.ready(topic)
        if info is None:
            return None
        target = None
        if queue is not None or selector is not None or key is not None:
            target = at_once(self.target(message, queue, selector, key))
        outgoing = self.outgoing(message, topic, born_ms)
        chosen = target or self.unanswered.queue(outgoing, info) or choose_queue(info, None, self.faults, begin)
        address = self._known_address(chosen) or ""
        has_slave = self.routes.has_slave(chosen.broker_name)
        wait_ms = min(budget_ms, attempt_ms(outgoing, budget_ms)) if has_slave else budget_ms
        return FirstAttempt(outgoing, info, chosen, target, address, begin, budget_ms, wait_ms)

    def continue_send(self, first: FirstAttempt, error: Exception | None, *, asynchronous: bool) -> Op[SendResult]:
        """Go on after a first attempt that failed with an error, or (None) could not be made at once; as `send`."""
        if isinstance(error, ServiceNotAvailable):
            first.refused_by = first.queue.broker_name
            if (yield from self._moved(first.queue, first.address)) is not None:
                error = None  # it is made again, where the broker is now
        if isinstance(error, RequestTimeout):
            marked = first.outgoing.unanswered(first.address)
            if (yield from self._repeats(marked, first.queue, first.address, first.begin, first.budget_ms)):
                first.outgoing, error = marked, None
        if asynchronous:
            return (yield from self.deliver_async(first.outgoing, first.target, first.begin, first.budget_ms, first, error))
        if first.target is None:
            return (yield from self.deliver(first.outgoing, first.begin, first.budget_ms, first, error))
        if error is not None and not self._waits_after(error, first.target):
            raise error
        outgoing = first.outgoing.repeated() if first.refused_by else first.outgoing
        return (yield from self.send_to(outgoing, first.target, first.begin, first.budget_ms))

    def send_oneway(self, message: Message, **chosen: Unpack[Chosen]) -> Op[None]:
        """Send without waiting for a reply: one attempt, errors only when it cannot leave."""
        begin, outgoing, target = yield from self._ready(message, chosen)
        if target is None:
            info = yield from self.publish_info(outgoing.topic)
            target = choose_queue(info, None, self.faults, begin)
        address = yield from self._address(target)
        born_ms = yield from now()
        try:
            yield from tell(address, self.header(outgoing, target, born_ms), outgoing.body, self.settings.send_timeout_ms)
        except ConnectFailed:
            moved = yield from self._moved(target, address)
            if moved is None:
                raise
            yield from tell(moved, self.header(outgoing, target, born_ms), outgoing.body, self.settings.send_timeout_ms)

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Op[SendResult]:
        """Send messages of one topic as one request; they get consecutive offsets of one queue. Ids come joined by commas."""
        budget = self.budget(timeout_ms)
        begin = yield from steady()
        outgoing = self.prepare_batch(messages, (yield from now()))
        target = yield from self.target(messages[0], queue)
        if target is not None:
            return (yield from self.send_to(outgoing, target, begin, budget))
        return (yield from self.deliver(outgoing, begin, budget))

    def flush(self) -> Op[None]:
        """Wait until no message waits here to be sent."""
        yield from ()

    def queues(self, topic: str) -> Op[list[MessageQueue]]:
        """Return the queues that messages of a topic may go to, with the user's topic name."""
        self._check_running()
        check_topic(topic)
        queues = (yield from self.publish_info(wrap(topic, self.settings.namespace))).queues
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    def placed(self, operation: Op[T]) -> Op[T]:
        """Return an operation of this sender as any thread may run it."""
        return operation if self.anywhere else on_loop(operation)

    # ------------------------------------------------------------ made ready

    def _ready(self, message: Message, chosen: Chosen) -> Op[tuple[int, Outgoing, MessageQueue | None]]:
        """Return when it began (steady), the message as sent, and the queue that the user chose, None for any."""
        begin: int = yield _STEADY
        born_ms: int = yield _NOW
        self.check(message)
        target = yield from self.target(message, chosen.get("queue"), chosen.get("selector"), chosen.get("key"))
        outgoing = yield from self.prepare(message, born_ms)
        return begin, outgoing, target

    def prepare(self, message: Message, born_ms: int, extra: dict[str, str] | None = None, *, sys_flag: int = 0) -> Op[Outgoing]:
        """Return the message as sent; the caller's is not changed. ``extra`` are properties of the protocol."""
        outgoing = self.outgoing(message, wrap(message.topic, self.settings.namespace), born_ms, extra, sys_flag)
        if len(outgoing.body) >= self.settings.compress_over_bytes:
            outgoing.body, flags = yield from compressed(outgoing.body, self.settings)
            outgoing.sys_flag |= flags
        return outgoing

    def outgoing(
        self, message: Message, topic: str, born_ms: int, extra: dict[str, str] | None = None, sys_flag: int = 0
    ) -> Outgoing:
        """Return the message as sent without compression, to a topic by its name on the wire; see `prepare`."""
        properties = self._properties(message, born_ms)
        if extra:
            properties.update(extra)
        return Outgoing(
            topic, bytes(message.body), properties_bytes(properties).decode(), properties[UNIQ_KEY], message.flag, sys_flag
        )

    def prepare_batch(self, messages: Sequence[Message], born_ms: int) -> Outgoing:
        """Return several messages as one request. Raises UsageError. Follows MessageBatch.generateFromList (4.9.8)."""
        self._check_running()
        check_batch(messages, self.settings.body_bytes_max)
        first, items, ids = messages[0], [], []
        for message in messages:
            msg_id, item = self.item(message, born_ms)
            ids.append(msg_id)
            items.append(item)
        if len(set(ids)) < len(ids):
            raise UsageError("two messages of one batch have the same msg_id")
        outgoing = self.batch(first.topic, ids, items, wait_store=first.wait_store)
        if len(outgoing.body) > self.settings.body_bytes_max:
            raise MessageIllegal(f"the message body size over max value, MAX: {self.settings.body_bytes_max}")
        return outgoing

    def item(self, message: Message, born_ms: int) -> tuple[str, BatchItem]:
        """Return a message's id, and the message as a batch carries it. Raises MessageIllegal."""
        properties = self._properties(message, born_ms)
        return properties[UNIQ_KEY], BatchItem(bytes(message.body), properties_bytes(properties), message.flag)

    def batch(self, topic: str, ids: list[str], items: list[BatchItem], *, wait_store: bool) -> Outgoing:
        """Return messages of the user's topic as one request."""
        properties = properties_text({WAIT: "true" if wait_store else "false"})
        return Outgoing(wrap(topic, self.settings.namespace), encode_batch(items), properties, ",".join(ids), batch=True)

    def _properties(self, message: Message, born_ms: int) -> dict[str, str]:
        properties = message.wire_properties()
        if UNIQ_KEY not in properties:
            properties[UNIQ_KEY] = self.ids.next(born_ms)
        if self.settings.namespace:
            properties["INSTANCE_ID"] = self.settings.namespace
        return properties

    # ------------------------------------------------------------ attempts

    def deliver(
        self, outgoing: Outgoing, begin: int, budget_ms: int, first: FirstAttempt | None = None, error: Exception | None = None
    ) -> Op[SendResult]:
        """Try brokers in turn until one stored the message; ``begin`` is when that began (steady).

        ``first`` is the first attempt, where that is known, and ``error`` how it failed, where it was made.
        Follows DefaultMQProducerImpl.sendDefaultImpl (RocketMQ 4.9.8).

        Raises NoRoute, BrokerError (a code not worth another try), SendFailed, TooManyRequests (the budget is spent).
        """
        info = self.routes.ready(outgoing.topic) or (first.info if first else None)
        info = info or (yield from self.publish_info(outgoing.topic, budget_ms))
        at: int = yield _STEADY
        if error is None and at - begin >= budget_ms:
            raise Attempts().failure(outgoing.topic, info, at - begin)
        queue = first.queue if first else self.unanswered.queue(outgoing, info) or choose_queue(info, None, self.faults, at)
        result: SendResult | None = None
        if error is None:
            try:
                result = yield from self.attempt(outgoing, queue, begin, budget_ms)
                if result.status is SendStatus.SEND_OK or not self.settings.retry_not_stored:
                    return result
            except (NetworkError, BrokerError) as exc:
                error = exc
        tried = Attempts(queue.broker_name if isinstance(error, ServiceNotAvailable) else first.refused_by if first else "")
        return (yield from self._deliver_on(outgoing, begin, budget_ms, info, queue, tried, result, error))

    def _deliver_on(
        self, outgoing: Outgoing, begin: int, budget_ms: int, info: PublishInfo, queue: MessageQueue, tried: Attempts,
        stored: SendResult | None, error: Exception | None,
    ) -> Op[SendResult]:  # fmt: skip
        """Go on after a first attempt at a queue: it failed with an error, or stored the message without a promise being kept."""
        result = stored
        while True:
            tried.brokers.append(queue.broker_name)
            try:
                stored = stored or (yield from self._try(outgoing, queue, begin, budget_ms, tried, info, error))
            except (NetworkError, BrokerError):
                if result is None:
                    raise
                break
            if self._is_kept(stored):
                return stored
            error, stored, result = None, None, stored or result
            at: int = yield _STEADY
            if tried.are_refused(info) or len(tried.brokers) > self.settings.retries_max or at - begin >= budget_ms:
                break
            info = self.routes.ready(outgoing.topic) or info
            queue = choose_queue(info, queue.broker_name, self.faults, at)
        if result is not None:
            return result
        raise tried.failure(outgoing.topic, info, at - begin) from tried.cause

    def _is_kept(self, stored: SendResult | None) -> TypeGuard[SendResult]:
        """Return whether a message was stored as well as is asked for."""
        return stored is not None and (stored.status is SendStatus.SEND_OK or not self.settings.retry_not_stored)

    def _try(
        self, outgoing: Outgoing, queue: MessageQueue, begin: int, budget_ms: int, tried: Attempts, info: PublishInfo,
        error: Exception | None,
    ) -> Op[SendResult | None]:  # fmt: skip
        """Make an attempt that did not fail with ``error`` already; return None, or raise, as another one may help or not."""
        is_last = tried.are_last(queue.broker_name, info)
        attempt = self.send_to if is_last else self.attempt
        try:
            if error is not None and not (is_last and self._waits_after(error, queue)):
                raise error
            marked = outgoing.repeated() if tried.may_be_at(queue.broker_name) else outgoing
            return (yield from attempt(marked, queue, begin, budget_ms))
        except (NetworkError, BrokerError) as exc:
            tried.failed(exc)
            if not self._may_retry(outgoing, queue, exc):
                raise
            return None

    def _next_queue(self, outgoing: Outgoing, info: PublishInfo, tried: Attempts, at: int) -> MessageQueue:
        """Return the queue for the next attempt. The first goes to the broker that may have the message from an earlier send."""
        brokers = tried.brokers
        queue = None if brokers else self.unanswered.queue(outgoing, info)
        return queue or choose_queue(info, brokers[-1] if brokers else None, self.faults, at)

    def _may_retry(self, outgoing: Outgoing, queue: MessageQueue, error: Exception) -> bool:
        """Note a failed attempt; return whether another broker may store the message."""
        if isinstance(error, NetworkError):
            self.unanswered.note(outgoing, queue, error)
            return True
        refused = isinstance(error, AccessRefused)  # it has the code of other failures, and a second try is a second guess
        return isinstance(error, BrokerError) and not refused and error.code in self.settings.retry_codes

    def deliver_async(
        self, outgoing: Outgoing, target: MessageQueue | None, begin: int, budget_ms: int, first: FirstAttempt | None = None,
        error: Exception | None = None,
    ) -> Op[SendResult]:  # fmt: skip
        """Try as `send_async` says; the arguments are those of `deliver`, and the queue that the user chose."""
        tried = Attempts(first.refused_by if first else "")
        for left in range(self.settings.retries_async_max, -1, -1):
            queue = target or (first.queue if first else None)
            if queue is None:
                at = yield from steady()
                info = yield from self.publish_info(outgoing.topic, max(0, begin + budget_ms - at))
                queue = self._next_queue(outgoing, info, tried, at)
            tried.brokers.append(queue.broker_name)
            first = None
            is_last = target is not None or tried.are_last(queue.broker_name, self.routes.ready(outgoing.topic))
            try:
                if error is not None and not (is_last and self._waits_after(error, queue)):
                    raise error
                attempt = self.send_to if is_last else self.attempt
                marked = outgoing.repeated() if tried.may_be_at(queue.broker_name) else outgoing
                return (yield from attempt(marked, queue, begin, budget_ms))
            except NetworkError as exc:
                self.unanswered.note(outgoing, queue, exc)
                tried.failed(exc)
                if not left or not exc.retry or (yield from steady()) - begin >= budget_ms:
                    raise
            error = None
        raise AssertionError("unreachable")

    def send_to(self, outgoing: Outgoing, queue: MessageQueue, begin: int, budget_ms: int) -> Op[SendResult]:
        """Send to a queue by one `attempt`, which is repeated while its broker has no master, but a member that may take over."""
        message = outgoing

        def attempt() -> Op[SendResult]:
            nonlocal message
            try:
                return (yield from self.attempt(message, queue, begin, budget_ms))
            except ServiceNotAvailable:
                message = outgoing.repeated()
                raise

        return until_present(attempt, lambda exc: self.running and self._waits_after(exc, queue), begin + budget_ms)

    def _waits_after(self, error: Exception, queue: MessageQueue) -> bool:
        """Return whether an attempt that failed is no more than the beginning of the wait of `send_to`."""
        return may_get_master(error, has_member=self.routes.has_slave(queue.broker_name))

    def attempt(self, outgoing: Outgoing, queue: MessageQueue, begin: int, budget_ms: int) -> Op[SendResult]:
        """Send once, with what is left of the budget, and note how long it took or that it failed.

        Where nobody connects, or who answers takes no writes (a slave that was left behind), a broker that moved gets it elsewhere.
        Where a broker with several members is silent, it gets it again, marked, while there is time.
        """
        while True:
            born_ms, address, start = 0, self._known_address(queue) or "", begin
            try:
                address = address or (yield from self._address(queue))
                start = yield _STEADY
                if (left := begin + budget_ms - start) <= 0:
                    raise TooManyRequests("the time for the send was over before it left", address)
                born_ms = yield _NOW
                if self.routes.has_slave(queue.broker_name):
                    left = min(left, attempt_ms(outgoing, budget_ms))
                header = send_header(outgoing, queue, self.group, self.settings, born_ms)
                reply: Command = yield Call(address, header, outgoing.body, left)
                result = send_result(reply, outgoing, queue, address, self.settings.namespace)
            except (NetworkError, BrokerError) as exc:
                if born_ms:
                    yield from self._note(outgoing, queue, address, born_ms, start, None)
                if isinstance(exc, RequestTimeout):
                    outgoing = outgoing.unanswered(address)
                if outgoing.silent and isinstance(exc, SILENCE):
                    again = yield from self._repeats(outgoing, queue, address, begin, budget_ms)
                else:
                    again = isinstance(exc, ConnectFailed | ServiceNotAvailable) and bool((yield from self._moved(queue, address)))
                if not again:
                    raise_lost(outgoing.silent, exc)
                outgoing = outgoing.repeated() if isinstance(exc, ServiceNotAvailable) else outgoing
                continue
            if self.faults.enabled or self.tracer is not None:
                yield from self._note(outgoing, queue, address, born_ms, start, result)
            return result

    def _repeats(self, outgoing: Outgoing, queue: MessageQueue, silent: str, begin: int, budget_ms: int) -> Op[bool]:
        """Wait as `until_other`, after an attempt without an answer; return whether to repeat it."""
        topic, known = wrap(queue.topic, self.settings.namespace), partial(self._known_address, queue)
        budget_ms = budget_ms if outgoing.is_stored_once and self.running else 0
        return (yield from until_other(self.routes, topic, queue.broker_name, known, silent, begin, budget_ms)) and self.running

    def _note(
        self, outgoing: Outgoing, queue: MessageQueue, address: str, born_ms: int, start: int, result: SendResult | None
    ) -> Op[None]:
        over = yield from steady()
        if self.faults.enabled:
            self.faults.record(queue.broker_name, over - start, over, failed=result is None)
        if self.tracer is not None:
            self.tracer.sent(outgoing, queue, address, born_ms, born_ms + over - start, result)

    def header(self, outgoing: Outgoing, queue: MessageQueue, at: int) -> SendMessageV2:
        return send_header(outgoing, queue, self.group, self.settings, at)

    def broker_address(self, topic: str, broker_name: str) -> Op[str]:
        """Return where a broker that holds a topic is asked. Raises NetworkError, NoRoute."""
        self._check_running()
        yield from self.publish_info(wrap(topic, self.settings.namespace))
        return (yield from self._address(MessageQueue(wrap(topic, self.settings.namespace), broker_name, 0)))

    def _known_address(self, queue: MessageQueue) -> str | None:
        address = self.routes.master(queue.broker_name)
        return vip_address(address) if address and self.settings.vip_channel else address

    def _address(self, queue: MessageQueue) -> Op[str]:
        if self.routes.master(queue.broker_name) is None:
            yield from on_loop(self.routes.master_or_ask(queue))
        if (address := self._known_address(queue)) is not None:
            return address
        if self.routes.has_slave(queue.broker_name):
            raise ConnectFailed(f"broker {queue.broker_name} has no master now", queue.broker_name)
        raise NetworkError(f"The broker[{queue.broker_name}] not exist")

    def _moved(self, queue: MessageQueue, address: str) -> Op[str | None]:
        """Return where a broker is now that took no connection at an address; None: nothing else is known."""
        if self._known_address(queue) == address:
            yield from on_loop(self.routes.look_for(wrap(queue.topic, self.settings.namespace), queue.broker_name))
        return known if (known := self._known_address(queue)) != address else None

    def publish_info(self, topic: str, within_ms: int | None = None) -> Op[PublishInfo]:
        """Return how messages of a topic are sent; see `until_present` for how long a master is waited for (None: as a send does).

        An answer that is asked for is shared, which is for the loop only.
        """
        if (info := self.routes.ready(topic)) is not None:
            return info
        settings = self.settings
        end = (yield from steady()) + (settings.send_timeout_ms if within_ms is None else within_ms)
        count = settings.default_topic_queue_count
        asked = partial(self.routes.publish_info, topic, settings.create_topic_key, count)
        return (yield from until_present(lambda: on_loop(asked()), lambda exc: self.running, end))

    def target(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None = None, key: Any = None
    ) -> Op[MessageQueue | None]:
        """Return the queue that the user chose, or has chosen by a selector or a key; None for any."""
        if queue is None and selector is None and key is None:
            return None
        check_choice(queue, selector)
        if queue is None:
            chosen = selected((selector or select_by_hash)((yield from self.queues(message.topic)), message, key))
        elif unwrap(queue.topic, self.settings.namespace) != unwrap(message.topic, self.settings.namespace):
            raise UsageError("message topic not equal with message queue topic")
        else:
            chosen = queue
        topic = wrap(message.topic, self.settings.namespace)
        if self.routes.master(chosen.broker_name) is None:
            yield from self.publish_info(topic)
        return MessageQueue(topic, chosen.broker_name, chosen.queue_id)

    def budget(self, timeout_ms: int | None) -> int:
        """Return how long a send may take, ms."""
        return self.settings.send_timeout_ms if timeout_ms is None else whole("timeout_ms", timeout_ms)

    def _check_running(self) -> None:
        if not self.running:
            raise NotRunning("The producer service state not OK: start it first, and send before it is closed")

    def check(self, message: Message) -> None:
        """Raise NotRunning, MessageIllegal or UsageError unless the message may be sent now."""
        if not self.running:
            self._check_running()
        check_message(message, self.settings.body_bytes_max)
        if self.settings.namespace:
            check_sendable(wrap(message.topic, self.settings.namespace))
