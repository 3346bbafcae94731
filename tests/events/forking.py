"""Children of a fork, for tests of what a process leaves to its parent."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], object], *, within_s: int = 60) -> bool:
    """Do something in a forked child and return whether it went well. A child that does not end in time is killed."""
    return ended_well(forked(work, within_s=within_s))


def forked(work: Callable[[], object], *, within_s: int = 60) -> int:
    """Begin something in a forked child; return its number. Nothing of pytest's runs there."""
    if pid := os.fork():
        return pid
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(within_s)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended_well(child: int) -> bool:
    """Wait for a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
