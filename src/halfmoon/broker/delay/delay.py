"""Delayed messages: parked in ``SCHEDULE_TOPIC_XXXX`` by level, or in the timer's topic, and delivered once they are due.

`Delays` joins the parts: `levels` (the table), `level_queue` (the queue of one level), `timer` (points in time), `delivery`
(storing messages in their topics). Follows ScheduleMessageService (RocketMQ 4.9.8); what differs is said in those modules.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from halfmoon.broker.context import Context
from halfmoon.broker.delay.delivery import Deliveries
from halfmoon.broker.delay.level_queue import RETRY_MS, LevelQueue
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.delay.progress import DeliveryProgress
from halfmoon.broker.delay.properties import ASKED, PARKING, with_place
from halfmoon.broker.delay.query import DelayListing
from halfmoon.broker.delay.redeliveries import DelayedRedeliveries
from halfmoon.broker.delay.timer import CANCEL_KEY, Timer
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.names import SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.send.sends import SendHeaderOf, Sends
from halfmoon.broker.service import Service
from halfmoon.errors import IllegalOperation, MessageRefused, NoPermission
from halfmoon.hot import Draft
from halfmoon.instant import Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.metrics import Samples
from halfmoon.store.entries import entries_at, entries_behind
from halfmoon.store.store import Appended
from halfmoon.store.timer.progress import TIMER
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import TimerCheckpoint, TimerCounts, TopicConfig, to_json
from halfmoon.wire.bodies.delays import parse_recall_handle, recall_handle
from halfmoon.wire.codes import TRANSACTION_MASK
from halfmoon.wire.headers.delay import (
    GetAllDelayOffset,
    GetTimerCheckPoint,
    GetTimerMetrics,
    ListDelayedMessages,
    RecallMessage,
    RecallMessageReply,
)

AT_ONCE = 64
"""Messages that one level delivers before the next has its turn."""
COPIED_MS = 3_000
"""Time within which a slave has copied what was delivered."""
A_TICK = 128
"""About how many messages one tick delivers before connections have their turn again."""

QueueReady = Callable[[Request, str, int], bool]

_LEVEL = re.compile(r"-?[0-9]{1,10}")


class RequestedDelay(NamedTuple):
    """The delay that a message asks for: a level from 1 on, or a point in time (ms since the epoch)."""

    level: int
    deliver_ms: int | None


class Delays(Service):
    """The service of delayed messages. ``levels`` is the table."""

    def __init__(self, context: Context, levels: Levels, sends: Sends) -> None:
        settings, store, topics, now = context.settings, context.store, context.topics, context.started
        self._settings, self._store, self._topics, self._sends, self.levels = settings, store, topics, sends, levels
        self._log = RateLimitedLog(logging.getLogger("halfmoon.broker.delay"), now.steady)
        self.deliveries = Deliveries(settings, store, topics, sends, self._log.warning)
        self.progress = keeping = DeliveryProgress(context.disk, store, context.tables, self._log.warning)
        self.timer = Timer(settings, store, sends, self.deliveries, keeping.start.timer, keeping.start.low)
        known = {queue_id + 1 for queue_id in store.queue_ids(SCHEDULE_TOPIC)}
        self.level_queues = {
            level: LevelQueue(level, keeping.offset(level), levels, store, self.deliveries)
            for level in sorted(known | set(range(1, len(levels) + 1)))
        }
        keeping.go_on(self.level_queues, self.timer, self.deliveries)
        self.deliveries.on_created = self._queue_created
        self.redeliveries = DelayedRedeliveries(store, self.level_queues, self._log.warning, now.steady)
        self.listing = DelayListing(settings, store, self.level_queues, self.timer)
        self._turn = 0
        store.maintenance.pin("delayed messages", self.needed_from, firm=False)
        hours = store.settings.file_reserved_hours
        if max(levels.delays_ms, default=0) >= hours * 3_600_000:
            self._log.warning(
                "a delay level is longer than file_reserved_hours (%d): log files are kept as long as messages wait in them", hours
            )

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            GetAllDelayOffset: self.offsets,
            GetTimerCheckPoint: self.checkpoint,
            GetTimerMetrics: lambda _request: Reply(body=to_json(TimerCounts())),
            RecallMessage: self.recall,
            ListDelayedMessages: self.listing.list,
        }

    # ------------------------------------------------------------ parking

    def send(self, request: Request, header: SendHeaderOf, config: TopicConfig, queue_id: int, queue_ready: QueueReady) -> bool:
        """Park the message of a send and reply; return False when it asks for no delay. Raises MessageRefused (13).

        ``queue_ready`` says whether a queue exists; if not, it has the request handled again once it does.
        """
        properties = wire_properties.decode((header.properties or "").encode())
        level = asked_level(properties.get("DELAY", "0"))
        if level > 0:
            level = self.capped(level)
            if queue_ready(request, SCHEDULE_TOPIC, level - 1):
                self._send_by_level(request, header, config, queue_id, level, properties)
            return True
        deliver_ms = self.timer.asked(properties, request.now.date)
        if CANCEL_KEY in properties:
            self._send_cancel(request, header, queue_id, properties[CANCEL_KEY], deliver_ms)
            return True
        if deliver_ms is None or deliver_ms <= request.now.date:
            return False
        if queue_ready(request, TIMER_TOPIC, 0):
            self._send_by_time(request, header, config, queue_id, deliver_ms, properties)
        return True

    def _send_by_level(
        self,
        request: Request,
        header: SendHeaderOf,
        config: TopicConfig,
        queue_id: int,
        level: int,
        properties: dict[str, str],
    ) -> None:
        draft, wait = self._draft(request, header, config, properties, PARKING)
        appended = self.park(header.topic, queue_id, level, draft, request.now.date)
        self._sends.stored(request, queue_id, appended, wait=wait)

    def _send_by_time(
        self,
        request: Request,
        header: SendHeaderOf,
        config: TopicConfig,
        queue_id: int,
        deliver_ms: int,
        properties: dict[str, str],
    ) -> None:
        draft, wait = self._draft(request, header, config, properties, PARKING - ASKED)
        appended, deliver_ms = self.timer.park(header.topic, queue_id, deliver_ms, draft, request.now.date)
        key = properties.get("UNIQ_KEY", "")
        handle = recall_handle(header.topic, self._settings.name, deliver_ms, key) if key else ""
        self._sends.stored(request, queue_id, appended, wait=wait, handle=handle)

    def _draft(
        self,
        request: Request,
        header: SendHeaderOf,
        config: TopicConfig,
        properties: dict[str, str],
        dropped: frozenset[bytes],
    ) -> tuple[Draft, bool]:
        kept = {name: value for name, value in properties.items() if name.encode("utf-8", "replace") not in dropped}
        header = msgspec.structs.replace(header, properties=wire_properties.encode(kept).decode())
        return self._sends.draft(header, config, request)

    def _send_cancel(self, request: Request, header: SendHeaderOf, queue_id: int, key: str, deliver_ms: int | None) -> None:
        """Cancel a message as 5.x clients and brokers do: by a message with its topic and unique key, due at the same time."""
        if deliver_ms is None or deliver_ms <= request.now.date:
            raise MessageRefused("the message is illegal: a cancel needs a time in the future")
        appended, _ = self.cancel(header.topic, key.removeprefix(f"{header.topic}+"), request.peer.host, request.now.date)
        self._sends.stored(request, queue_id, appended, wait=True)

    def cancel(self, topic: str, key: str, born_host: bytes, now: int) -> tuple[Appended, str]:
        """Cancel a message that waits for a point in time; return the record that says so and the message's unique key.

        Raises IllegalOperation (604) when no such message waits (any more), and what `Sends.append` does.
        """
        waiting = self.timer.find(topic, key, now)
        if waiting is None:
            raise IllegalOperation("recall failed, no message of this topic and id waits to be delivered")
        return self.timer.cancel(topic, key, *waiting, born_host, now), key

    def recall(self, request: Request) -> None:
        """Cancel a message by the handle that its sender got (370); answered like a send, once that is durable.

        Follows RecallMessageProcessor (5.3.3).
        """
        header = request.header(RecallMessage)
        if not self._settings.recall_enable:
            raise NoPermission("recall failed, operation is forbidden")
        self._topics.existing(header.topic)
        handle = parse_recall_handle(header.recall_handle)
        if handle is None:
            raise IllegalOperation("recall failed, handle is invalid")
        if handle.topic != header.topic:
            raise IllegalOperation("recall failed, topic not match")
        if handle.broker_name != self._settings.name:
            raise IllegalOperation("recall failed, broker service not available")
        appended, key = self.cancel(handle.topic, handle.key, request.peer.host, request.now.date)
        self._sends.stored(request, 0, appended, wait=True, other=RecallMessageReply(msg_id=key))

    def requested(self, properties: bytes, now: int) -> RequestedDelay | None:
        """Return the delay that a message with these stored properties asks for; None: none, or its time has passed.

        Raises MessageRefused (13): no such level or time, or it cancels another; BrokerError 1: timers are switched off.
        """
        pairs = wire_properties.decode(properties)
        level = asked_level(pairs.get("DELAY", "0"))
        if level > 0:
            return RequestedDelay(self.capped(level), None)
        if CANCEL_KEY in pairs:
            raise MessageRefused("the message is illegal: a message of a batch cancels no other")
        deliver_ms = self.timer.asked(pairs, now)
        return None if deliver_ms is None or deliver_ms <= now else RequestedDelay(0, deliver_ms)

    def put(self, topic: str, queue_id: int, delay: RequestedDelay, draft: Draft, now: int, identity: int) -> None:
        """Park a message with the delay that it asks for; ``identity`` becomes the prepared-transaction offset of its record.

        Raises what `park` and `Timer.park` do.
        """
        if delay.deliver_ms is None:
            self.park(topic, queue_id, delay.level, draft, now, identity=identity)
        else:
            self.timer.park(topic, queue_id, delay.deliver_ms, draft, now, identity=identity)

    def needed_from(self) -> int:
        """Return the physical offset from which on the log holds messages that wait; its end when there are none."""
        store = self._store
        waiting = [(SCHEDULE_TOPIC, level - 1, level_queue.offset) for level, level_queue in self.level_queues.items()]
        places = [
            entry.physical_offset
            for topic, queue_id, offset in [*waiting, (TIMER_TOPIC, 0, self.timer.low)]
            for entry in entries_at(store, topic, queue_id, max(offset, store.queue_min(topic, queue_id)), 1)
        ]
        return min(places, default=store.end_offset)

    def parked_behind(self, physical_offset: int) -> Iterator[memoryview]:
        """Yield the records of all parked messages behind a physical offset, delivered or not."""
        queues = [(SCHEDULE_TOPIC, queue_id) for queue_id in self._store.queue_ids(SCHEDULE_TOPIC)]
        for topic, queue_id in [*queues, (TIMER_TOPIC, 0)]:
            for entry in entries_behind(self._store, topic, queue_id, physical_offset):
                record = self._store.record(entry.physical_offset, entry.size)
                if record is not None:
                    yield record

    def park(self, topic: str, queue_id: int, level: int, draft: Draft, now: int, *, identity: int = 0) -> Appended:
        """Store a message so that it is delivered to a queue of a topic after the delay of its level.

        ``draft`` is the message as it would be stored there; earlier parking is forgotten. A level above the last counts as the
        last. Its record lies in queue ``level - 1`` of SCHEDULE_TOPIC_XXXX. Waits only when that queue is not `ready`.

        Raises what `Sends.append` does, and MessageRefused (13) when its properties have no room for where it belongs or there is
        no level at all.
        """
        level = self.capped(level)
        body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, _, _ = draft
        properties = with_place(properties, topic, queue_id, b"DELAY\x01%d\x02" % level)
        due = now + self.levels.delay_ms(level)
        sys_flag &= ~TRANSACTION_MASK
        stored = (body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, identity, due)
        appended = self._sends.append(SCHEDULE_TOPIC, level - 1, [stored], now)
        self.level_queues[level].parked(appended.queue_offset + 1, due)
        self.redeliveries.parked(topic, level, appended.queue_offset)
        return appended

    def capped(self, level: int) -> int:
        """Return the level for a message that asks for one from 1 on. Raises MessageRefused when there are no levels."""
        if level < 1 or not len(self.levels):
            raise MessageRefused(f"the message is illegal: there is no delay level {level}")
        return min(level, len(self.levels))

    # ------------------------------------------------------------ delivering

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called."""
        wanted = [level_queue.due for level_queue in self.level_queues.values() if level_queue.due is not None]
        if (timer_due := self.timer.due) is not None:
            wanted.append(timer_due)
        dues = [now.at(min(wanted)) if wanted else None, self.redeliveries.due]
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: Instant) -> None:
        """Deliver some of the due messages, of each level in turn. `due` says if there are more."""
        self._log.tick(now.steady)
        self.redeliveries.read(now.steady)
        date = now.date
        sources: list[LevelQueue | Timer] = [
            level_queue for level_queue in self.level_queues.values() if level_queue.due is not None and level_queue.due <= date
        ]
        if (timer_due := self.timer.due) is not None and timer_due <= date:
            sources.append(self.timer)
        if self._store.refusal is not None:
            for level_queue in sources:
                level_queue.wait(date + RETRY_MS)
            return
        self._turn += 1
        done = 0
        for place in range(len(sources)):
            if done >= A_TICK:
                break
            # Another one begins each time, so that the first does not use up every tick.
            level_queue = sources[(place + self._turn) % len(sources)]
            done += self._run_timer(date) if isinstance(level_queue, Timer) else self._run(level_queue, date)

    def _queue_created(self) -> None:
        """Hurry the levels, as a queue was created that one of them waits for."""
        for level_queue in self.level_queues.values():
            level_queue.hurry()
        self.timer.hurry()

    def _run(self, level_queue: LevelQueue, now: int) -> int:
        if level_queue.left:
            self.progress.begin(level_queue.level)
            level_queue.again(now)
            self.progress.done(level_queue.level, settled=not level_queue.left)
            return AT_ONCE
        entries = level_queue.next(now, AT_ONCE)
        if entries:
            messages = self.deliveries.read(entries)
            self.progress.begin(level_queue.level, len(entries))
            level_queue.settle(messages, entries[-1].queue_offset + 1, now)
            self.progress.done(level_queue.level, settled=not level_queue.left)
        return len(entries)

    def _run_timer(self, now: int) -> int:
        timer = self.timer
        if timer.left:
            self.progress.begin(TIMER)
            timer.again(now)
            self.progress.done(TIMER, settled=not timer.left)
            return AT_ONCE
        pairs = timer.next(now, AT_ONCE)
        if not pairs and timer.read_ahead.due is not None and timer.read_ahead.due <= now:
            return timer.read_ahead.run(now)
        if pairs:
            messages = timer.read(pairs, now)
            self.progress.begin(TIMER, len(pairs))
            timer.settle(messages, pairs, now)
            self.progress.done(TIMER, settled=not timer.left)
        return len(pairs)

    def offsets(self, _request: Request) -> Reply:
        """Return the progress of each level (45)."""
        return Reply(body=self.progress.text())

    def checkpoint(self, request: Request) -> Reply:
        """Return how far the timer is (60), in whole seconds, as a wheel counts.

        What was delivered in the last seconds may not be in the log of a slave that takes over: it delivers that again.
        """
        now, end = request.now.date, self._store.queue_max(TIMER_TOPIC, 0)
        first = self.timer.index.first_due()
        read_ms = now - COPIED_MS if first is None else min(first, now - COPIED_MS)
        return Reply(body=TimerCheckpoint(read_ms - read_ms % 1000, 0, end, end, timestamp_ms=now).encode())

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield by level, 0 for points in time, how many messages wait, how many are due, and for how many seconds the first is."""
        for level, count in sorted({0: 0, **self.listing.counts()}.items()):
            yield None
            if level:
                due, since = self.level_queues[level].overdue(now.date)
            else:
                index = self.timer.index
                due, since = index.due_count(now.date), min(now.date, index.first_due() or now.date)
            labels = (*broker, str(level))
            yield metrics.DELAYED, labels, count
            yield metrics.DELAYS_DUE, labels, due
            yield metrics.DELAYS_LATE, labels, (now.date - since) / 1000

    def texts(self, now: Instant) -> dict[str, str]:
        """Return, for each level that delivered messages, its progress and the end of its queue, as runtime information."""
        return {
            f"scheduleMessageOffset_{level}": f"{level_queue.offset},{self._store.queue_max(SCHEDULE_TOPIC, level - 1)}"
            for level, level_queue in self.level_queues.items() if level_queue.offset > 0
        }  # fmt: skip

    def close(self, now: Instant) -> None:
        """Save the progress, if the log is durable. Waits for the device."""
        self.progress.close()


def asked_level(text: str) -> int:
    """Return the level that a DELAY property asks for; below 1 for none. Raises MessageRefused (13) when it is no number."""
    if not _LEVEL.fullmatch(text):
        raise MessageRefused(f"the message is illegal: {text[:50]!r} is no delay level")
    return int(text)
