"""The process's open files: as many as the system allows, and some kept for the store while connections take the rest.

Connections are refused at a bound below the system's (`connections_limit`), so that the store may open what it needs. Some of what
is kept is held open from the start: whoever else takes the last descriptor, `with_reserve` has one to give for the store.
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
"""Descriptors that connections leave to the store, to listeners and to our own connections; a quarter where fewer are allowed."""

RESERVE_MAX = 64
"""Of these, so many are held open: each file that a turn may have to open, several times over. Fewer where few are kept."""

WRITING_MAX = 512
"""Files of the store that keep theirs, as they are written often: half of what connections leave."""

ENDLESS = 1 << 20
"""In place of a bound that does not exist: a number that no process reaches."""

_reserve: list[int] = []
_wanted = 0
_shortages = 0
_lock = Lock()


def allow_descriptors(wanted: int = 0) -> int:
    """Raise the process's bound on open files to what the system lets us have; return what it is now.

    Shells often begin with 1024, which a few hundred clients and the files of a store use up. Less than ``wanted`` is said.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        for limit in (hard, wanted):  # some systems say "endless" and take only a number
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
    """Return how many open files the process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENDLESS if soft == resource.RLIM_INFINITY else soft


def connections_limit(allowed: int) -> int:
    """Return the number of open files of all kinds at which no connection is accepted any more."""
    return allowed - min(KEPT_MAX, allowed // 4)


def writing_max() -> int:
    """Return how many files of the store may keep a descriptor for their next write."""
    return min(WRITING_MAX, allowed_descriptors() // 16)


def set_up_reserve() -> None:
    """Hold some descriptors open for the store. A second call fills up what is missing."""
    global _shortages, _wanted
    _shortages = 0
    allowed = allowed_descriptors()
    _wanted = min(RESERVE_MAX, (allowed - connections_limit(allowed)) // 2)
    refill_reserve()


def refill_reserve() -> None:
    """Hold again what was given out, as far as there are descriptors."""
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
    """Do what opens one file. When the process or the system has no descriptor left, one of those held is given for it.

    Raises OSError: as ``opening`` does, when none is held any more.
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
