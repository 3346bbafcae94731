"""`Member`: one of two brokers of a name: follows the master, or is it, as the lease says, and changes its role in this process.

A life begins as a follower of whoever has the lease. Once this member has it, the copy is closed and a broker starts on its
directory. When the lease is lost the broker ends as a killed process does, for nothing more may be answered, and the next life
begins. A master whose disk failed gives the lease to its follower, and begins no other life until the process is started again.
Decides nothing: `halfmoon.broker.pairs.lease` does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from halfmoon.broker.copies.copies import SPARE, UNWRITABLE
from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.pairs.lease import Lease, Outcome, Role, Step
from halfmoon.broker.settings import BrokerRole, BrokerSettings
from halfmoon.errors import HalfmoonError, LeaseUnavailable, SettingError
from halfmoon.instant import Steady
from halfmoon.ports import LeaseStore
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, broker, standby
from halfmoon.programs.embedded import start as start_programs
from halfmoon.programs.pairs.reach import reach_of
from halfmoon.programs.pairs.starting_over import StartingOver
from halfmoon.programs.ports import server_on
from halfmoon.programs.resources.directory import random_source
from halfmoon.programs.resources.outgoing import own_account
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS
from halfmoon.runtime.leases import lease_store
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.process import STOP_MS, Address
from halfmoon.runtime.server.server import CONNECTIONS_MAX, Server
from halfmoon.store.checkpoint import lost_power
from halfmoon.store.epochs import Epochs
from halfmoon.store.layout import LOCK
from halfmoon.store.log.cutting import cut_log

log = logging.getLogger("halfmoon.serve")

PROOF_MS = 2_000
"""Longest wait for the write of the lease that shows, before a switch, that it can be handed over."""
PAUSE_S = 1.0
"""Pause after a life that failed."""
LOOK_S = 0.1
"""Longest time between two looks at what a follower says."""
STEP_S = 0.05
"""Longest time between two looks at what is to do for the lease."""


class Member:
    """A member of a pair, as `halfmoon.runtime.server.process.RunnableServer`.

    ``program`` is what runs now; None: between two roles. ``on_program`` is called with each one once it is started.
    """

    connections_max = CONNECTIONS_MAX

    def __init__(self, settings: ServerSettings, data: Path, leases: LeaseStore, *, resync: bool = False) -> None:
        own = settings.broker
        self._settings, self._data, self._leases = settings, data, leases
        self._over = StartingOver(settings, data, wanted=resync)
        self.name, self.address = f"{own.cluster}/{own.name}", f"{own.address}:{own.port}"
        self.clock, self._reach = Clock(monotonic=_since_boot_ns), Reach(self.address)
        self.lease: Lease | None = None
        self.program: Program | None = None
        self.on_program: Callable[[Program], None] = lambda program: None
        self.problem: str | None = None
        """Why this member neither follows nor serves; None: it does."""
        self.failure: str | None = None
        """Why the disk of this member failed when it was the master; None: it did not. It takes part no more then."""
        self._changed = asyncio.Event()
        self._stopping = False
        self._life: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="halfmoon-lease")

    @property
    def present(self) -> Program | None:
        """Program that runs now; None: between two roles."""
        return self.program

    @property
    def is_master(self) -> bool:
        """Return whether a broker serves here."""
        return self.program is not None and self.program.broker is not None

    def unready(self) -> str | None:
        """Return why this member neither follows nor serves now; None: it does."""
        return self.problem or ("it changes its role" if self.program is None else None)

    # ------------------------------------------------------------ life

    async def start(self) -> list[Address]:
        """Begin the first life."""
        self._reach = await reach_of(self._settings.broker)
        self._life = asyncio.get_running_loop().create_task(self._live())
        return []

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly: a master has its follower copy the end, and releases the lease to it."""
        self._stopping = True
        if self._life is not None:
            self._life.cancel()
            with suppress(asyncio.CancelledError):
                await self._life
        if not await self._hand_over(within_ms, "this process stops") and self.lease is not None:
            log.warning("pair %s: the lease was not handed over, and ends by itself: %s", self.name, self._why_not(self.lease))
        await self._end_keeping()
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._leases.close)

    async def abort(self) -> None:
        """End as a killed process does."""
        self._stopping = True
        for task in (self._life, self._keeping):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self.program is not None:
            await self.program.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _hand_over(self, within_ms: int, why: str, *, once: bool = False) -> bool:
        """End the role of a master: nothing more is acknowledged, then whoever has everything may take the lease at once.

        Return False if the lease is this member's still. ``once``: it does not try again.
        """
        program, lease, is_released = self.program, self.lease, True
        self.program = None
        other = None if program is None else _follower(program)  # while it is connected still
        for server in () if program is None else reversed(program.servers):
            await server.stop(within_ms)
        if lease is not None and lease.role is Role.MASTER:
            is_released = await self._release(lease, other or lease.member, within_ms, why, once=once)
        if program is not None:
            await program.close()
        return is_released

    async def _release(self, lease: Lease, to: str, within_ms: int, why: str, *, once: bool = False) -> bool:
        """Let a member take the lease at once; return whether that is written. There is no sense in it once the lease has ended."""
        until = min(self._now() + within_ms, lease.valid_until)
        lease.release(to, self._now(), why)
        self._changed.set()
        while not lease.is_handed_over and (not lease.is_released or lease.is_busy):
            if self._now() >= until or (once and lease.has_failed):
                return False
            await asyncio.sleep(0.01)
        return lease.is_handed_over

    def _why_not(self, lease: Lease) -> str:
        return lease.problem or ("its system does not answer" if lease.is_busy else "another member has it")

    async def _switch(self, program: Program, lease: Lease) -> bool:
        """Hand the lease over to the follower, as an operator wants; return whether this member is no master any more.

        It goes on if the lease's system takes no writes: nothing is closed before it took one, and if it fails just then, the
        master begins again as soon as a renewal shows that nobody has taken the lease.
        """
        core, until = program.broker, self._now() + PROOF_MS
        assert core is not None
        lease.prove(self._now())
        while lease.proof is None and self._now() < until:
            await asyncio.sleep(0.01)
        if lease.proof is not True:
            core.copies.switched(UNWRITABLE.format(self._why_not(lease)))
            program.server.wake()
            return False
        core.copies.switched(None)
        program.server.wake()
        is_released = await self._hand_over(STOP_MS, "an operator switches the master", once=True)
        await program.join()
        if is_released:
            return True
        log.warning("pair %s: the lease was not handed over, and its holder tries to keep it: %s", self.name, self._why_not(lease))
        lease.reclaim(self._now())
        while lease.role is Role.MASTER and not lease.may_serve(self._now()):
            lease.check(self._now())
            await asyncio.sleep(0.01)
        if lease.role is Role.MASTER:
            log.warning("this broker is the master still: broker=%s epoch=%d", self.name, lease.epoch)
        return True

    async def _live(self) -> None:
        while self.failure is None:
            try:
                await self._once()
            except (HalfmoonError, OSError) as exc:
                self._said(str(exc))
                await asyncio.sleep(PAUSE_S)
            except Exception:
                log.exception("a member of a pair failed")
                await asyncio.sleep(PAUSE_S)
            finally:
                if not self._stopping and self.program is not None:
                    program, self.program = self.program, None
                    await program.kill()
                    await program.join()
                if not self._stopping and self.lease is not None:
                    self.lease.end(self.problem or "it failed")

    def _said(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("pair %s: %s", self.name, problem)
        self.problem = problem

    async def _once(self) -> None:
        """Live once: follow, then serve."""
        await self._end_keeping()
        epochs = self._epochs()
        last = epochs.rows[-1] if epochs.rows else None
        self.lease = lease = Lease(
            epochs.member, self.name, self.address, self._settings.broker.lease_ms, self._now(), is_whole=not epochs.lost,
            last_epoch=last.epoch if last else 0, was_master=last is not None and last.member == epochs.member,
            is_restored=epochs.is_restored,
        )  # fmt: skip
        self._keeping = asyncio.get_running_loop().create_task(self._keep(lease))
        await self._follow(lease)
        while lease.role is Role.MASTER:
            await self._serve(lease)

    def _epochs(self) -> Epochs:
        """Return the epochs of the directory. A power loss is noted before the store forgets it. Waits for the disk.

        Raises StoreLocked: another process has the directory, and so is this member.
        """
        disk = RealDisk(self._data, PERMISSIONS[self._settings.store.readable_by])
        disk.lock(LOCK).release()
        self._over.begin()
        epochs = Epochs.load(disk, random_source())
        epochs.begin_run(lost_power=lost_power(disk), sync_flush=self._settings.store.sync_flush, pair=self.name)
        return epochs

    async def _follow(self, lease: Lease) -> None:
        """Follow the master until this member has the lease, or had it: its time may be over at once. Nothing runs then."""
        while True:
            program = await standby(self._settings, self._data, self.clock, pair_master="")
            core = program.standby
            assert core is not None
            core.following.promise, core.following.reach = partial(self._promised, lease, core.epochs), self._reach
            await start_programs((program,))
            self.program = program
            self.on_program(program)
            await self._until_it_ends(lease, core)
            self.program = None
            for server in reversed(program.servers):
                await server.stop()
            await program.close()
            await program.join()
            if self._over.is_due(core, may=lease.may_start_over):
                await self._over.run(core.outdated or "")
                return
            if lease.has_namesake:
                log.warning("pair %s: another member has the id of this directory, which is a copy: it gets a new id", self.name)
                core.epochs.rename(random_source())
            if core.cut_at is None:
                return
            disk = RealDisk(self._data, PERMISSIONS[self._settings.store.readable_by])
            await asyncio.to_thread(cut_log, disk, replace(self._settings.store, data=str(self._data)), core.cut_at)

    async def _until_it_ends(self, lease: Lease, core: Standby) -> None:
        """Tell a follower who the master is, until this member has the lease, or its log has to be cut, or to start over."""
        was_connected, spare_at, lasts_ms = False, self._now(), 2 * self._settings.broker.lease_ms
        while lease.role not in (Role.MASTER, Role.ENDED) and core.cut_at is None and not lease.has_namesake:
            if self._over.is_due(core, may=lease.may_start_over):
                return
            record = lease.record
            is_others = lease.role is Role.FOLLOWER and record is not None and record.address
            core.pair_master = record.address if is_others and record is not None else ""
            self._reach.met_namesake(core.pair_master)
            if was_connected and not core.following.is_connected:
                lease.look(self._now())
            was_connected = core.following.is_connected
            if not (lease.is_spare and was_connected):  # one that takes the place of another is one too many for a moment
                core.is_spare, spare_at = False, self._now()
            elif not core.is_spare and self._now() - spare_at >= lasts_ms:
                core.is_spare = True
                log.warning("pair %s: this member is %s, and two others are in it: stop it, or one of them", self.name, SPARE)
            self.problem = core.unready() if lease.problem is None else f"lease: {lease.problem}"
            await self._wait(LOOK_S)

    def _promised(self, lease: Lease, epochs: Epochs, now: Steady) -> None:
        lease.promise(now)
        if epochs.lost:
            try:
                epochs.found()
            except OSError as exc:
                log.warning("pair %s: %s", self.name, exc)

    async def _serve(self, lease: Lease) -> None:
        """Serve as the master until the lease is lost, or handed over."""
        program = await broker(self._settings, self._data, lease=lease, clock=self.clock)
        core = program.broker
        assert core is not None
        for server in (program.server, program.slaves):
            if server is not None:
                server.valid = lambda: lease.may_serve(self._now())
        core.copies.feeding.reach = self._reach
        self.program, self.problem = program, None
        if lease.may_serve(self._now()):
            await start_programs((program,))
            self.on_program(program)
        while lease.may_serve(self._now()) and self.program is program:
            if program.slaves is not None:
                program.slaves.wake()
            core.copies.problem = lease.problem
            if core.store.failure is not None and (other := _follower(program)) is not None:
                await self._fail(program, lease, other, core.store.failure)
                return
            if core.copies.is_switching and await self._switch(program, lease):
                return
            await self._wait(LOOK_S)
        lease.check(self._now())  # a call of the store may hang, and with it what ends the role
        if self.program is program:
            self.program = None
            await program.kill()
            await program.join()

    async def _fail(self, program: Program, lease: Lease, other: str, failure: str) -> None:
        """End the role of a master whose disk failed: nothing more is answered, then the other member takes the lease."""
        self.failure = failure
        self._said(f"the disk of this member failed, and the other takes over: {failure}; mend it and start this member again")
        self.program = None
        try:
            await program.kill()
        finally:
            if not await self._release(lease, other, STOP_MS, "its disk failed"):
                log.warning("pair %s: the lease was not handed over, and ends by itself: %s", self.name, self._why_not(lease))
        await program.join()

    # ------------------------------------------------------------ lease

    async def _keep(self, lease: Lease) -> None:
        """Carry out the steps of the lease."""
        loop = asyncio.get_running_loop()
        while True:
            step = lease.step(self._now())
            if step is None:
                due = lease.due(self._now())
                # Pairs and followers change what is due at any moment, so it is looked at again soon.
                await asyncio.sleep(STEP_S if due is None else min(max(0.0, (due - self._now()) / 1000), STEP_S))
                continue
            outcome = await loop.run_in_executor(self._thread, self._call, step)
            lease.done(outcome, self._now())
            self._changed.set()

    def _call(self, step: Step) -> Outcome:
        """Carry out a step in a thread."""
        timeout_ms = max(self._settings.broker.lease_ms // 4, 200)
        try:
            if step.text is not None:
                return Outcome(version=self._leases.write(step.text, step.expected, timeout_ms))
            found = self._leases.read(timeout_ms)
            return Outcome() if found is None else Outcome(found.text, found.version)
        except LeaseUnavailable as exc:
            return Outcome(error=str(exc))
        except Exception as exc:
            log.exception("the lease failed")
            return Outcome(error=f"{type(exc).__name__}: {exc}")

    async def _end_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def _now(self) -> Steady:
        return Steady(self.clock.steady())


def _follower(program: Program) -> str | None:
    """Return the member that could take over from this master now; None: there is none, or this is none."""
    pair = None if program.broker is None else program.broker.copies.pair
    return None if pair is None else pair.follower


def _since_boot_ns() -> int:
    """Return a steady time that goes on while the machine sleeps: a lease does, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _without_effect(own: BrokerSettings) -> dict[str, bool]:
    """Return the settings of a role that a member of a pair may not have, and whether each is given."""
    return {"brokerRole": own.role is not BrokerRole.ASYNC_MASTER, "brokerId": own.broker_id != 0}


async def member(settings: ServerSettings, data: Path, *, resync: bool = False) -> Program:
    """Return a member of the pair that the settings name, which runs once it is started.

    ``resync``: as a follower it starts over where its copy cannot go on.

    Raises:
        SettingError: the lease is malformed, or the port is not given: the other member must find it.
        PortTaken, StoreLocked: it could not serve when its time comes.
    """
    own = settings.broker
    if not own.port:
        raise SettingError("a member of a pair needs a port of its own: set broker.port (--broker-port)")
    if not own.nameserver:
        log.warning("broker %s has no name server, so clients do not find it: give --nameserver or HALFMOON_NAMESERVER", own.name)
    if own.acl_enable and own_account() is None:
        log.warning(
            "pair %s/%s: access control is on, and this member has no account, so it could not follow the other one:"
            " set HALFMOON_ACCESS_KEY and HALFMOON_SECRET_KEY to those of an administrator", own.cluster, own.name,
        )  # fmt: skip
    idle = [key for key, is_given in _without_effect(own).items() if is_given]
    if idle:
        log.warning("pair %s/%s: the lease says who is the master, and has no use for: %s", own.cluster, own.name, ", ".join(idle))
        settings = settings._replace(broker=replace(own, role=BrokerRole.ASYNC_MASTER, broker_id=0))
    found = Member(settings, data, lease_store(own.lease, f"{own.cluster}/{own.name}"), resync=resync)
    for port in (own.port, own.slave_port or own.port + 1):
        await (await server_on(settings.host, port, lambda _host, _port: NullCore(), found.clock, None)).abort()
    RealDisk(data, PERMISSIONS[settings.store.readable_by]).lock(LOCK).release()
    server = Server(NullCore(), [], found.clock, busy_poll_us=0)
    return Program(server, settings.host, own.port, pair_member=found)
