"""`Context`: what the services of one broker share. Each takes what it needs from it when it is constructed."""

from __future__ import annotations

from random import Random

import msgspec

from halfmoon.broker.consumers.clients import Clients
from halfmoon.broker.consumers.groups import Groups
from halfmoon.broker.consumers.offsets import Offsets
from halfmoon.broker.pull.deleted_topics import StaleOffsets
from halfmoon.broker.send.pending_replies import PendingReplies
from halfmoon.broker.send.queue_waiters import QueueWaiters
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.stats import Stats
from halfmoon.broker.tables import Tables
from halfmoon.broker.topics import Topics
from halfmoon.ports import Disk
from halfmoon.store.store import Store
from halfmoon.wire.peer import Peers


class Context(msgspec.Struct, eq=False):
    """Settings, the store and the tables; connections; replies that wait for the device, and requests that wait for a queue.

    ``host`` is the broker's address, packed.
    """

    settings: BrokerSettings
    store: Store
    disk: Disk
    tables: Tables
    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    stats: Stats
    peers: Peers
    pending_replies: PendingReplies
    queue_waiters: QueueWaiters
    stale_offsets: StaleOffsets
    host: bytes
    random: Random
    started_ms: int

    @classmethod
    def open(cls, settings: BrokerSettings, store: Store, disk: Disk, host: bytes, random: Random, now: int) -> Context:
        """Read the tables of a broker whose store is open. Raises StoreError for one that cannot be read."""
        tables = Tables(disk)
        topics, groups = Topics(settings, tables, now), Groups(settings, tables, now)
        peers = Peers(idle_ms=settings.client_expiry_ms)
        pending_replies, stale_offsets = PendingReplies(store, peers, now), StaleOffsets(peers)
        topics.on_recreated = stale_offsets.recreated
        return cls(
            settings, store, disk, tables, topics, groups, Offsets(tables, groups.saved), Clients(), Stats(settings.cluster, now),
            peers, pending_replies, QueueWaiters(store, pending_replies), stale_offsets, host, random, now,
        )  # fmt: skip
