"""Watch of batches: every queue is read after each event of the world, so as consumers could have seen it.

A batch becomes visible at once in each queue: whatever is killed meanwhile, a queue shows of a batch nothing or all that it ever
has of it. Messages that asked to come later come when they are due, and are not asked about.
"""

from __future__ import annotations

from itertools import chain

from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.wire.record import decode_records
from simulation.batches.queries import QUEUES, TOPIC, Query
from simulation.ledger import Place

Names = frozenset[str]


class Watch:
    """Looks at all queues of a cluster whenever something has happened. ``looks`` counts those that showed something new."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._at: dict[Place, tuple[int, int]] = {}
        """Queue → the life of its broker and the end of the queue, when it was looked at last."""
        self._there: dict[Place, dict[str, set[str]]] = {}
        """Queue → batch → names of its messages, as this life of the broker shows them."""
        self._sights: dict[tuple[Place, str], dict[Names, int]] = {}
        """Messages of a batch that a queue showed together, and when it did so first, in ms since the beginning."""
        self.looks = 0
        cluster.timeline.watch(self._look)

    def _look(self) -> None:
        for broker in self._cluster.brokers:
            if broker.running:
                for queue_id in range(QUEUES):
                    at = broker.host.lives, broker.core.store.queue_max(TOPIC, queue_id)
                    if self._at.get(place := Place(broker.name, TOPIC, queue_id)) != at:
                        self._new(broker, place, *at)

    def _new(self, broker: BrokerNode, place: Place, life: int, end: int) -> None:
        """Read what a queue shows that it did not show before; all of it, if its broker was started since."""
        life_before, begin = self._at.get(place, (0, 0))
        if life != life_before:
            begin, self._there[place] = 0, {}
        self._at[place] = life, end
        self.looks += 1
        there, touched = self._there[place], set()
        while begin < end:
            found = broker.core.store.read(TOPIC, place.queue_id, begin, end - begin)
            if found.next_offset <= begin:
                break
            begin = found.next_offset
            for message in chain.from_iterable(map(decode_records, found.pieces)):
                name = message.properties.get("KEYS", "")
                batch = name.rsplit("/", 2)[0]
                there.setdefault(batch, set()).add(name)
                touched.add(batch)
        for batch in touched:
            self._sights.setdefault((place, batch), {}).setdefault(frozenset(there[batch]), self._cluster.timeline.elapsed_ms)

    def problems(self, queries: list[Query]) -> list[str]:
        """Return which queues showed a batch in part, and when."""
        later = {row.name for query in queries for row in query.expected() if row.waits}
        found = []
        for (place, batch), sights in self._sights.items():
            whole = frozenset().union(*sights) - later
            found += [
                f"{place} shows {len(names - later)} of {len(whole)} messages of batch {batch} after {at_ms} ms"
                for names, at_ms in sights.items()
                if names - later and names - later != whole
            ]
        return found
