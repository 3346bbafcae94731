"""`SlaveIndex`: the transaction index of a slave, opened again after a failure until it has everything that the log has.

A slave copies on while its index fails. A broker that starts on the directory believes of the files only what was entered before,
and reads the rest from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from halfmoon.effects import Work
from halfmoon.errors import StoreError
from halfmoon.instant import Instant, Steady
from halfmoon.ports import Disk
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.store.transactions.copied import CopiedTransactions
from halfmoon.store.transactions.index import TransactionIndex
from halfmoon.store.transactions.watermark import raise_none_below

log = logging.getLogger("halfmoon.store.transactions")

PAUSE_MS: Final = 10_000
"""Pause before the index is opened again. It doubles each time: opening may read the whole log, and copying waits for it."""
PAUSE_MAX_MS: Final = 3_600_000
CONSEQUENCE: Final = "the log is copied without the transaction index, which is brought up to it later"


class SlaveIndex:
    """Keeper of the index of an open store.

    ``settled_below()`` is the half queue offset below which the master settled everything, by the tables that were copied.
    ``index`` is None while it cannot be opened.
    """

    def __init__(self, disk: Disk, store: Store, settings: StoreSettings, settled_below: Callable[[], int], now: Steady) -> None:
        self._disk, self._store, self._settings, self._settled_below = disk, store, settings, settled_below
        self.index: TransactionIndex | None = None
        self._copied: CopiedTransactions | None = None
        self._unopened: str | None = None
        self._none_below, self._pause_ms = 0, PAUSE_MS
        self._again_at: Steady | None = None
        self._open(now)

    @property
    def fault(self) -> str | None:
        """Why the index does not follow the log now; None: it does."""
        return self._unopened if self.index is None else self.index.fault

    def _open(self, now: Steady) -> None:
        """Bring the index up to the log, and keep it there. Waits for the disk."""
        store, copying, self._again_at = self._store, self._store.copying(), None
        copying.transactions = self.index = self._copied = None
        try:
            index = TransactionIndex.open(self._disk, store, self._settings, settled_below=self._settled_below(), now=now)
        except (OSError, StoreError) as exc:
            self._unopened = f"the transaction index cannot be opened: {exc}"
            log.warning("%s: %s", CONSEQUENCE, self._unopened)
            return
        index.consequence, self.index = CONSEQUENCE, index
        index.settle_below(self._none_below)
        copying.transactions = self._copied = CopiedTransactions(index, store)

    def settle_below(self, index: int) -> None:
        """Take what `TransactionIndex.settle_below` takes. A failed index notes it for the next start. Raises OSError."""
        self._none_below = max(self._none_below, index)
        if self.index is not None and self.index.fault is None:
            self.index.settle_below(index)
        else:
            raise_none_below(self._store.journal, index)

    def due(self, now: Steady) -> Steady | None:
        """When `tick` wants to be called."""
        if self.index is None or self.index.fault is not None:
            return now if self._again_at is None else self._again_at
        return self.index.due()

    def tick(self, now: Steady) -> None:
        """Keep the index up, or open it again after a pause."""
        if self.fault is None:
            assert self._copied is not None
            self._copied.tick(now)
        elif self._again_at is None:
            self._again_at = now + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        elif now >= self._again_at:
            self._open(now)
            if self.fault is None:
                log.warning("the transaction index has everything again that the log has")

    def work(self) -> list[Work[Any]]:
        """Take out what is to be run where waiting is allowed."""
        return [] if self.index is None else self.index.work()

    def stop(self, now: Instant) -> None:
        """Begin to stop."""
        if self.index is not None:
            self.index.stop(now)

    def close(self, now: Instant) -> None:
        """Save what is there. Waits for the disk."""
        if self.index is not None:
            self.index.close(now)
