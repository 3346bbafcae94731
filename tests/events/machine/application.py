"""One application at one database: plays programs of verbs, pairs each event with a row, and compares both at the end.

An application swallows every error of its driver and goes on, as careless programs do. What it must never meet is an error of the
product outside of `publish`.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from halfmoon.errors import HalfmoonError
from halfmoon.events import Event, Publisher
from halfmoon.events.testing import MemoryBus, MemoryTransport
from tests.events.machine.stores import ERRORS, Store
from tests.events.machine.verbs import VERBS, Undo, Verb, done

TOPIC, CODE, GROUP = "TP_MACHINE", "EC_MADE", "P_machine"
PATIENCE_S = 2.0
"""How long the publisher may take to find an outcome by itself before the broker's check is asked for."""
CHECKS_S = 30.0
"""How long the broker goes on asking."""
HANGS_S = 10.0
"""How long a program may take before its connections to a server are cut off."""
LOCKED_S = 30.0
"""Longest time that a store is tried which the application keeps locked."""
T = TypeVar("T")

_PAIRED, _BEGUN, _HALF = "paired", "begun", "half"


class Broken(AssertionError):
    """A promise does not hold after a program."""


class Unsettled(MemoryBus):
    """A bus that looks at nothing, as a broker: the publisher's threads decide, at any moment of a program."""

    def transport(self, group: str) -> MemoryTransport:
        """Return a new member."""
        member = super().transport(group)
        member.settled_by = lambda settle: False  # type: ignore[method-assign]
        return member


class Application:
    """What all have in common. A subclass is one provider: it opens handles and says how each common verb is spelt.

    ``traits`` are the words by which verbs say which applications can run them.
    """

    traits: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: Store, driver: str, bus: MemoryBus) -> None:
        self.store, self.driver, self.bus = store, driver, bus
        self.carrier: Any = bus
        """The publisher's transport."""
        self.patience_s, self.checks_s = PATIENCE_S, CHECKS_S
        self.counts: Counter[str] = Counter()
        """Of all programs: ``programs``, ``paired``, ``asked`` (programs that needed the broker's check)."""
        self.publisher = self._publisher()
        self.publisher.create_tables()
        self.publisher.start()
        self._reset()

    def _publisher(self) -> Publisher:
        raise NotImplementedError

    def _reset(self) -> None:
        self.blocks: list[Any] = []
        """Context managers that were entered, the innermost last."""
        self.claims: dict[str, str] = {}
        self.intruders: list[str] = []
        self.swallowed: list[str] = []
        self.forget()

    def shut(self) -> None:
        """End for good."""
        self.publisher.close()

    # ------------------------------------------------------------ what a provider spells

    @property
    def opened(self) -> bool:
        """Whether there is a handle."""
        raise NotImplementedError

    @property
    def handle(self) -> Any:
        """What ``publish(…, session=…)`` takes."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop all references to handles."""

    def drop(self) -> None:
        """Lose handles and blocks without an end."""
        self.blocks.clear()
        self.forget()
        gc.collect()

    def sever(self) -> None:
        """Close all that is open, as the end of the process does."""
        gc.collect()
        self.store.cut_off()

    async def driver_connection(self) -> Any:
        """Return the driver's own connection."""
        raise NotImplementedError

    async def number(self) -> int:
        """Return the server's number of the connection."""
        return number_of(await self.driver_connection())

    async def open(self) -> None:
        """Open a handle in the most usual way."""
        raise NotImplementedError

    async def text(self, statement: str) -> None:
        """Run a statement as the application usually does."""
        raise NotImplementedError

    async def commit(self) -> None:
        """Commit."""
        raise NotImplementedError

    async def rollback(self) -> None:
        """Roll back."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the handle without a commit."""
        raise NotImplementedError

    async def publish(self, event: Event, handle: Any) -> None:
        """Publish, blocking or not."""
        self.publisher.publish(event, session=handle)

    # ------------------------------------------------------------ pairs and blocks

    async def pair(
        self, *, event_first: bool = False, named: bool = False, times: int = 1, insert: Callable[[str], Any] | None = None
    ) -> None:
        """Insert a row and publish an event of the same id, at one place of one transaction. ``insert`` replaces `text`."""
        insert = insert or self.text
        event = self.publisher.event(TOPIC, CODE, len(self.claims), transactional=True)
        self.claims[event.id] = _HALF if event_first else _BEGUN
        handle = self.handle if named else None
        if not event_first:
            await insert(f"INSERT INTO machine_row VALUES ('{event.id}')")
        try:
            await self.publish(event, handle)
        except HalfmoonError as refusal:
            self.claims[event.id] = _BEGUN
            self.swallowed.append(f"{type(refusal).__name__}: {refusal}")
            self.counts[f"refused by {type(refusal).__name__}"] += 1
            return
        if event_first:
            await insert(f"INSERT INTO machine_row VALUES ('{event.id}')")
        self.claims[event.id] = _PAIRED
        self.counts["paired"] += 1
        for _ in range(times - 1):
            with suppress(HalfmoonError):  # it was published before
                await self.publish(event, handle)

    async def enter(self, block: Any) -> Any:
        """Enter a context manager, of either kind; `leave` leaves it."""
        entered = await done(block.__aenter__() if hasattr(block, "__aenter__") else block.__enter__())
        self.blocks.append(block)
        return entered

    async def leave(self, error: Exception | None = None) -> None:
        """Leave the innermost block, with an error or without."""
        if not self.blocks:
            return
        block = self.blocks.pop()
        how = (type(error), error, None) if error is not None else (None, None, None)
        try:
            with suppress(Undo):
                await done(block.__aexit__(*how) if hasattr(block, "__aexit__") else block.__exit__(*how))
        finally:
            if not self.blocks:
                self.left()

    def left(self) -> None:
        """The outermost block was left: forget the handle where it was the block's."""

    # ------------------------------------------------------------ playing

    def play(self, program: Sequence[str]) -> None:
        """Run a program and end what it left open. Raises Broken where a promise does not hold."""
        self._reset()
        self.counts["programs"] += 1
        watchdog = threading.Timer(HANGS_S, self._free)
        watchdog.daemon = True
        watchdog.start()
        try:
            contextvars.copy_context().run(self._drive, self._whole(program))
            watchdog.cancel()
            self._settle()
            wrong = self.wrong()
        finally:
            watchdog.cancel()
            self._clear()
        if wrong:
            raise Broken("\n".join([f"after {list(program)}:", *wrong, *(f"  swallowed: {text}" for text in self.swallowed)]))

    def _free(self) -> None:
        """Cut a program off that hangs, as psycopg does at the end of some pipelines."""
        self.counts["hung"] += 1
        with suppress(*ERRORS):
            self.store.cut_off()

    def _clear(self) -> None:
        """Forget a program. A connection that is open still is cut off."""
        self.bus.clear()
        self._beside(self.store.empty)

    def _drive(self, program: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that never waits: blocking providers have no event loop."""
        try:
            program.send(None)
        except StopIteration:
            return
        raise AssertionError("a blocking application waited")

    async def _whole(self, program: Sequence[str]) -> None:
        await self.steps(program)
        await self.finish()

    async def steps(self, program: Sequence[str]) -> None:
        """Run verbs one after the other."""
        for name in program:
            await self._step(VERBS[name])

    async def finish(self) -> None:
        """Leave all blocks, then close the handle without a commit."""
        for verb in (*[VERBS["leave a block"]] * len(self.blocks), VERBS["close"]):
            if verb.opens or self.opened:
                await self._step(verb)
        self.forget()
        self.store.end_prepared()

    async def _step(self, verb: Verb) -> None:
        try:
            if verb.name.startswith("open ") and self.opened:
                return
            if not verb.opens and not self.opened:
                await self.open()
            await verb.run(self)
        except HalfmoonError as error:
            self.intruders.append(f"{verb.name!r} raised {type(error).__name__}: {error}")
        except Exception as error:
            if is_mistake(error):
                raise
            self.swallowed.append(f"{verb.name}: {type(error).__name__}: {str(error).splitlines()[:1]}")

    # ------------------------------------------------------------ comparing

    def _settle(self) -> None:
        """Wait until every event is decided: by the publisher itself, or else by the broker's checks, which is counted."""
        until = time.monotonic() + self.patience_s
        while self.bus.pending and time.monotonic() < until:
            time.sleep(0.002)
        if not self.bus.pending:
            return
        self.counts["asked"] += 1
        self.sever()
        until = time.monotonic() + self.checks_s
        while self.bus.pending and time.monotonic() < until:
            self.bus.check_now()
            time.sleep(0.01)

    def committed(self, table: str = "machine_row") -> Counter[str]:
        """Return how often each id is in a table."""
        return self._beside(lambda: self.store.committed(table))

    def _beside(self, use: Callable[[], T]) -> T:
        """Use the store. A connection of the application that is in the way is cut off."""
        end = time.monotonic() + LOCKED_S  # on a busy machine a thread may take a while to let go of what was cut off
        while True:
            try:
                return use()
            except ERRORS:
                if time.monotonic() > end:
                    raise
            self.counts["left locks"] += 1
            self.sever()

    def wrong(self) -> list[str]:
        """Return a sentence for each promise that does not hold."""
        rows, visible = self.committed(), Counter(event.id for event in self.bus.events(TOPIC, CODE))
        found = list(self.intruders)
        for number, (name, claim) in enumerate(self.claims.items(), 1):
            row, seen = rows[name], visible[name]
            if seen > 1:
                found.append(f"event {number} is visible {seen} times")
            if seen and not row and claim != _HALF:
                found.append(f"event {number} is visible, its row is not committed")
            if row and not seen and claim == _PAIRED:
                found.append(f"event {number} is not visible, its row is committed")
        found += [f"undecided: {record!r}" for record in (*self.bus.pending, *self.bus.expired)]
        return found


class OnLoop(Application):
    """An application whose programs run on an event loop of its own."""

    def __init__(self, *arguments: Any) -> None:
        self.loop = asyncio.new_event_loop()
        super().__init__(*arguments)

    def _drive(self, program: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(program)

    async def publish(self, event: Event, handle: Any) -> None:
        await self.publisher.publish_async(event, session=handle)

    def shut(self) -> None:
        super().shut()
        self.loop.close()


def number_of(connection: Any) -> int:
    """Return the server's number of a driver's connection."""
    if hasattr(connection, "get_server_pid"):  # asyncpg
        return int(connection.get_server_pid())
    number = getattr(connection, "thread_id", None)  # of MariaDB's drivers
    if number is None:
        number = connection.info.backend_pid
    return int(number() if callable(number) else number)


def is_mistake(error: Exception) -> bool:
    """Return whether an error is a programming mistake of the machine or the product, not a driver's."""
    if not isinstance(error, TypeError | AttributeError | NameError | LookupError | AssertionError | NotImplementedError):
        return False
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return "halfmoon" in where or "tests/events/machine" in where
