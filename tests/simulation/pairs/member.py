"""`SimMember`: a member of a pair in virtual time. It takes the steps of `halfmoon.programs.pairs.member.Member` in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.pairs.lease import Lease, Outcome, Role
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import CoreEffect, Op, Write
from halfmoon.errors import ConnectFailed, HalfmoonError
from halfmoon.instant import Instant, Steady
from halfmoon.store.checkpoint import lost_power
from halfmoon.store.epochs import Epochs
from halfmoon.store.log.cutting import cut_log
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.testing.disk import SimDisk, Stopped
from halfmoon.testing.network import End
from halfmoon.testing.timeline import Timeline
from tests.simulation.pairs.leases import SimLeases
from tests.simulation.pairs.processes import PairNetwork, Process, ProcessHost

PORT, SLAVE_PORT = 10911, 10912
LOOK_US, PAUSE_US, CONNECT_US, KEEP_US, STOP_US = 100_000, 1_000_000, 5_000_000, 50_000, 10_000_000


class SimMember:
    """One member: its machine, disk and process. ``answers`` is called whenever its broker sends something to clients."""

    def __init__(
        self, timeline: Timeline, network: PairNetwork, leases: SimLeases, number: int, store: StoreSettings,
        broker: dict[str, Any],
    ) -> None:  # fmt: skip
        self.name, self.host, self.copies_host = "ab"[number], f"10.0.0.{number + 1}", f"10.0.1.{number + 1}"
        self.address = f"{self.host}:{PORT}"
        self._timeline, self._network, self._leases = timeline, network, leases
        self._random = timeline.split(f"member {self.name}")
        self._store = store
        self._settings = BrokerSettings(
            name="broker-a", address=self.host, port=PORT, slave_address=self.copies_host, slave_port=SLAVE_PORT, **broker
        )
        self.disk = SimDisk(timeline.split(f"disk {self.name}"))
        self.process = Process(timeline, (self.host, self.copies_host), self._random.randint(-10_000, 10_000))
        network.processes |= dict.fromkeys(self.process.hosts, self.process)
        self._client, self._copies = (
            ProcessHost(self.process, network, host, [port], f"{self.name}/{port}")
            for host, port in ((self.host, PORT), (self.copies_host, SLAVE_PORT))
        )
        self._copy = ProcessHost(self.process, network, self.host, [], f"{self.name}/copy")
        self._hosts = self._client, self._copies, self._copy
        for host in self._hosts:
            host.on_stopped = self.kill
        self.is_running = False
        self.answers: Callable[[], None] = lambda: None
        self.lease: Lease | None = None
        self.problem: str | None = None
        self._life = 0
        """Grows with each life, and with each end of one: what was left from another is not carried out."""
        self._standby: Standby | None = None
        self.broker: Broker | None = None
        self._was_connected = self._is_leaving = False

    @property
    def store(self) -> Store | None:
        """Return the store that is open; None: none is."""
        core = self.broker or self._standby
        return None if core is None else core.store

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        """Start the process."""
        self.is_running, self.is_stopping = True, False
        self._timeline.note(self.name, "process starts")
        for host in self.process.hosts:
            self._network.power_on(host)
        self._live()

    def kill(self, *, power: bool = False) -> None:
        """End the process at once, or the machine's power."""
        self.process = self._renewed()
        self.is_running, self.lease = False, None
        self._end(power=power)
        self._timeline.note(self.name, "loses power" if power else "process is killed")

    def _renewed(self) -> Process:
        self.process.is_paused = False
        self.process._held.clear()
        return self.process

    def _end(self, *, power: bool = False) -> None:
        """End the life: nothing more is answered, told or saved, and the directory is free."""
        self._life += 1
        self._standby = self.broker = None
        self._is_leaving = False
        for host in self._hosts:
            host._end_life()
        for name in self.process.hosts:
            (self._network.power_off if power else self._network.kill)(name)
        self.disk.crash(power=power)

    def _later(self, us: int, action: Callable[[], None]) -> None:
        """Do something later in this life. What it raises ends the life, or the process."""
        self.process.after_us(us, partial(self._in_life, self._life, action))

    def _in_life(self, life: int, action: Callable[[], None]) -> None:
        if life != self._life or not self.is_running:
            return
        try:
            action()
        except Stopped as stopped:
            self.stopped(stopped)
        except (HalfmoonError, OSError) as exc:
            self.problem = str(exc)
            self._timeline.note(self.name, f"life fails: {exc}")
            self._end()
            self._later(PAUSE_US, self._live)

    # ------------------------------------------------------------ a life

    def _live(self) -> None:
        self._life += 1
        self._in_life(self._life, self._once)

    def _once(self) -> None:
        self.disk.now_ms = self.process.clock.now()
        epochs = Epochs.load(self.disk, self._random)
        epochs.begin_run(lost_power=lost_power(self.disk), sync_flush=self._store.sync_flush, pair="pair/broker-a")
        last = epochs.rows[-1] if epochs.rows else None
        self.lease = Lease(
            epochs.member, "pair/broker-a", self.address, self._settings.lease_ms, self._now(), is_whole=not epochs.lost,
            last_epoch=last.epoch if last else 0, was_master=last is not None and last.member == epochs.member,
        )  # fmt: skip
        self._keep(self.lease)
        self._follow()

    def _follow(self) -> None:
        lease, epochs = self.lease, Epochs.load(self.disk, self._random)
        assert lease is not None
        self._standby = core = Standby(self._settings, self._store, self.disk, epochs, self._instant())
        core.pair_master = ""
        core.following.promise = lambda now: self._promised(lease, epochs, now)
        keep = core.keep
        core.keep = lambda: self._guarded(keep())  # type: ignore[method-assign]
        self._copy.boot(lambda now: Following(self, core))
        self._was_connected = False
        self._later(0, self._connect)
        self._look()

    def _guarded(self, operation: Op[None]) -> Op[None]:
        """Run an operation in which the process may be stopped in a write."""
        try:
            yield from operation
        except Stopped as stopped:
            self.stopped(stopped)

    def stopped(self, stopped: Stopped) -> None:
        """End a process that was stopped in a write."""
        self._timeline.note(self.name, f"is stopped in a write to {stopped}")
        self.kill()

    def _promised(self, lease: Lease, epochs: Epochs, now: Steady) -> None:
        lease.promise(now)
        if epochs.lost:
            try:
                epochs.found()
            except OSError as exc:
                self._timeline.note(self.name, f"{exc}")

    def _look(self) -> None:
        """Look at the lease, again and again."""
        if self._is_leaving:
            return
        lease, standby, broker = self.lease, self._standby, self.broker
        assert lease is not None
        if standby is not None:
            if lease.role in (Role.MASTER, Role.ENDED) or standby.cut_at is not None:
                self._is_leaving = True
                self._copy.stop(partial(self._in_life, self._life, lambda: self._followed(standby, lease)))
                return
            record = lease.record
            is_others = lease.role is Role.FOLLOWER and record is not None and record.address
            standby.pair_master = record.address if is_others and record is not None else ""
            if self._was_connected and not standby.following.is_connected:
                lease.look(self._now())
            self._was_connected = standby.following.is_connected
            self.problem = standby.unready() if lease.problem is None else f"lease: {lease.problem}"
        elif broker is not None:
            if not lease.may_serve(self._now()):
                self._next_life()
                return
            self._copies.wake()
            broker.copies.problem = lease.problem
        self._later(LOOK_US, self._look)

    def _followed(self, standby: Standby, lease: Lease) -> None:
        standby.close(self._instant())
        self._standby, self._is_leaving = None, False
        self.disk.crash(power=False)
        if standby.cut_at is not None:
            self._timeline.note(self.name, f"cuts its log at {standby.cut_at}")
            cut_log(self.disk, self._store, standby.cut_at)
            self._follow()
        elif lease.role is Role.MASTER:
            self._serve(lease)
        else:
            self._next_life()

    def _serve(self, lease: Lease) -> None:
        chance = self._timeline.split(f"{self.name} {self._life}")
        made = Broker(self._settings, self._store, self.disk, chance, self._instant(), None, lease)
        if not lease.may_serve(self._now()):
            self._next_life()
            return
        self.broker, feeding = made, made.copies.feeding
        feeding.wake, feeding.on_copied = self._copies.wake, self._client.wake
        self._client.boot(lambda now: Serving(self, made, lease, self.answers))
        self._copies.boot(lambda now: Serving(self, feeding, lease, lambda: None))
        self._look()

    def _next_life(self) -> None:
        self._timeline.note(self.name, "serves no more")
        self._end()
        self._later(0, self._live)

    def invalid(self) -> None:
        """Answer nothing more: the lease is over."""
        self._next_life()

    # ------------------------------------------------------------ the connection to the master

    def _connect(self) -> None:
        standby = self._standby
        if standby is None or self._is_leaving:
            return
        following, life = standby.following, self._life
        if following.is_connected or following.master is None:
            self._later(PAUSE_US, self._connect)
            return
        address, is_over = following.master, False

        def done(found: End | ConnectFailed | None) -> None:
            nonlocal is_over
            if is_over or life != self._life or standby is not self._standby:
                if isinstance(found, End):
                    found.close()
                return
            is_over = True
            if isinstance(found, End) and found.open:
                self._copy.attach(found)
            else:
                following.refused(address, "no answer")
            self._later(PAUSE_US, self._connect)

        self._network.connect(self.host, address, done)
        self._later(CONNECT_US, lambda: done(None))

    # ------------------------------------------------------------ the lease

    def _keep(self, lease: Lease) -> None:
        if lease is not self.lease:
            return
        step = lease.step(self._now())
        if step is None:
            due = lease.due(self._now())
            wait_us = 1_000_000 if due is None else max(0, due - self._now()) * 1000
            self._later_of(lease, min(wait_us, KEEP_US), lambda: self._keep(lease))
        else:
            self._leases.call(self.name, step, lambda outcome: self._later_of(lease, 0, lambda: self._done(lease, outcome)))

    def _later_of(self, lease: Lease, us: int, action: Callable[[], None]) -> None:
        self.process.after_us(us, lambda: action() if lease is self.lease else None)

    def _done(self, lease: Lease, outcome: Outcome) -> None:
        lease.done(outcome, self._now())
        if not self._is_leaving:
            self._later(0, self._look_once)
        self._keep(lease)

    def _look_once(self) -> None:
        if self.broker is not None:
            self._copies.wake()

    # ------------------------------------------------------------ clean ends

    def hand_over(self, *, stop: bool) -> None:
        """Give the lease to the other member, and follow it, or stop; a follower just stops."""
        lease, broker = self.lease, self.broker
        if self._is_leaving or lease is None or (broker is None and not stop):
            return
        self._timeline.note(self.name, "is to stop" if stop else "is to hand over")
        if broker is None:
            self.kill()
            return
        self._is_leaving = True

        def released() -> None:
            lease.release(next(iter(_others(lease)), lease.member), self._now(), "it is to stop")
            self._await_release(lease, broker, stop, self._timeline.now_us + STOP_US)

        self._client.stop(lambda: self._copies.stop(released))

    def _await_release(self, lease: Lease, broker: Broker, stop: bool, until_us: int) -> None:
        is_under_way = not lease.is_handed_over and (not lease.is_released or lease.is_busy)
        if is_under_way and self._timeline.now_us < until_us and (stop or not lease.has_failed):
            self._later(10_000, lambda: self._await_release(lease, broker, stop, until_us))
            return
        broker.close(self._instant())
        if stop:
            self.kill()
        elif lease.is_handed_over:
            self._next_life()
        else:
            self.broker = None
            self.disk.crash(power=False)
            lease.reclaim(self._now())
            self._await_reclaim(lease)

    def _await_reclaim(self, lease: Lease) -> None:
        """Serve again once the lease is this member's for sure."""
        lease.check(self._now())
        if lease.role is not Role.MASTER:
            self._next_life()
        elif lease.may_serve(self._now()):
            self._timeline.note(self.name, "serves on")
            self._is_leaving = False
            self._serve(lease)
        else:
            self._later(10_000, lambda: self._await_reclaim(lease))

    # ------------------------------------------------------------ times

    def _instant(self) -> Instant:
        return self.process.clock.instant()

    def _now(self) -> Steady:
        return self._instant().steady


def _others(lease: Lease) -> list[str]:
    record = lease.record
    return [] if record is None else [member for member in record.in_sync if member != lease.member]


class Serving:
    """A core of a master: it is not heard once the lease is over."""

    def __init__(self, member: SimMember, core: Any, lease: Lease, answers: Callable[[], None]) -> None:
        self._member, self._core, self._lease, self._answers = member, core, lease, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def effects(self) -> list[CoreEffect]:
        """Take out the effects; none once the lease is over."""
        if not self._lease.may_serve(self._member.process.clock.instant().steady):
            self._member.invalid()
            return []
        effects: list[CoreEffect] = self._core.effects()
        if any(isinstance(effect, Write) for effect in effects):
            self._answers()
        return effects


class Following:
    """The core of a follower, whose process may be stopped in a write as soon as bytes come."""

    def __init__(self, member: SimMember, core: Standby) -> None:
        self._member, self._core = member, core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def feed(self, peer: int, data: bytes) -> None:
        """Append what the master sent."""
        try:
            self._core.feed(peer, data)
        except Stopped as stopped:
            self._member.stopped(stopped)
