"""A start that a thread makes in the background, again and again until it succeeds. Knows no publisher, and keeps none alive."""

from __future__ import annotations

import encodings.idna  # noqa: F401 (looked up by names of hosts: a child that is forked during an import waits for it for ever)
import logging
import random
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from halfmoon.errors import NotRunning

PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
"""Pauses between tries: the first, doubled with each, of which half to all is waited."""

log = logging.getLogger("halfmoon.events")


class BackgroundStart:
    """Calls a method in a daemon thread until it returns; ends without it when its object is collected, or is closed (NotRunning).

    A failure is logged once as a warning. Does not wait in the constructor, nor in `stop`, and is over with the process.
    """

    def __init__(self, method: Callable[[], None], name: str, *, first_pause_s: float = 0) -> None:
        """``name`` says in the log what is started. It is tried first after ``first_pause_s``."""
        stopped: SimpleQueue[None] = SimpleQueue()  # unlike an event it may be told by the garbage collector
        self._stopped = stopped
        arguments = (weakref.WeakMethod(method, lambda _: stopped.put(None)), stopped, name, first_pause_s)
        self._thread = threading.Thread(target=_run, args=arguments, name="halfmoon-connect", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:  # no more threads here, or the process ends
            log.warning("%s is not connected before its first use: %s", name, exc)

    def stop(self) -> None:
        """Try no more. Returns at once, also while a try is under way."""
        self._stopped.put(None)


def _run(method: weakref.WeakMethod[Any], stopped: SimpleQueue[None], name: str, pause_s: float) -> None:
    warned, next_s = False, PAUSE_S
    while not _told(stopped, pause_s):
        start = method()
        if start is None:
            return
        try:
            start()
            return
        except NotRunning:  # closed meanwhile
            return
        except Exception as exc:
            level = logging.INFO if warned else logging.WARNING
            log.log(level, "%s cannot connect; trying again: %s", name, str(exc))  # a log that keeps an error keeps its frames
        del start  # nothing is kept alive by waiting
        warned, pause_s = True, next_s * random.uniform(0.5, 1)
        next_s = min(next_s * 2, PAUSE_S_MAX)


def _told(stopped: SimpleQueue[None], wait_s: float) -> bool:
    try:
        stopped.get(timeout=wait_s)
    except Empty:
        return False
    return True
