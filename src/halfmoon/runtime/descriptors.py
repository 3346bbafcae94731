"""Bounds of the process's open files: some are reserved for the store, connections share the rest.

Connections are refused at a bound below the system's (`connections_limit`), so that the store can open its files. Part of the
reserve is held open from the start: if other code takes the last descriptor, `with_reserve` releases one for the store.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable
from errno import EMFILE, ENFILE
from threading import Lock
from typing import TypeVar

log = logging.getLogger("halfmoon.serve")
T = TypeVar("T")

KEPT_MAX = 1024
"""Descriptors reserved for the store, listeners and own connections; a quarter of the limit if that is less."""

RESERVE_MAX = 64
"""Descriptors of the reserve that are held open: several times those that a turn may open. Fewer of a small reserve."""

WRITING_MAX = 512
"""Files of the store that keep their descriptor, as they are written often: half of the reserve."""

ENDLESS = 1 << 20
"""Value for a missing bound: a number that no process reaches."""

_reserve: list[int] = []
_wanted = 0
_shortages = 0
_lock = Lock()


def allow_descriptors(wanted: int = 0) -> int:
    """Raise the process's limit of open files as far as the system allows; return the new limit.

    Shells often begin with 1024, which a few hundred clients and the files of a store use up. Logs a limit below ``wanted``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        for limit in (hard, wanted):  # some systems report no bound and accept only a number
            if limit != resource.RLIM_INFINITY and limit <= soft:
                break
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
            except (ValueError, OSError):
                continue
    allowed = allowed_descriptors()
    if allowed < wanted:
        report = log.warning if allowed < wanted // 2 else log.info
        report(
            "the system allows %d open files, %d are wanted: at most about %d connections will be taken",
            allowed, wanted, connections_limit(allowed),
        )  # fmt: skip
    return allowed


def allowed_descriptors() -> int:
    """Return the process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENDLESS if soft == resource.RLIM_INFINITY else soft


def connections_limit(allowed: int) -> int:
    """Return the number of open files of all kinds from which connections are refused."""
    return allowed - min(KEPT_MAX, allowed // 4)


def writing_max() -> int:
    """Return the number of files of the store that may keep a descriptor."""
    return min(WRITING_MAX, allowed_descriptors() // 16)


def set_up_reserve() -> None:
    """Hold some descriptors open for the store. A second call refills the reserve."""
    global _shortages, _wanted
    _shortages = 0
    allowed = allowed_descriptors()
    _wanted = min(RESERVE_MAX, (allowed - connections_limit(allowed)) // 2)
    refill_reserve()


def refill_reserve() -> None:
    """Refill the reserve, as far as there are descriptors."""
    while len(_reserve) < _wanted:
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        with _lock:
            _reserve.append(fd)
            full = len(_reserve) == _wanted
        if full:
            log.info("the store's reserve of %d descriptors is full", _wanted)


def with_reserve(opening: Callable[[], T]) -> T:
    """Call a function that opens one file. Without a free descriptor, release one of the reserve for it.

    Raises OSError as ``opening`` does, if the reserve is empty.
    """
    try:
        return opening()
    except OSError as exc:
        if exc.errno not in (EMFILE, ENFILE):
            raise
        error = exc
    while True:
        with _lock:
            if not _reserve:
                raise error
            if len(_reserve) == _wanted:
                _log_shortage(error)
            os.close(_reserve.pop())
        try:
            return opening()
        except OSError as exc:  # another thread or process may have been quicker
            if exc.errno not in (EMFILE, ENFILE):
                raise
            error = exc


def _log_shortage(error: OSError) -> None:
    global _shortages
    _shortages += 1
    if _shortages & (_shortages - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
        log.error("no descriptor is left, the store takes from its reserve of %d, %d times so far: %s", _wanted, _shortages, error)
