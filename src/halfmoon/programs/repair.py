"""Mends a stopped store: carries out a plan (`halfmoon.store.check.repair`) with a start and a stop of a broker in the middle.

The broker that is started has no sockets and no name server, and no time passes for it: it recovers what its start recovers and
stops again. It delivers, checks and expires nothing. The caller holds no lock: the start takes it, as any other does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Work
from halfmoon.errors import StoreError
from halfmoon.instant import instant
from halfmoon.ports import Disk
from halfmoon.programs.backup import copy_stopped
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.ownership import as_owner_of
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS
from halfmoon.store.check.aside import Aside
from halfmoon.store.check.fsck import Problem, Progress, as_in_directory, fsck
from halfmoon.store.check.repair import Plan, Say, plan_repair, prepare, seal_log, set_index_aside
from halfmoon.store.layout import LOCK
from halfmoon.store.opening import carry_out
from halfmoon.store.settings import StoreSettings

__all__ = ["Plan", "repair", "repair_directory"]

ROUNDS_MAX = 3
"""Plans that one repair carries out at most: where files of the log are missing, the second is about what lay in them."""

Agree = Callable[[Plan], bool]
"""Is shown a plan, and says whether to carry it out."""


def repair(
    disk: Disk, broker: BrokerSettings, store: StoreSettings, now: int, *, agree: Agree, say: Say, progress: Progress | None = None
) -> list[Problem]:
    """Check a store, mend it in up to `ROUNDS_MAX` rounds, and return the problems that are left.

    They are those of the first check if ``agree`` declines. No broker gets in between a check and the repair of what it found.
    Waits for the device. Raises StoreLocked: a broker runs on it. StoreError: it does not open even so, or a file of the log was
    put back while ``agree`` thought. OSError.
    """
    for _ in range(ROUNDS_MAX):
        aside = Aside(disk, now, say)
        with _locked(disk):
            left = _certain(disk, store, progress)
            plan = plan_repair(disk, store, left)
            if not plan.needed or not agree(plan):
                return left
            aside.bound()
            prepare(disk, store, plan, aside)
        _finish(disk, broker, store, plan, now, aside)
    with _locked(disk):
        return _certain(disk, store, progress)


def _finish(disk: Disk, broker: BrokerSettings, store: StoreSettings, plan: Plan, now: int, aside: Aside) -> None:
    """Carry out what a plan has after `prepare`."""
    say = aside.say
    say("a broker is started on it, so that it recovers and rebuilds, and is stopped again")
    _start_and_stop(disk, broker, store, now)
    if plan.damage or plan.new_files or plan.short_files:
        with _locked(disk):
            seal_log(disk, store, aside)
    if plan.index is not None:
        with _locked(disk):
            set_index_aside(disk, aside)
        say("the key index is made anew")
        _start_and_stop(disk, broker, store, now)


def _certain(disk: Disk, store: StoreSettings, progress: Progress | None) -> list[Problem]:
    return [problem for problem in fsck(disk, store, progress) if problem.certain]


@contextmanager
def _locked(disk: Disk) -> Iterator[None]:
    """Keep others out. Raises StoreLocked."""
    lock = disk.lock(LOCK)
    try:
        yield
    finally:
        lock.release()


def _start_and_stop(disk: Disk, settings: BrokerSettings, store: StoreSettings, now: int) -> None:
    """Start a broker without a network on a directory, have it index all keys, and stop it."""
    at = instant(now)
    broker = Broker(replace(settings, nameserver=""), as_in_directory(disk, store), disk, Random(now), at)
    while broker.store.maintenance.index_more(now, broker.store.end_offset):
        pass
    for work in _works(broker):
        carry_out(work, at)
    broker.stop(at)
    for work in _works(broker):
        carry_out(work, at)
    broker.close(at)
    if (lost := broker.lost_at_stop()) is not None:
        raise StoreError(f"the repair is not saved: {lost}")


def _works(broker: Broker) -> Iterator[Work[Any]]:
    """Yield what a broker leaves to be done, until nothing is left; there is nobody to write to."""
    while works := [effect for effect in broker.effects() if isinstance(effect, Work)]:
        yield from works


def repair_directory(
    directory: Path, into: Path | None, settings: ServerSettings, now: int, *, agree: Agree, say: Say,
    progress: Progress | None = None,
) -> list[Problem]:  # fmt: skip
    """Repair the store in a directory, or a copy of it that is made in ``into``; see `repair`.

    Raises UsageError where ``into`` is not empty or part of the store.
    """
    if into is not None:
        copy_stopped(directory, into, progress)
    with as_owner_of(into or directory):
        disk = RealDisk(into or directory, PERMISSIONS[settings.store.readable_by])
        return repair(disk, settings.broker, settings.store, now, agree=agree, say=say, progress=progress)
