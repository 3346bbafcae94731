"""A watch of queues sees a batch that shows itself in part."""

from __future__ import annotations

from halfmoon.testing.cluster import Cluster
from simulation.batches.queries import TOPIC, Query
from simulation.batches.watch import Watch


def test_a_batch_that_comes_message_by_message_is_found() -> None:
    cluster = Cluster(1)
    cluster.create_topic(TOPIC, queues=2)
    cluster.run(ms=100)
    watch = Watch(cluster)
    for number in range(2):
        cluster.send(TOPIC, b"%d" % number, keys=f"query-0/0/0/{number}")
        cluster.run(ms=100)
    [problem] = watch.problems([Query("query-0", {}, 1, 2, 1, False)])
    assert "shows 1 of 2 messages of batch query-0/0" in problem
