"""One consumer group in this process: its functions, and the push consumer or the bus that gives them their events."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from halfmoon.client.admin import AsyncAdmin
from halfmoon.client.aio import AsyncPushConsumer, ConsumeContext, PushSettings
from halfmoon.client.lifecycle import signing
from halfmoon.errors import GroupNotFound, HalfmoonError, UsageError
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.loop import LoopThread
from halfmoon.events.consuming.on import Handler
from halfmoon.logs import log_failure
from halfmoon.model import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue, StoredMessage
from halfmoon.shown.names import queue_name

log = logging.getLogger("halfmoon.events")


class Bus(Protocol):
    """A broker inside of a test's process: `halfmoon.events.testing.MemoryBus`."""

    def subscribe(
        self, group: str, topics: dict[str, list[str]], deliver: Callable[[StoredMessage, int], tuple[bool, str]], *,
        from_end: list[str], reconsume_max: int, **settings: Any,
    ) -> Callable[[], None]:  # fmt: skip
        """Have a member of a consumer group given messages; return what ends it."""


class Member:
    """One group in this process: its functions, and the push consumer or the bus that gives them their events."""

    def __init__(self, dispatch: Dispatch, handlers: list[Handler], settings: dict[str, Any], bus: Bus | None = None) -> None:
        if "consume_batch_max" in settings:
            raise UsageError("consume_batch_max: functions of @on are given one event at a time; leave the setting out")
        self.group, self.dispatch = dispatch.group, dispatch
        self._bus, self._fleeting = bus, _fleeting(handlers)
        self._leave: Callable[[], None] | None = None
        self._consumer = AsyncPushConsumer(
            **{"group": self.group, "consume_from": ConsumeFrom.FIRST_OFFSET, "spans": False, **settings}
        )
        for topic, codes in dispatch.codes().items():
            self._consumer.subscribe(topic, " || ".join(codes))
        self._consumer.on_message(self._listen)
        self._pool = ThreadPoolExecutor(self._consumer.settings.threads, thread_name_prefix=f"halfmoon-{self.group}")
        if bus is not None:  # what is wrong with settings and names is said all the same
            _check_for_bus(self._consumer.settings)

    async def start(self, loop: LoopThread | None) -> None:
        """Join the group. The consumer's tasks get a context of their own: not the transaction, or the trace, of who starts it.

        A bus is given ``loop`` for coroutine functions.
        """
        settings = self._consumer.settings
        if self._bus is not None:
            assert loop is not None
            deliver, codes = partial(self._deliver, loop), self.dispatch.codes()
            self._leave = self._bus.subscribe(
                self.group, codes, deliver, from_end=self._fleeting, reconsume_max=settings.reconsume_max, orderly=settings.orderly
            )
            return
        if self._fleeting:
            await skip_what_was_missed(settings, self._fleeting)
        await asyncio.create_task(self._consumer.start(), context=contextvars.Context())

    async def close(self) -> None:
        """Leave the group, when what is in hand is done or took too long."""
        if self._leave is not None:
            self._leave()
        await self._consumer.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.dispatch.busy:
            log.warning(
                "functions still run after the close, their events come again: group=%s count=%d", self.group, self.dispatch.busy
            )

    @property
    def missing_topics(self) -> set[str]:
        """Topics that do not exist yet."""
        return set() if self._bus is not None else self._consumer.core.missing_topics

    @property
    def registered(self) -> bool:
        """Whether every broker of its topics knows this member."""
        return self._bus is not None or self._consumer.core.is_registered()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours now."""
        return self._consumer.assignment()

    async def _listen(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Handle messages as the listener of the push consumer, which logs what is raised and shows it in traces."""
        (message,) = messages
        attempt = message.reconsume_times + 1
        if self.dispatch.is_async(message):
            outcome = await self.dispatch.consume_async(message, attempt)
        else:
            apart = contextvars.Context().run
            consumed = asyncio.get_running_loop().run_in_executor(self._pool, apart, self.dispatch.consume, message, attempt)
            outcome = await consumed
        if outcome.consumed:
            return ConsumeStatus.CONSUME_SUCCESS
        context.reason = outcome.reason
        if isinstance(outcome.error, Exception):
            raise outcome.error
        return ConsumeStatus.RECONSUME_LATER

    def _deliver(self, loop: LoopThread, message: StoredMessage, attempt: int) -> tuple[bool, str]:
        if self.dispatch.is_async(message):
            outcome = loop.call_here_if_busy(self.dispatch.consume_async(message, attempt))
        else:
            outcome = contextvars.Context().run(self.dispatch.consume, message, attempt)
        if isinstance(outcome.error, Exception):
            facts = {
                "group": self.group, "topic": message.topic, "queue": queue_name(message.queue, message.topic),
                "offset": message.queue_offset, "message": message.msg_id, "tag": message.tag, "try": attempt,
            }  # fmt: skip
            then = "delivered again, or to the dead letters after its last try"
            log_failure(log, "listener failed", outcome.error, facts, then)
        return outcome.consumed, outcome.reason


def _check_for_bus(settings: PushSettings) -> None:
    """Raise UsageError for what a bus in memory cannot do as a broker does."""
    if settings.model is not MessageModel.CLUSTERING:
        raise UsageError(f"model={settings.model.name}: a MemoryBus has no broadcasting; test it with halfmoon_broker")


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
        try:
            moves = await admin.reset_offsets(group, topic, "latest", dry_run=True)
        except GroupNotFound:
            await admin.create_group(group)
            moves = await admin.reset_offsets(group, topic, "latest", dry_run=True)
    except HalfmoonError as exc:
        log.info("nothing is skipped: group=%s topic=%s reason=%s", group, topic, exc)
        return
    ahead = {move.queue: move.then for move in moves if move.now is None or move.then > move.now}
    if ahead and not any(move.members for move in moves):
        await admin.reset_offsets(group, topic, ahead)
        log.info("no member was online, earlier messages are skipped: group=%s topic=%s queues=%d", group, topic, len(ahead))
