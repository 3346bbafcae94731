"""The store: one commit log, its queues and its key index over a `ports.Disk`. Byte layout as RocketMQ writes it; never waits."""

from halfmoon.hot import Draft
from halfmoon.store.queues.reading import ReadResult, ReadStatus
from halfmoon.store.settings import ASYNC_FLUSH, SYNC_FLUSH, StoreSettings
from halfmoon.store.store import Appended, Arrival, Store

__all__ = ["ASYNC_FLUSH", "SYNC_FLUSH", "Appended", "Arrival", "Draft", "ReadResult", "ReadStatus", "Store", "StoreSettings"]
