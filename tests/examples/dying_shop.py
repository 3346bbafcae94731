"""The FastAPI shop in a process that is killed (-9) where SHOP_DIES says: ``before commit`` or ``after commit``."""

from __future__ import annotations

import os
import signal

from shop.app import app

from halfmoon.events import LocalTransaction, Synchronization, watch

__all__ = ["app"]


class Death(Synchronization):
    """Comes before the events of the transaction are decided."""

    rank = -1

    def before_commit(self) -> None:
        """Everything is written, nothing is committed."""
        self._die("before commit")

    def after_commit(self) -> None:
        """It is committed, and the broker knows nothing of it yet."""
        self._die("after commit")

    @staticmethod
    def _die(now: str) -> None:
        if os.environ["SHOP_DIES"] == now:
            os.kill(os.getpid(), signal.SIGKILL)


def death(transaction: LocalTransaction) -> Synchronization:
    """Follow a transaction that begins."""
    return Death()


watch(death)
