"""Consumers of events: what `@on` declared, kept running, beside a web application or in a process of their own.

One push consumer a group, for the members of a group must subscribe alike. What becomes of each message
`halfmoon.events.consuming.dispatch` says.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from halfmoon.client.aio import AsyncPushConsumer, ConsumeContext, PushSettings
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.consuming.dispatch import Dispatch, Outcome
from halfmoon.events.consuming.loop import LoopThread
from halfmoon.events.consuming.on import Handler, handlers_of
from halfmoon.events.consuming.starting import skip_what_was_missed
from halfmoon.events.dedup import KEEP_S, Ledger, create_tables, ledger_of, require_table
from halfmoon.events.dedup.retention import keep_purging
from halfmoon.events.encoding.codec import Codecs, make_payload_known
from halfmoon.limits import RECONSUME_MAX
from halfmoon.model import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue, StoredMessage

T = TypeVar("T")

CLOSE_WAIT_MS = 30_000
"""How long closing waits for functions that run, unless told otherwise."""

GROUPS_MAX = 1_000

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


class Consumers:
    """Runs consumers of events.

    ::

        with Consumers(shop.mail, nameserver="127.0.0.1:9876"):  # or: async with
            serve()

    ``what``: modules, functions, classes, objects, `Handler`s or lists of them; nothing: all that `@on` decorated in modules that
    are imported. ``settings`` are those of `halfmoon.client.settings.PushSettings`, by keyword, for every group; ``groups`` has
    more, by group. A group that has no progress begins with the oldest events (``consume_from``). ``bus``: a `MemoryBus` in place
    of a broker; settings are checked all the same, those of threads, pulling and connections then do nothing. ``around``: gives a
    block in which each plain function is called. ``dedup_keep_s``: how long ids of processed events are kept, in seconds.

    Plain functions run in threads, ``threads`` of them a group; coroutine functions on the event loop that `start_async` was
    called on, or on one in a thread of its own after `start`. Closing finishes what is in hand, for at most ``close_wait_ms``;
    what is not finished then is delivered again. Raises UsageError where nothing is declared, or the same twice.
    """

    def __init__(
        self,
        *what: object,
        nameserver: str = "",
        bus: Bus | None = None,
        codecs: Codecs | None = None,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        around: Callable[[], AbstractContextManager[Any]] | None = None,
        close_wait_ms: int = CLOSE_WAIT_MS,
        dedup_keep_s: int = KEEP_S,
        **settings: Any,
    ) -> None:
        self.handlers: list[Handler] = handlers_of(*what)
        if not self.handlers:
            raise UsageError("no consumer is declared: decorate functions with @on(group, topic, code), and name their module")
        by_group: dict[str, list[Handler]] = {}
        for one in self.handlers:
            by_group.setdefault(one.group, []).append(one)
        if len(by_group) > GROUPS_MAX:
            raise UsageError(f"more than {GROUPS_MAX} consumer groups in one process")
        if unknown := set(groups or {}) - set(by_group):
            raise UsageError(f"settings for consumer groups that nothing is declared for: {', '.join(sorted(unknown))}")
        self._ledgers = _ledgers(self.handlers)
        self._bus = bus
        self._dedup_keep_s = dedup_keep_s
        known = codecs or Codecs()
        shared = {"nameserver": nameserver, "close_wait_ms": close_wait_ms, **settings}
        self._members = [
            _Member(
                Dispatch(group, mine, known, self._ledgers, around), mine, {**shared, **(groups or {}).get(group, {})}, bus is None
            )
            for group, mine in sorted(by_group.items())
        ]
        self._state = "new"
        self._loop: LoopThread | None = None
        self._purging: asyncio.Task[None] | None = None

    @property
    def groups(self) -> list[str]:
        """The consumer groups, sorted."""
        return [one.group for one in self._members]

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed."""
        return self._state == "running"

    @property
    def busy(self) -> int:
        """How many functions run now."""
        return sum(one.busy for one in self._members)

    def assignment(self) -> dict[str, list[MessageQueue]]:
        """Return the queues that are ours now, by group; empty with a bus."""
        return {one.group: one.assignment() for one in self._members}

    def create_tables(self) -> None:
        """Make the table of processed events in every database that ``dedup`` names, where it is not there yet. Blocks."""
        for ledger in self._ledgers.values():
            create_tables(ledger.provider)

    # ------------------------------------------------------------ blocking

    def start(self) -> None:
        """Begin to consume, in threads of its own; returns when every group is shown to its brokers. Once in a life.

        Raises UsageError for settings and tables that do not fit, NoNameServer, and what brokers refuse.
        """
        self._begin()
        self._loop = LoopThread("halfmoon-consumers")
        try:
            self._loop.call(self._start())
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        """Finish what is in hand and leave the groups. Closing again does nothing."""
        if self._loop is not None and self._state == "running":
            try:
                self._loop.call(self.close_async())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------ asyncio

    async def start_async(self) -> None:
        """As `start`, on the running event loop, where coroutine functions will run."""
        self._begin()
        if self._bus is not None:
            self._loop = LoopThread("halfmoon-consumers")  # a bus waits for the function, on whatever loop it is called
        await self._start()

    async def close_async(self) -> None:
        """As `close`."""
        if self._state != "running":
            return
        self._state = "closing"
        if self._purging is not None:
            self._purging.cancel()
        try:
            await asyncio.gather(*(one.close() for one in self._members))
        finally:
            self._state = "closed"
            if self._bus is not None and self._loop is not None:
                self._loop.stop_soon()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close_async()

    # ------------------------------------------------------------ inside

    def _begin(self) -> None:
        if self._state != "new":
            raise UsageError("consumers are started once; make new ones")
        for handler in self.handlers:
            make_payload_known(handler.payload)
        self._state = "starting"

    async def _start(self) -> None:
        try:
            for ledger in self._ledgers.values():
                await asyncio.to_thread(require_table, ledger)
            for member in self._members:
                if self._bus is not None:
                    assert self._loop is not None
                    member.join(self._bus, self._loop)
                else:
                    await member.start()
        except BaseException:
            self._state = "closed"
            await asyncio.gather(*(one.close() for one in self._members))
            raise
        if self._ledgers:
            self._purging = asyncio.create_task(keep_purging(list(self._ledgers.values()), self._dedup_keep_s))
        self._state = "running"


class _Member:
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
        consumer = AsyncPushConsumer(**{"group": self.group, "consume_from": ConsumeFrom.FIRST_OFFSET, **settings})
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
                log.warning("functions run on after the close, their events come again: group=%s count=%d", self.group, self.busy)

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


def _ledgers(handlers: list[Handler]) -> dict[int, Ledger]:
    """Return the ledger of each ``dedup``, by its identity."""
    found: dict[int, Ledger] = {}
    for one in handlers:
        if one.dedup is not None and id(one.dedup) not in found:
            try:
                found[id(one.dedup)] = ledger_of(one.dedup)
            except UsageError as exc:
                raise UsageError(f"{one.place}: {exc}") from exc
    return found


def _fleeting(handlers: list[Handler]) -> list[str]:
    """Return the topics of which nothing is to be kept while nobody is online: those of which every code says so."""
    return sorted({one.topic for one in handlers} - {one.topic for one in handlers if one.persistence})
