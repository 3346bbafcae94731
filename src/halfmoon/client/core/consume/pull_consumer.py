"""The pull consumer, like the lite pull consumer: queues are assigned or shared by the group, pulled ahead, and polled.

Follows DefaultLitePullConsumerImpl (RocketMQ 4.9.8), with request code 11, which every broker knows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from halfmoon.allocation import Strategy
from halfmoon.client.core.consume.listener import check_callable
from halfmoon.client.core.consume.member import HeldQueue, warn_of_constants
from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets, same_topic, stored_offset
from halfmoon.client.core.consume.pull import max_offset, min_offset, offset_at
from halfmoon.client.core.consume.pull_loop import FULL_PAUSE_MS, PullLoop
from halfmoon.client.core.consume.running_info import running_info
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import check_topic, unwrap, whole, wrap
from halfmoon.client.settings import PullSettings
from halfmoon.effects import Op, Signal, run, sleep, steady, wait
from halfmoon.errors import HalfmoonError, NotRunning, OffsetIllegal, UsageError
from halfmoon.logs import log_failure
from halfmoon.model import ConsumeType, MessageQueue, PullStatus, StoredMessage, Subscription, subscription
from halfmoon.shown.names import queue_name
from halfmoon.wire.bodies import ConsumeFromWhere, ConsumerData, ConsumerRunningInfo
from halfmoon.wire.codes import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND

AHEAD_MAX = 32
"""Messages of one pull, or as many as may be held in memory where that is less, or ``batch_max`` where that is more. Follows
maxTransferCountOnMessageInMemory: brokers send no more."""

log = logging.getLogger("halfmoon.client")


class WatchedTopic:
    """A topic whose queues are watched by a listener, and the queues last seen; None: none yet."""

    def __init__(self, listener: Callable[[str, list[MessageQueue]], Any], known: list[MessageQueue] | None) -> None:
        self.listener, self.known = listener, known


class HandedOut(NamedTuple):
    """Messages of one queue that one poll returns; an empty poll has no queue."""

    held: HeldQueue | None
    messages: list[StoredMessage]


class PullConsumerCore(PullLoop):
    """A pull consumer without its event loop. Methods take and return queues with the user's topic names."""

    consume_type = ConsumeType.CONSUME_ACTIVELY
    settings: PullSettings

    def __init__(
        self,
        settings: PullSettings,
        instance: Instance,
        offsets: RemoteOffsets | LocalOffsets,
        allocate: Strategy | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """``lock`` can be entered again by who has it; without one, `take` is for the thread of everything else."""
        super().__init__(settings, instance, offsets, allocate)
        self._lock = nullcontext() if lock is None else lock
        self.pull_max = max(settings.batch_max, min(AHEAD_MAX, settings.cached_max, settings.cached_total_max))
        self._taken = 0, 0, 0
        """Taken by `take` and not accounted for by `_settle`: the number of whole entries of `_ready`, of messages of the entry
        behind them, and of messages taken last."""
        self.paused: set[MessageQueue] = set()
        self._manual: dict[str, set[MessageQueue]] | None = None
        self._manual_wanted: dict[str, Subscription] = {}
        self._ready: deque[tuple[HeldQueue, deque[StoredMessage]]] = deque()
        self._unconfirmed: set[HeldQueue] = set()
        self._watched: dict[str, WatchedTopic] = {}
        self._unseen: set[str] = set()  # of those, whose queues could not be asked for last time
        self._cached = 0
        self._arrived = Signal()
        self._commit_at_ms = 0

    # ------------------------------------------------------------ which queues

    def subscribe(
        self, topic: str, expression: str | None = "*", expression_type: str = "TAG", *, sql: str | None = None, version: int = 0
    ) -> None:
        """Subscribe to a topic whose queues the group shares. Raises UsageError after `assign`."""
        if self._manual is not None:
            raise UsageError("Subscribe and assign are mutually exclusive.")
        super().subscribe(topic, expression, expression_type, sql=sql, version=version)

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, sql: str | None = None) -> Op[None]:
        """Consume exactly these queues, whatever the group does, filtered by tags or SQL92.

        Raises UsageError after `subscribe`. An SQL92 expression is checked at once when we run: NoRoute, NetworkError, BrokerError.
        """
        if self.subscriptions:
            raise UsageError("Subscribe and assign are mutually exclusive.")
        assigned: dict[str, set[MessageQueue]] = {}
        for queue in queues:
            wire_queue = self.wire_queue(queue)
            check_topic(queue.topic)
            assigned.setdefault(wire_queue.topic, set()).add(wire_queue)
        wanted = {topic: subscription(topic, expression, sql=sql) for topic in assigned}
        for each in wanted.values():
            warn_of_constants(each)
        for topic in sorted(assigned.keys() - (self._manual or {}).keys()):
            self.routes.register(topic)
        for topic in sorted((self._manual or {}).keys() - assigned.keys()):
            self.routes.unregister(topic)
        self._manual, self._manual_wanted = assigned, wanted
        if self.running and sql is not None:
            for topic in assigned:
                yield from self.routes.read_queues(topic)
            yield from self._check_filters()
        if self.running and not (yield from self.rebalance()):
            self.group_changed()  # the round is repeated until it comes out even

    def filters(self) -> list[Subscription]:
        """Return the subscription of each topic."""
        return [*super().filters(), *self._manual_wanted.values()]

    def topics(self) -> list[str]:
        """Return the topics whose queues may be assigned to us."""
        return list(self.subscriptions if self._manual is None else self._manual)

    def _share(self, topic: str) -> Op[list[MessageQueue]]:
        if self._manual is None:
            return (yield from super()._share(topic))
        yield from self.routes.read_queues(topic)
        return sorted(self._manual.get(topic, ()))

    def assignment(self) -> list[MessageQueue]:
        """Return the assigned queues."""
        return sorted(self.user_queue(queue) for queue in self.held)

    def queues(self, topic: str) -> Op[list[MessageQueue]]:
        """Return all queues of a topic that can be read."""
        self._check_running()
        queues = yield from self.routes.read_queues(wrap(topic, self.settings.namespace))
        return [self.user_queue(queue) for queue in queues]

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind the messages polled from an assigned queue, and behind those that its filter left out there.

        -1: its begin is not known yet.
        """
        self._check_running()
        self._settle()
        held = self._must_hold(self.wire_queue(queue))
        if held is None:
            return -1
        oldest = held.window.oldest()
        return held.next_offset if oldest is None else oldest.queue_offset

    def on_queues_changed(self, topic: str, listener: Callable[[str, list[MessageQueue]], Any]) -> Op[None]:
        """Call a listener with the queues of a topic whenever they change; a second listener replaces the first.

        Follows DefaultLitePullConsumerImpl.registerTopicMessageQueueChangeListener (RocketMQ 4.9.8).
        """
        check_topic(topic)
        check_callable("on_queues_changed", listener)
        name = wrap(topic, self.settings.namespace)
        known = (yield from self._queues_now(name)) if self.running else None
        if name in self._watched:
            log.warning("listener of queue changes replaced: group=%s topic=%s", self.group, topic)
        self._watched[name] = WatchedTopic(listener, known)

    def _queues_now(self, topic: str) -> Op[list[MessageQueue] | None]:
        try:
            yield from self.routes.refresh(topic)
            queues = sorted((yield from self.routes.read_queues(topic)))
        except HalfmoonError as exc:
            level = logging.INFO if topic in self._unseen else logging.WARNING  # said once, until it is seen again
            self._unseen.add(topic)
            log.log(level, "queues not known: group=%s topic=%s reason=%s", self.group, topic, exc)
            return None
        self._unseen.discard(topic)
        return queues

    def _keep_watching(self) -> Op[None]:
        while True:
            yield from sleep(self.settings.queues_check_ms)
            for topic, watched in list(self._watched.items()):
                queues = yield from self._queues_now(topic)
                if queues is None or queues == watched.known:
                    continue
                watched.known = queues
                try:
                    mine = [self.user_queue(queue) for queue in queues]
                    yield from run(watched.listener, unwrap(topic, self.settings.namespace), mine)
                except Exception as exc:
                    then = "it is called again when the queues change again"
                    log_failure(log, "listener of queue changes failed", exc, {"group": self.group, "topic": topic}, then)

    def background_work(self) -> list[Op[None]]:
        """Return what runs beside the work."""
        return [*super().background_work(), self._keep_watching()]

    # ------------------------------------------------------------ pulling ahead

    def _wanted(self, queue: MessageQueue) -> Subscription | None:
        if queue in self.paused:
            return None
        wanted = self.subscriptions.get(queue.topic) or self._manual_wanted.get(queue.topic) or Subscription(queue.topic)
        return Subscription(wanted.topic, wanted.expression, wanted.expression_type, wanted.tags, wanted.codes, 0)

    def _full(self, held: HeldQueue) -> bool:
        self._settle()
        return self._cached > self.settings.cached_total_max or super()._full(held)

    def _pull_once(self, held: HeldQueue, wanted: Subscription) -> Op[None]:
        result = yield from self._pull(held, wanted, PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_LITE, send_expression=True)
        if result is None:
            return
        if result.status is PullStatus.OFFSET_ILLEGAL and result.next_offset < held.next_offset:
            yield from self._queue_ends_before(held, result.next_offset)
            return
        self._settle()
        moved, held.next_offset = result.next_offset != held.next_offset, result.next_offset
        if result.messages and (added := held.window.add(result.messages)):
            self._cached += len(added)
            size = self.settings.batch_max
            self._ready.extend((held, deque(added[at : at + size])) for at in range(0, len(added), size))
            self._arrived.fire()
        elif not len(held.window) and held.handed >= 0 and result.status is not PullStatus.OFFSET_ILLEGAL:
            held.handed = max(held.handed, held.next_offset)
            if held not in self._unconfirmed:
                held.consumed = held.handed
        yield from self._breathe(held, moved)

    def _queue_ends_before(self, held: HeldQueue, offset: int) -> Op[None]:
        """Begin anew at the end of a queue whose broker has lost messages that were pulled, or at which an offset was wrong.

        Otherwise new messages would lie behind the committed offset, and the next start would skip them. Messages that were
        fetched are handed out first.
        """
        if len(held.window):
            yield from sleep(FULL_PAUSE_MS)
        else:
            log.warning(
                "queue ends before the pulled offset: group=%s queue=%s at=%s end=%s",
                self.group,
                queue_name(held.queue),
                held.next_offset,
                offset,
            )
            yield from self.restart(held.queue, offset, by_itself=True)

    # ------------------------------------------------------------ handing out

    def poll(self, timeout_ms: int | None = None, *, count_max: int | None = None) -> Op[list[StoredMessage]]:
        """Return the next messages that were pulled, or none after the time: of one pull, at most ``batch_max`` or ``count_max``.

        The call confirms the messages of the calls before: they are finished, and may be committed.

        Follows DefaultLitePullConsumerImpl.poll (RocketMQ 4.9.8).
        Differs: what is confirmed is committed at a close and with a queue that is given up, too, and not every five seconds only.
        """
        return (yield from self.hand_out(timeout_ms, count_max=count_max)).messages

    def hand_out(self, timeout_ms: int | None = None, *, count_max: int | None = None) -> Op[HandedOut]:
        """As `poll`, for callers that may not get what they are handed: they give it to `take_back`."""
        self._check_running()
        self._settle()
        self._confirm()
        if self._manual is None and not self.subscriptions:
            raise UsageError("nothing is subscribed: call subscribe(topic) or assign(queues) before poll()")
        at = yield from steady()
        over = at + (self.settings.poll_timeout_ms if timeout_ms is None else whole("timeout_ms", timeout_ms))
        if self.settings.auto_commit and at >= self._commit_at_ms:
            self._commit_at_ms = at + self.settings.auto_commit_ms
            self._note_consumed()
        while True:
            handed = self._next_ready(count_max)
            if handed.messages or at >= over:
                return handed
            yield from wait(self._arrived, over - at)
            self._check_running()
            at = yield from steady()

    def take_back(self, handed: HandedOut) -> None:
        """Take back messages that the application never got: the next poll returns them, if the queue is still ours."""
        held, messages = handed
        with self._lock:
            self._settle()
            if held is None or held.window.dropped:
                return
            returned = held.window.add(messages)
            self._cached += len(returned)
            self._ready.appendleft((held, deque(returned)))
        held.handed = messages[0].queue_offset
        held.consumed = min(held.consumed, held.handed)
        self._arrived.fire()

    def take(self, at: int, place: list[HandedOut | None], count_max: int | None = None) -> None:
        """Put messages that are ready into ``place``, as `hand_out` would return them; nothing there: `hand_out` must be called.

        ``at`` is now (steady).

        For any thread. An interrupt comes before anything is taken, or when it lies there.
        """
        with self._lock:
            before = number, begin, _ = self._taken
            if number >= len(self._ready) or (self.settings.auto_commit and at >= self._commit_at_ms):
                return
            held, messages = self._ready[number]
            if held.window.dropped or held.queue in self.paused or self.settings.namespace or not self.running:
                return
            end = min(len(messages), begin + (count_max or len(messages)))
            handed = HandedOut(held, [messages[i] for i in range(begin, end)])
            after = (number, end, end - begin) if end < len(messages) else (number + 1, 0, end - begin)
            if self._taken == before:  # else a handler of a signal has taken it
                place[0] = handed  # no call from here on: an interrupt could come between
                self._taken = after

    def _settle(self) -> None:
        """Account for what was taken since the last time, as if it had been handed out now, in that order."""
        if not self._taken[2]:
            return
        with self._lock:
            entries, messages_taken, last = self._taken
            for left in range(entries + (messages_taken > 0), 0, -1):
                held, messages = self._ready[0]
                given = [messages.popleft() for _ in range(messages_taken if left == 1 and messages_taken else len(messages))]
                if not messages:
                    self._ready.popleft()
                if left == 1 and last < len(given):  # those before the last ones were asked for earlier, so they are finished
                    self._confirm()
                    self._given(held, given[:-last])
                    given = given[-last:]
                self._confirm()
                self._given(held, given)
            self._taken = 0, 0, 0

    def _given(self, held: HeldQueue, messages: Collection[StoredMessage]) -> None:
        self._cached -= len(messages)
        if held.window.dropped:
            return
        held.handed = held.window.remove(messages)
        if not len(held.window):  # what was looked at behind these was left out by the filter
            held.handed = max(held.handed, held.next_offset)
        self._unconfirmed.add(held)

    def _next_ready(self, count_max: int | None) -> HandedOut:
        waiting: list[tuple[HeldQueue, deque[StoredMessage]]] = []
        given: list[StoredMessage] = []
        owner = None
        with self._lock:
            self._settle()
            while self._ready and not given:
                held, messages = self._ready.popleft()
                if held.window.dropped:
                    self._cached -= len(messages)
                elif held.queue in self.paused:
                    waiting.append((held, messages))
                else:
                    owner, given = held, [messages.popleft() for _ in range(min(len(messages), count_max or len(messages)))]
                    self._given(held, given)
                    if messages:
                        self._ready.appendleft((held, messages))
            self._ready.extendleft(reversed(waiting))
        if self.settings.namespace:
            for message in given:
                message.topic = unwrap(message.topic, self.settings.namespace)
        return HandedOut(owner, given)

    # ------------------------------------------------------------ progress

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> Op[None]:
        """Note what was handed out (or the given offsets) as consumed; with ``persist`` the broker is told at once.

        What was handed out of a queue that is not ours any more is not noted: its new owner is given it again.

        Differs: the original's commit without arguments tells the broker at the next 5 s tick.
        """
        self._check_running()
        self._settle()
        if offsets is None:
            self._confirm()
            self._note_consumed()
            queues = list(self.held)
        else:
            queues = [self.wire_queue(queue) for queue in offsets]
            named = [self._must_hold(queue) for queue in queues]  # all of them, before the first is noted
            for queue, held, offset in zip(queues, named, offsets.values()):
                self.offsets.update(queue, offset, only_forward=False)
                if held is not None:
                    held.consumed = offset  # or auto commit would go back to what was confirmed before
        if persist:
            for queue in queues:
                yield from self.offsets.persist_one(queue)

    def _confirm(self) -> None:
        """Count messages that were handed out as finished, except in queues that were taken away or sought in since."""
        for held in self._unconfirmed:
            held.consumed = held.handed
        self._unconfirmed.clear()

    def _note_consumed(self) -> None:
        self._settle()
        for queue, held in self.held.items():
            if held.consumed >= 0 and not held.window.dropped:
                self.offsets.update(queue, held.consumed, only_forward=False)

    def committed(self, queue: MessageQueue) -> Op[int]:
        """Return the committed offset of a queue, -1 for none: what is noted here, else what the broker has."""
        self._check_running()
        queue = self.wire_queue(queue)
        offset = self.offsets.memory(queue)
        if offset < 0:
            yield from self.routes.read_queues(queue.topic)
            offset = yield from self.offsets.fetch(queue)
        return offset

    def seek(self, queue: MessageQueue, offset: int) -> Op[None]:
        """Continue a queue at an offset that it has. Raises OffsetIllegal, UsageError when the queue is not assigned."""
        yield from self._seek(queue, lambda wire_queue: self._checked(wire_queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> Op[None]:
        """Continue a queue at its oldest message."""
        yield from self._seek(queue, partial(min_offset, self.routes))

    def seek_to_end(self, queue: MessageQueue) -> Op[None]:
        """Continue a queue behind its newest message."""
        yield from self._seek(queue, partial(max_offset, self.routes))

    def _checked(self, queue: MessageQueue, offset: int) -> Op[int]:
        low = yield from min_offset(self.routes, queue)
        high = yield from max_offset(self.routes, queue)
        if not low <= offset <= high:
            raise OffsetIllegal(f"Seek offset illegal, seek offset = {offset}, min offset = {low}, max offset = {high}")
        return offset

    def _seek(self, queue: MessageQueue, find_offset: Callable[[MessageQueue], Op[int]]) -> Op[None]:
        self._check_running()
        queue = self.wire_queue(queue)
        self._must_hold(queue)
        # The topic may have been deleted and created again since the queue was assigned: an offset speaks of one of the two.
        _, birth_ms = yield from stored_offset(self.routes, self.group, queue, self.settings.request_timeout_ms)
        offset = yield from find_offset(queue)
        old = self._must_hold(queue)
        if old is not None:
            self._let_go(old)
        if birth_ms is not None and not same_topic(self.offsets.birth(queue), birth_ms):
            self.offsets.forget(queue)
        self.offsets.learn_birth(queue, birth_ms)
        yield from self.gain(queue, offset, sought=True)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull and return nothing from these queues."""
        self.paused |= {self.wire_queue(queue) for queue in queues}

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        self.paused -= {self.wire_queue(queue) for queue in queues}
        self._arrived.fire()

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> Op[int]:
        """Return the offset of the message stored at or near a time (ms since the epoch)."""
        self._check_running()
        queue = self.wire_queue(queue)
        yield from self.routes.read_queues(queue.topic)
        return (yield from offset_at(self.routes, queue, timestamp_ms))

    # ------------------------------------------------------------ life

    def start(self) -> Op[None]:
        """Register with the brokers and begin the assigned queues."""
        yield from super().start()
        for topic, watched in self._watched.items():
            watched.known = yield from self._queues_now(topic)
        self._commit_at_ms = (yield from steady()) + self.settings.auto_commit_ms
        if self._manual is not None:
            yield from self.rebalance()

    def stop(self) -> Op[None]:
        """Store the progress and leave. What was handed out last was not confirmed, and is given again to who comes next."""
        if self.settings.auto_commit:
            self._note_consumed()
        self.running = False
        self._arrived.fire()  # wakes a waiting poll now: leaving may take a while
        yield from super().stop()

    def _remove(self, held: HeldQueue) -> Op[None]:
        self._settle()
        if self.settings.auto_commit and held.consumed >= 0 and not held.window.dropped:
            self.offsets.update(held.queue, held.consumed, only_forward=False)
        yield from super()._remove(held)

    def _let_go(self, held: HeldQueue) -> None:
        with self._lock:
            self._settle()
            super()._let_go(held)
            self._unconfirmed.discard(held)
            self._cached -= sum(len(messages) for owner, messages in self._ready if owner is held)
            self._ready = deque((owner, messages) for owner, messages in self._ready if owner is not held)

    def _may_begin(self, queue: MessageQueue) -> bool:
        return super()._may_begin(queue) and (self._manual is None or queue in self._manual[queue.topic])

    def _must_hold(self, queue: MessageQueue) -> HeldQueue | None:
        """Return what is held of a queue of ours; None for one that was assigned and could not be begun yet."""
        held = self.held.get(queue)
        if held is None and queue not in (self._manual or {}).get(queue.topic, ()):
            raise UsageError(f"The message queue is not in assigned list, may be rebalancing, message queue: {queue}")
        return held

    def _check_running(self) -> None:
        if not self.running:
            raise NotRunning("The consumer is not running: start it first, and use it before it is closed")

    def heartbeat_data(self) -> ConsumerData:
        """Return what heartbeats say of this consumer; like the original always with CONSUME_FROM_LAST_OFFSET."""
        data = super().heartbeat_data()
        data.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return data

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's state, for operators."""
        self._settle()
        return running_info(self, {"PROP_CONSUMEORDERLY": "false", "SKIPPED_RECORDS": str(self.skipped_count)})
