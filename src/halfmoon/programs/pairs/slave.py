"""`Slave`: a slave that can become the master in this process: a broker then starts on its directory and listens on its port.

Decides nothing: `halfmoon.broker.copies.takeover` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.copies.takeover import Stopped
from halfmoon.errors import HalfmoonError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, broker, standby
from halfmoon.programs.embedded import start as start_programs
from halfmoon.programs.pairs.reach import reach_of
from halfmoon.programs.pairs.starting_over import StartingOver
from halfmoon.runtime.server.process import STOP_MS, Address

log = logging.getLogger("halfmoon.serve")

LOOK_S = 0.02
"""Pause between two looks at the slave."""
PAUSE_S = 1.0
"""Pause after a start that failed."""


class Slave:
    """A slave until it has taken over, then a broker, as `halfmoon.runtime.server.process.RunnableServer`.

    ``program`` is what runs now, at first the slave that is bound already.
    ``_runs``: it was not stopped here yet.
    """

    failure: str | None = None
    """Why it takes part no more; None: what runs says itself whether its disk failed."""

    def __init__(self, settings: ServerSettings, data: Path, program: Program, over: StartingOver) -> None:
        self._settings = settings._replace(broker=replace(settings.broker, port=program.port))
        self._data, self.program, self._clock = data, program, program.server.clock
        self.name, self.address = f"{settings.broker.cluster}/{settings.broker.name}", program.address
        self.connections_max = program.server.connections_max
        self.on_program: Callable[[Program], None] = lambda program: None
        self._over, self._runs, self._reach = over, True, Reach(self.address)
        self._task: asyncio.Task[None] | None = None

    @property
    def present(self) -> Program:
        """Program that runs now, or was stopped last."""
        return self.program

    def unready(self) -> str | None:
        """Return None: what runs says itself why it is not ready."""

    async def start(self) -> list[Address]:
        """Start the slave."""
        self._reach = await reach_of(self._settings.broker)
        self._met(self.program)
        bound = [address for server in self.program.servers for address in await server.start()]
        self._task = asyncio.get_running_loop().create_task(self._live())
        return bound

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly what runs now."""
        await self._end()
        if self._runs:
            await _stopped(self.program, within_ms)

    async def abort(self) -> None:
        """End as a killed process does."""
        await self._end()
        if self._runs:
            await self.program.kill()

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _live(self) -> None:
        """Be a slave until it has taken over; after a takeover that failed, be one again. Start over if the copy cannot go on."""
        while (serving := self.program.serving) is not None:
            core = self.program.standby
            assert core is not None
            while not serving.takeover.is_done and not self._over.is_due(core):
                await asyncio.sleep(LOOK_S)
            if not serving.takeover.is_done:
                await self._start_over(core.outdated or "")
                continue
            stopped = serving.takeover.stopped
            assert stopped is not None
            self._runs = False
            await _stopped(self.program, STOP_MS)
            try:
                await self._be_master(stopped)
            except (HalfmoonError, OSError) as exc:
                log.error("cannot become the master: %s", exc)
                await self._be_slave(stopped, str(exc))

    async def _be_master(self, stopped: Stopped) -> None:
        """Start a broker. Raises what `broker` does."""
        settings = self._settings._replace(broker=replace(self._settings.broker, broker_id=0))
        self.program = program = await broker(settings, self._data, clock=self._clock)
        assert program.broker is not None
        program.broker.copies.feeding.reach = self._reach
        self._runs = True
        await start_programs((program,))
        self.on_program(program)
        ms = self._clock.instant().steady - stopped.at
        log.warning("took over %s from %s: %d ms without a master", self.name, stopped.address, ms)

    def _met(self, program: Program) -> Program:
        """Have a slave look whether its master is on another machine."""
        assert program.standby is not None
        program.standby.following.reach = self._reach
        return program

    async def _start_over(self, reason: str) -> None:
        """Move the copy aside, and be a slave with an empty one."""
        self._runs = False
        await _stopped(self.program, STOP_MS)
        moved, said = False, ""
        while True:
            try:
                if not moved:
                    await self._over.run(reason)
                moved = True
                self.program = program = self._met(await standby(self._settings, self._data, self._clock))
            except (HalfmoonError, OSError) as exc:
                if (text := str(exc)) != said:
                    said = text
                    log.error("cannot start over, and tries again each second: %s", exc)
                await asyncio.sleep(PAUSE_S)
                continue
            break
        self._runs = True
        await start_programs((program,))
        self.on_program(program)

    async def _be_slave(self, stopped: Stopped, reason: str) -> None:
        """Start a slave again, which gives the master its role back."""
        while True:
            try:
                self.program = program = self._met(await standby(self._settings, self._data, self._clock))
            except (HalfmoonError, OSError) as exc:
                log.error("cannot become a slave again: %s", exc)
                await asyncio.sleep(PAUSE_S)
                continue
            break
        self._runs = True
        assert program.serving is not None
        program.serving.takeover.give_back_first(stopped, reason)
        await start_programs((program,))
        self.on_program(program)


async def _stopped(program: Program, within_ms: int) -> None:
    """Stop what runs cleanly, and give the directory back."""
    for server in reversed(program.servers):
        await server.stop(within_ms)
    await program.close()


async def slave(settings: ServerSettings, data: Path, *, resync: bool = False) -> Program:
    """Return a slave that can become the master, bound. ``resync``: it starts over where its copy cannot go on.

    Raises as `halfmoon.programs.embedded.standby` does; OSError.
    """
    over = StartingOver(settings, data, wanted=resync)
    over.begin()
    program = await standby(settings, data)
    return program._replace(pair_member=Slave(settings, data, program, over))
