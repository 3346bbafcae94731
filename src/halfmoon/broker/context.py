"""`Context`: what the services of one broker share. Each takes what it needs from it when it is constructed."""

from __future__ import annotations

import logging
from random import Random

import msgspec

from halfmoon.broker.access.access import Access
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
from halfmoon.errors import AccessRefused
from halfmoon.instant import Instant
from halfmoon.ports import Disk
from halfmoon.store.layout import RESTORED
from halfmoon.store.opening import carry_out
from halfmoon.store.store import Store
from halfmoon.wire.peer import Peers

log = logging.getLogger("halfmoon.broker")


class Context(msgspec.Struct, eq=False):
    """Settings, the store and the tables; connections; replies that wait for the device, and requests that wait for a queue.

    ``host`` is the broker's address, packed; ``access`` None: access control is off.
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
    started: Instant
    access: Access | None

    def check_producer(self, number: int, group: str, code: int, topic: str | None = None) -> None:
        """Check that the account of a connection may produce in a group, and decide about half messages for a topic.

        Raises AccessRefused (1).
        """
        if self.access is None:
            return
        peer = self.peers.get(number)
        if peer is None:
            raise AccessRefused("the connection is lost")
        self.access.check_produces(peer, self.access.known(peer).proved, group, code, topic)

    @classmethod
    def open(
        cls, settings: BrokerSettings, store: Store, disk: Disk, host: bytes, random: Random, now: Instant, access: Access | None
    ) -> Context:  # fmt: skip
        """Read the tables of a broker whose store is open. Raises StoreError for one that cannot be read."""
        tables = Tables(disk)
        topics, groups = Topics(settings, tables, now.date, lambda: store.end_offset), Groups(settings, tables, now.date)
        peers = Peers(idle_ms=settings.client_expiry_ms)
        pending_replies, stale_offsets = PendingReplies(settings, store, peers, now), StaleOffsets(peers)
        topics.on_recreated = stale_offsets.recreated
        return cls(
            settings, store, disk, tables, topics, groups, Offsets(tables, groups.saved), Clients(), Stats(settings.cluster, now),
            peers, pending_replies, QueueWaiters(store, pending_replies), stale_offsets, host, random, now,
            access,
        )  # fmt: skip

    def recover(self, now: Instant) -> None:
        """Make the tables agree with the store: a kill may have come between the two. Waits for the disk."""
        queues, counts = self.store.queues, dict[str, int]()
        for topic, queue_id in sorted(queues):
            counts[topic] = queue_id + 1
        self.topics.adopt(counts, now.date)
        self._settle_births(now)
        self.offsets.drop_unknown(set(self.topics.names()))
        self.offsets.clamp((*key, queue.max_offset) for key, queue in queues.items())

    def _settle_births(self, now: Instant) -> None:
        """Have births agree with the log, and topics of a restored backup have others, on disk before anything is stored."""
        restored = self.disk.read(RESTORED) is not None
        if restored:
            log.warning("this store is a restored backup: its topics get another birth, and offsets of the original are refused")
            self.topics.renew(now.date)
        if self.topics.begin_at(self.store.end_offset, now.date) or restored:
            for work in self.tables.save_changed():
                carry_out(work, now)
        if restored and not self.tables.failed:
            self.disk.remove(RESTORED)
            self.disk.sync_directory("")
