"""Consumers of events: what `@on` declared, kept running, beside a web application or in a process of their own.

One push consumer a group, for the members of a group must subscribe alike. What becomes of each message
`halfmoon.events.consuming.dispatch` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self, Unpack

from halfmoon.client.constructors.options import PushOptions
from halfmoon.errors import UsageError
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.loop import LoopThread
from halfmoon.events.consuming.member import Bus, Member
from halfmoon.events.consuming.on import Handler, handlers_of
from halfmoon.events.dedup import KEEP_S, create_tables, keep_purging, ledger_of, require_table
from halfmoon.events.dedup.ledger import ConsumedLedger
from halfmoon.events.encoding.codec import Codecs, make_payload_known
from halfmoon.events.event import check_whole
from halfmoon.model import MessageQueue

CLOSE_WAIT_MS = 30_000
"""How long closing waits for functions that run, unless told otherwise."""

GROUPS_MAX = 1_000

KEEP_MAX_S = 10**10
"""The longest time for which ids of processed events may be kept: 300 years."""


class ConsumersOptions(PushOptions, total=False):
    """Options of `Consumers`: its own, and the settings of the consumer of each group."""

    bus: Bus | None
    codecs: Codecs | None
    groups: Mapping[str, Mapping[str, Any]] | None
    around: Callable[[], AbstractContextManager[Any]] | None
    dedup_keep_s: int


class Consumers:
    """Runs consumers of events.

    ::

        with Consumers(shop.mail, nameserver="127.0.0.1:9876"):  # or: async with
            serve()

    ``what``: modules, functions, classes, objects, `Handler`s or lists of them; nothing: all that `@on` decorated in modules that
    are imported. ``settings`` are those of `halfmoon.client.settings.PushSettings`, by keyword, for every group; ``ordered`` and
    ``retries`` of `@on` go before them, and ``groups``, which has more by group, before these. A group that has no progress begins
    with the oldest events (``consume_from``). ``bus``: a `MemoryBus` in place of a broker; settings are checked all the same, those
    of threads, pulling and connections then do nothing. ``around``: gives a block in which each plain function is called.
    ``dedup_keep_s``: how long ids of processed events are kept, in seconds.

    Plain functions run in threads, ``threads`` of them a group; coroutine functions on the event loop that `start_async` was
    called on, or on one in a thread of its own after `start`. Closing finishes what is in hand, for at most ``close_wait_ms``;
    what is not finished then is delivered again. Raises UsageError where nothing is declared, or the same twice.
    """

    def __init__(
        self,
        *what: object,
        nameserver: str = "",
        **options: Unpack[ConsumersOptions],
    ) -> None:
        bus, groups = options.pop("bus", None), options.pop("groups", None)
        around, known = options.pop("around", None), options.pop("codecs", None)
        self._dedup_keep_s = check_whole("dedup_keep_s", options.pop("dedup_keep_s", KEEP_S), 0, KEEP_MAX_S)
        _check(bus, groups, around, known)
        self.handlers: list[Handler] = handlers_of(*what)
        if not self.handlers:
            raise UsageError("no consumer is declared: decorate functions with @on(group, topic, code), and name their module")
        by_group: dict[str, list[Handler]] = {}
        for handler in self.handlers:
            by_group.setdefault(handler.group, []).append(handler)
        if len(by_group) > GROUPS_MAX:
            raise UsageError(f"more than {GROUPS_MAX} consumer groups in one process")
        if unknown := set(groups or {}) - set(by_group):
            raise UsageError(f"settings for consumer groups without a declared consumer: {', '.join(sorted(unknown))}")
        self._ledgers = _ledgers(self.handlers)
        self._bus = bus
        shared = {"nameserver": nameserver, "close_wait_ms": CLOSE_WAIT_MS, **options}
        self._members = [
            Member(
                Dispatch(group, mine, known or Codecs(), self._ledgers, around),
                mine,
                {**shared, **_declared_settings(mine), **(groups or {}).get(group, {})},
                bus,
            )
            for group, mine in sorted(by_group.items())
        ]
        self._state = "new"
        self._loop: LoopThread | None = None
        self._purging: asyncio.Task[None] | None = None

    @property
    def groups(self) -> list[str]:
        """The consumer groups, sorted."""
        return [member.group for member in self._members]

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed."""
        return self._state == "running"

    @property
    def busy(self) -> int:
        """Return how many functions run now."""
        return sum(member.dispatch.busy for member in self._members)

    @property
    def missing_topics(self) -> list[str]:
        """The topics that do not exist yet, sorted; consuming begins when they do."""
        return sorted(set().union(*(member.missing_topics for member in self._members)))

    @property
    def registered(self) -> bool:
        """Whether every group is registered: each broker of its topics answered its heartbeat."""
        return self.running and all(member.registered for member in self._members)

    def assignment(self) -> dict[str, list[MessageQueue]]:
        """Return the queues that are ours now, by group; empty with a bus."""
        return {member.group: member.assignment() for member in self._members}

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
            await asyncio.gather(*(member.close() for member in self._members))
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
            raise UsageError("Consumers can be started once; make a new object")
        for handler in self.handlers:
            make_payload_known(handler.payload)
        self._state = "starting"

    async def _start(self) -> None:
        try:
            for ledger in self._ledgers.values():
                await asyncio.to_thread(require_table, ledger)
            for member in self._members:
                await member.start(self._loop)
        except BaseException:
            self._state = "closed"
            await asyncio.gather(*(member.close() for member in self._members))
            raise
        if self._ledgers:
            self._purging = asyncio.create_task(keep_purging(list(self._ledgers.values()), self._dedup_keep_s))
        self._state = "running"


def _check(bus: object, groups: object, around: object, codecs: object) -> None:
    """Raise UsageError for an option of `Consumers` of a wrong type."""
    for name, value, fits, wanted in (
        ("bus", bus, callable(getattr(bus, "subscribe", None)), "a MemoryBus"),
        ("groups", groups, isinstance(groups, Mapping), "settings by group: {'S_mail': {'threads': 1}}"),
        ("around", around, callable(around), "a function that returns a block"),
        ("codecs", codecs, isinstance(codecs, Codecs), "a halfmoon.events.Codecs"),
    ):
        if value is not None and not fits:
            raise UsageError(f"{name}={value!r:.60}: give {wanted}")


def _declared_settings(handlers: list[Handler]) -> dict[str, Any]:
    """Return what the functions of one group ask of its consumer. Raises UsageError where two ask for different retries."""
    declared: dict[str, Any] = {"orderly": True} if any(handler.ordered for handler in handlers) else {}
    retries = {handler.retries for handler in handlers if handler.retries is not None}
    if len(retries) > 1:
        said = f"functions of {handlers[0].group} say retries={' and '.join(map(str, sorted(retries)))}, but share a consumer"
        raise UsageError(f"{said}: say the same, or give one a group of its own")
    if retries:
        (declared["reconsume_max"],) = retries
    return declared


def _ledgers(handlers: list[Handler]) -> dict[int, ConsumedLedger]:
    """Return the ledger of each ``dedup``, by its identity."""
    ledgers: dict[int, ConsumedLedger] = {}
    for handler in handlers:
        if handler.dedup is not None and id(handler.dedup) not in ledgers:
            try:
                ledgers[id(handler.dedup)] = ledger_of(handler.dedup)
            except UsageError as exc:
                raise UsageError(f"{handler.place}: {exc}") from exc
    return ledgers
