"""Consumers with ``dedup=``: the program runs inside the function, after its effect.

An event is acknowledged if and only if its effect was committed. What a function commits by itself before it fails stays, and is
done again: only then may an effect be there twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfmoon.events import Consumers, Publisher, on
from tests.events.machine.application import CODE, Application
from tests.events.machine.dbapi import Connections
from tests.events.machine.django_blocks import Alias
from tests.events.machine.sessions import Blocks, Sessions
from tests.events.machine.verbs import verb

CONSUMED_TOPIC, CONSUMERS = "TP_CONSUMED", "S_machine"


class Consuming(Application):
    """An application whose programs run in a consumer's function, the first time that it is called."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.traits = self.traits | {"consuming"}  # type: ignore[misc]  # each object is of one driver
        self.sender = Publisher("P_sender", transport=self.bus)

        @on(CONSUMERS, CONSUMED_TOPIC, CODE, dedup=self._dedup())
        def consume(event: Any, context: Any) -> None:
            self._consume(event, context)

        self.consumers = Consumers(consume, bus=self.bus)
        self.consumers.start()

    def shut(self) -> None:
        self.consumers.close()
        self.sender.close()
        super().shut()

    def _dedup(self) -> Any:
        """What ``dedup=`` names."""
        raise NotImplementedError

    def _lend(self, session: Any) -> None:
        """Take what the function is given as the handle."""
        raise NotImplementedError

    async def _whole(self, program: Sequence[str]) -> None:
        self.program, self.calls, self.early, self.wrongs = program, 0, False, []
        event = self.sender.publish(CONSUMED_TOPIC, CODE, {})
        self.bus.deliver()
        self.forget()
        consumed, effects = self._state(event.event_id)
        if consumed and effects != 1:
            self.wrongs.append(f"acknowledged with {effects} effects")
        for _ in range(5):
            if not self._state(event.event_id)[0]:
                self._restart()  # what the first call left may hold locks, in a pool or without a connection
                self.bus.redeliver()
        self._restart()
        again, effects = self._state(event.event_id)
        if again != 1 or effects not in ({1, 2} if self.early and not consumed else {1}):
            self.wrongs.append(f"at the end consumed {again} times, with {effects} effects")

    def _restart(self) -> None:
        """Lose all that a call left, as the end of its process does."""
        self.forget()
        self.sever()
        self.store.end_prepared()

    def _state(self, event_id: str) -> tuple[int, int]:
        consumed = sum(event.id == event_id for event in self.bus.consumed(CONSUMERS))
        return consumed, self.committed("machine_effect")[event_id]

    def _consume(self, event: Any, context: Any) -> None:
        self.calls += 1
        self._lend(context.session)
        try:
            self._drive(self._called(event.id, self.program if self.calls == 1 else ()))
        except Escape as escape:
            raise ValueError("the function fails") from escape

    async def pair(self, *, named: bool = False, **options: Any) -> None:
        """Name a handle of the program's own: beside it the one that the function was given is open."""
        await super().pair(named=named or self.handle is not self.given, **options)

    async def _called(self, event_id: str, program: Sequence[str]) -> None:
        self.given = self.handle
        await self.text(f"INSERT INTO machine_effect VALUES ('{event_id}')")
        try:
            await self.steps(program)
        finally:
            while self.blocks:
                await self._step_quietly(self.leave())
            if self.opened and self.handle is not self.given:
                await self._step_quietly(self.close())
            self.early = self.early or self.committed("machine_effect")[event_id] > 0

    async def _step_quietly(self, step: Any) -> None:
        try:
            await step
        except Exception as error:
            self.swallowed.append(f"end of the function: {error!r:.100}")

    def wrong(self) -> list[str]:
        return [*self.wrongs, *super().wrong()]


class ConsumingSessions(Consuming, Sessions):
    """``dedup=sessionmaker``."""

    def _dedup(self) -> Any:
        return self.maker

    def _lend(self, session: Any) -> None:
        self.session = session


class ConsumingBlocks(Consuming, Blocks):
    """``dedup=engine``."""

    def _dedup(self) -> Any:
        return self.engine

    def _lend(self, session: Any) -> None:
        self.session = session


class ConsumingConnections(Consuming, Connections):
    """``dedup=provider``."""

    def _dedup(self) -> Any:
        return self.database

    def _lend(self, session: Any) -> None:
        self.proxied(session)


class ConsumingAlias(Consuming, Alias):
    """``dedup="alias"``."""

    def _dedup(self) -> Any:
        return self.using

    def _lend(self, session: Any) -> None:
        self.open_now = True


@verb("consuming", weight=3)
async def fail(app: Consuming) -> None:
    """End the function with an error."""
    raise Escape


class Escape(BaseException):
    """Ends a function: no application swallows it."""
