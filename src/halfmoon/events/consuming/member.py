"""One consumer group in this process: its functions, and the push consumer or the bus that gives them their events."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from halfmoon.client.admin import AsyncAdmin
from halfmoon.client.aio import AsyncPushConsumer, ConsumeContext, PushSettings
from halfmoon.client.lifecycle import signing
from halfmoon.errors import GroupNotFound, HalfmoonError, UsageError
from halfmoon.events.consuming.dispatch import Dispatch, Outcome
from halfmoon.events.consuming.loop import LoopThread
from halfmoon.events.consuming.on import Handler
from halfmoon.limits import RECONSUME_MAX
from halfmoon.model import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue, StoredMessage
from halfmoon.results import OffsetMove

log = logging.getLogger("halfmoon.events")

Deliver = Callable[[StoredMessage, int], tuple[bool, str]]
"""Takes a message and the number of the attempt; says whether it was consumed, and why not."""


class Bus(Protocol):
    """Carries events in memory instead of a broker (`halfmoon.events.testing.MemoryBus`)."""

    def subscribe(
        self,
        group: str,
        topics: Mapping[str, list[str]],
        deliver: Deliver,
        *,
        from_end: Collection[str] = (),
        reconsume_max: int = RECONSUME_MAX,
    ) -> Callable[[], None]:
        """Have a group's events handed to ``deliver``, until what is returned is called. ``topics`` has codes, ``*`` for all.

        ``from_end``: topics of which a group is given only what is published from now on, if nobody of it is there.
        ``reconsume_max``: how often a message comes again.
        """


class Member:
    """One group in this process: its functions and its push consumer."""

    def __init__(self, dispatch: Dispatch, handlers: list[Handler], settings: dict[str, Any], with_broker: bool) -> None:
        if "consume_batch_max" in settings:
            raise UsageError("consume_batch_max: functions of @on are given one event at a time; leave the setting out")
        self.group = dispatch.group
        self.busy = 0
        self._counting = threading.Lock()
        self._dispatch = dispatch
        self._fleeting = _fleeting(handlers)
        self._leave: Callable[[], None] | None = None
        self._consumer: AsyncPushConsumer | None = None
        self._pool: ThreadPoolExecutor | None = None
        consumer = AsyncPushConsumer(**{"group": self.group, "consume_from": ConsumeFrom.FIRST_OFFSET, "spans": False, **settings})
        for topic, codes in dispatch.codes().items():
            consumer.subscribe(topic, " || ".join(codes))
        self._settings = consumer.settings
        if not with_broker:  # what is wrong with settings and names is said all the same; it is never started
            _check_for_bus(self._settings)
            return
        self._consumer = consumer
        self._consumer.on_message(self._listen)
        self._pool = ThreadPoolExecutor(self._consumer.settings.threads, thread_name_prefix=f"halfmoon-{self.group}")

    async def start(self) -> None:
        """Join the group. The consumer's tasks get a context of their own: not the transaction, or the trace, of who starts it."""
        assert self._consumer is not None
        if self._fleeting:
            await skip_what_was_missed(self._consumer.settings, self._fleeting)
        await asyncio.create_task(self._consumer.start(), context=contextvars.Context())

    async def close(self) -> None:
        """Leave the group, when what is in hand is done or took too long."""
        if self._leave is not None:
            self._leave()
        if self._consumer is not None and self._pool is not None:
            await self._consumer.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            if self.busy:
                log.warning(
                    "functions still run after the close, their events come again: group=%s count=%d",
                    self.group,
                    self.busy,
                )

    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._consumer.assignment() if self._consumer is not None else []

    async def _listen(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """The listener of the push consumer. What was raised is raised again, so that traces show it."""
        (message,) = messages
        attempt = message.reconsume_times + 1
        outcome = await self._outcome(message, attempt)
        if outcome.consumed:
            return ConsumeStatus.CONSUME_SUCCESS
        context.reason = outcome.reason
        if isinstance(outcome.error, Exception) and not isinstance(outcome.error, HalfmoonError):
            raise outcome.error
        return ConsumeStatus.RECONSUME_LATER

    async def _outcome(self, message: StoredMessage, attempt: int) -> Outcome:
        if not self._dispatch.is_async(message):
            consume = contextvars.Context().run
            return await asyncio.get_running_loop().run_in_executor(self._pool, consume, self._consume, message, attempt)
        self._count(1)
        try:
            return await self._dispatch.consume_async(message, attempt)
        finally:
            self._count(-1)

    def _consume(self, message: StoredMessage, attempt: int) -> Outcome:
        self._count(1)
        try:
            return self._dispatch.consume(message, attempt)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self.busy += change

    # ------------------------------------------------------------ with a bus

    def join(self, bus: Bus, loop: LoopThread) -> None:
        """Have a bus hand over the group's events."""
        codes = self._dispatch.codes()
        self._leave = bus.subscribe(
            self.group,
            codes,
            lambda message, attempt: self._deliver(message, attempt, loop),
            from_end=self._fleeting,
            reconsume_max=self._settings.redeliveries,
        )

    def _deliver(self, message: StoredMessage, attempt: int, loop: LoopThread) -> tuple[bool, str]:
        if self._dispatch.is_async(message):
            outcome = loop.call_here_if_busy(self._dispatch.consume_async(message, attempt))
        else:
            outcome = contextvars.Context().run(self._dispatch.consume, message, attempt)
        if outcome.error is not None:
            log.error("a consumer failed: group=%s event=%s", self.group, message.msg_id, exc_info=outcome.error)
        return outcome.consumed, outcome.reason


def _check_for_bus(settings: PushSettings) -> None:
    """Raise UsageError for what a bus in memory cannot do as a broker does."""
    if settings.orderly or settings.model is not MessageModel.CLUSTERING:
        what = "orderly=True" if settings.orderly else f"model={settings.model.name}"
        raise UsageError(f"{what}: a bus in memory has neither orderly consumption nor broadcasting; test it with halfmoon_broker")


def _fleeting(handlers: list[Handler]) -> list[str]:
    """Return the topics of which nothing is to be kept while nobody is online: those of which every code says so."""
    return sorted({handler.topic for handler in handlers} - {handler.topic for handler in handlers if handler.persistence})


async def skip_what_was_missed(settings: PushSettings, topics: list[str]) -> None:
    """Move a group behind what lies in topics, where no member of it is online. Never back. What fails is logged: events are kept.

    The ends are read before the members are: what is skipped was there when nobody was online yet, even if another member starts at
    the same time.
    """
    try:
        async with AsyncAdmin(nameserver=settings.nameserver, namespace=settings.namespace, **signing(settings)) as admin:
            for topic in topics:
                await _skip(admin, settings.group, topic)
    except HalfmoonError as exc:
        log.warning("messages published while no member was online could not be skipped: group=%s reason=%s", settings.group, exc)


async def _skip(admin: AsyncAdmin, group: str, topic: str) -> None:
    try:
        moves = await _ends(admin, group, topic)
    except HalfmoonError as exc:
        log.info("nothing is skipped: group=%s topic=%s reason=%s", group, topic, exc)
        return
    if any(move.members for move in moves):
        return
    ahead = {move.queue: move.then for move in moves if move.now is None or move.then > move.now}
    if ahead:
        await admin.reset_offsets(group, topic, ahead)
        log.info("no member was online, earlier messages are skipped: group=%s topic=%s queues=%d", group, topic, len(ahead))


async def _ends(admin: AsyncAdmin, group: str, topic: str) -> list[OffsetMove]:
    try:
        return await admin.reset_offsets(group, topic, "latest", dry_run=True)
    except GroupNotFound:
        await admin.create_group(group)
        return await admin.reset_offsets(group, topic, "latest", dry_run=True)
