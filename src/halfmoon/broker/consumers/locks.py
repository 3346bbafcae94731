"""Which client of a group may consume which queue: the locks of ordered consumption (41 and 42).

Follows RebalanceLockManager (RocketMQ 4.9.8): a lock lives 60 s and its owner renews it. Sends nothing: ``tell`` notifies a group
when a queue that another member waits for becomes free.

Differs: locks do not outlive their client for a minute. A client that asks for it (``releaseOnClose``, as ours does) gives its
locks back with its connection, because it takes a lost connection for lost locks as well; those of other clients end
``order_lock_orphan_ms`` after their last renewal, when Java clients themselves take them for lost.
Differs: a start, or the next master of a pair, keeps the locks of clients that do not notice a lost connection, as if they were
renewed then: these go on consuming, and the first member to come would else be given the queues of all.
Differs: when a queue becomes free that another client was refused, the group is told (40) and need not wait for its next round.
Differs: queues that this broker does not have are not granted, so that requests cannot fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from halfmoon.broker.context import Context
from halfmoon.broker.names import check_group
from halfmoon.broker.request import Handlers, Reply, Request, account_of
from halfmoon.broker.service import Service
from halfmoon.errors import BrokerError
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import LockBatchReply, LockBatchRequest, LockTable, from_json, to_json
from halfmoon.wire.headers.client import LockBatchMq, UnlockBatchMq

PATH = "config/queueLocks.json"

LOCKS_MAX = 200_000
"""Locks of all groups together, so that they cannot fill the memory; one over it is not granted."""

CLIENT_ID_LENGTH_MAX = 1024

EXPIRE_SCAN_MS = 10_000
"""Interval between searches for expired locks."""

_STALE_MAX = 1000
"""Entries about locks that are not there any more: more than these and twice the number of locks are removed together."""

NOBODY = -1
"""Connection of an owner that has not come since the start."""

Place = tuple[str, str, int]
"""group, topic, queue number"""


class QueueLock(msgspec.Struct):
    """Owner of a queue. ``wanted``: another client was refused it since it was locked; ``due``: time of the next check."""

    client_id: str
    peer: int
    renewed_at: Steady
    until: Steady
    release_on_close: bool
    wanted: bool = False
    due: Steady = LONG_AGO


class Locks(Service):
    """The service that answers 41 and 42. ``tell(group)`` has the members of a group rebalance."""

    locks_max = LOCKS_MAX

    def __init__(self, context: Context, tell: Callable[[str], None]) -> None:
        """Keep the locks that were saved. Raises StoreError for a table that cannot be read."""
        self._settings, self._topics, self._clients, self._tell = context.settings, context.topics, context.clients, tell
        self._next_expire_at = context.started.steady + EXPIRE_SCAN_MS
        self._locks: dict[str, dict[tuple[str, int], QueueLock]] = {}
        self._count = 0
        self._of_peer: dict[int, set[Place]] = {}
        self._ends: list[tuple[Steady, Place]] = []  # heap: when locks that others want are looked at again
        saved = context.tables.load(PATH, lambda data: from_json(LockTable, data, bounds=None))
        self._changed = context.tables.add(PATH, self._dump, patient=True)
        self._keep(saved or LockTable(), context.started.steady)

    def _keep(self, saved: LockTable, now: Steady) -> None:
        """Take saved locks for renewed now: their owners may have done that until the end of the run before."""
        until = now + self._settings.order_lock_orphan_ms
        for group, topics in saved.locks.items():
            for topic, owners in topics.items():
                for queue_id, client_id in owners.items():
                    if self._count < self.locks_max:
                        self._put((group, topic, queue_id), QueueLock(client_id, NOBODY, now, until, release_on_close=False), None)

    def _dump(self) -> bytes:
        """Return the locks of clients that do not notice a lost connection."""
        table: dict[str, dict[str, dict[int, str]]] = {}
        for group, locks in self._locks.items():
            for (topic, queue_id), lock in locks.items():
                if not lock.release_on_close:
                    table.setdefault(group, {}).setdefault(topic, {})[queue_id] = lock.client_id
        return to_json(LockTable(table))

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            LockBatchMq: self.lock,
            UnlockBatchMq: self.unlock,
        }

    def __len__(self) -> int:
        return self._count

    # ------------------------------------------------------------ requests

    def lock(self, request: Request) -> Reply:
        """Lock or renew queues for a client (41); answers all that are the client's now, those of others left out."""
        data = self._asked(request)
        release = bool(request.header(LockBatchMq).release_on_close)
        mine = [
            q
            for q in data.mq_set
            if self._exists(q) and self._take(data, q, request.peer.number, request.now.steady, release=release)
        ]
        return Reply(body=to_json(LockBatchReply(lock_ok_mq_set=mine)))

    def unlock(self, request: Request) -> Reply:
        """Unlock queues (42); those of other clients stay locked, without an error."""
        data = self._asked(request)
        for queue in data.mq_set:
            place = (data.consumer_group, queue.topic, queue.queue_id)
            lock = self._get(place)
            if queue.broker_name == self._settings.name and lock is not None and lock.client_id == data.client_id:
                self._free(place, lock)
        return Reply()

    def _asked(self, request: Request) -> LockBatchRequest:
        data = request.body(LockBatchRequest)
        check_group(data.consumer_group)
        if not 1 <= len(data.client_id) <= CLIENT_ID_LENGTH_MAX:
            raise BrokerError(f"the clientId has {len(data.client_id)} characters, not 1 to {CLIENT_ID_LENGTH_MAX}")
        self._clients.check_id(data.client_id, account_of(request), request.peer.number)
        return data

    def _exists(self, queue: MessageQueue) -> bool:
        config = self._topics.get(queue.topic) if queue.broker_name == self._settings.name else None
        return config is not None and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def _take(self, data: LockBatchRequest, queue: MessageQueue, peer: int, now: Steady, *, release: bool) -> bool:
        place = (data.consumer_group, queue.topic, queue.queue_id)
        lock = self._get(place)
        if lock is not None and lock.client_id != data.client_id and now <= lock.until:
            if not lock.wanted:
                lock.wanted = True
                self._look_at(place, lock)
            return False
        if lock is None and self._count >= self.locks_max:
            return False
        until = now + self._settings.order_lock_ms
        fresh = QueueLock(data.client_id, peer, now, until, release)
        if lock is not None:
            self._of(lock.peer).discard(place)
            if lock.client_id == data.client_id:
                fresh.wanted, fresh.due = lock.wanted, lock.due
        self._put(place, fresh, lock)
        return True

    # ------------------------------------------------------------ connections and time

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Free the locks of a lost connection, or let them end when their owner considers them lost.

        ``by_us``: this broker closed it. A silent client may notice that much later, and goes on consuming until then.
        """
        for place in sorted(self._of_peer.pop(peer, ())):
            lock = self._get(place)
            if lock is None:
                continue
            if lock.release_on_close and not by_us:
                self._free(place, lock)
                continue
            lock.until = min(lock.until, lock.renewed_at + self._settings.order_lock_orphan_ms)
            if lock.wanted:
                self._look_at(place, lock)

    def due(self, now: Instant) -> Steady:
        """When `tick` wants to be called next."""
        return min(self._ends[0][0] + 1, self._next_expire_at) if self._ends else self._next_expire_at

    def tick(self, now: Instant) -> None:
        """Free the queues that others wait for and whose lock has run out; at times all locks that have run out."""
        if now.steady >= self._next_expire_at:
            self._next_expire_at = now.steady + EXPIRE_SCAN_MS
            self._expire(now.steady)
        while self._ends and self._ends[0][0] < now.steady:
            due, place = heappop(self._ends)
            lock = self._get(place)
            if lock is None or lock.due != due:
                continue
            if now.steady > lock.until:
                self._free(place, lock)
            else:
                self._look_at(place, lock)

    def _expire(self, now: Steady) -> None:
        """Forget all locks that have run out."""
        for group, locks in list(self._locks.items()):
            for (topic, queue_id), lock in list(locks.items()):
                if now > lock.until:
                    self._free((group, topic, queue_id), lock)

    # ------------------------------------------------------------ asking

    def owner(self, group: str, topic: str, queue_id: int, now: Steady) -> str | None:
        """Return the client id that owns a queue now, None for nobody."""
        lock = self._get((group, topic, queue_id))
        return lock.client_id if lock is not None and now <= lock.until else None

    # ------------------------------------------------------------ the tables

    def _get(self, place: Place) -> QueueLock | None:
        group, topic, queue_id = place
        return self._locks.get(group, {}).get((topic, queue_id))

    def _of(self, peer: int) -> set[Place]:
        return self._of_peer.get(peer, set())

    def _put(self, place: Place, lock: QueueLock, before: QueueLock | None) -> None:
        group, topic, queue_id = place
        self._locks.setdefault(group, {})[topic, queue_id] = lock
        self._of_peer.setdefault(lock.peer, set()).add(place)
        self._count += before is None
        if _kept(lock) != _kept(before):
            self._changed()

    def _look_at(self, place: Place, lock: QueueLock) -> None:
        lock.due = lock.until
        heappush(self._ends, (lock.due, place))
        if len(self._ends) > 2 * self._count + _STALE_MAX:  # left by locks that were given back before their time
            self._ends = sorted({(due, other) for due, other in self._ends if self._is_due(other, due)})

    def _is_due(self, place: Place, due: Steady) -> bool:
        lock = self._get(place)
        return lock is not None and lock.due == due

    def _free(self, place: Place, lock: QueueLock) -> None:
        group, topic, queue_id = place
        del self._locks[group][topic, queue_id]
        if not self._locks[group]:
            del self._locks[group]
        self._of(lock.peer).discard(place)
        self._count -= 1
        if _kept(lock) is not None:
            self._changed()
        if lock.wanted:
            self._tell(group)


def _kept(lock: QueueLock | None) -> str | None:
    """Return the owner that is saved of a lock."""
    return None if lock is None or lock.release_on_close else lock.client_id
