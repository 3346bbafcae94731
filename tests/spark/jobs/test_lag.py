"""The lag of a group against a running broker."""

from __future__ import annotations

import pytest

from halfmoon import Admin, PullConsumer
from halfmoon.spark.jobs import lag

pytestmark = pytest.mark.slow


@pytest.fixture
def made(cluster, topic):
    """A topic with two queues."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=2)
    return topic


def test_the_lag_of_a_group_is_told_in_messages_bytes_and_seconds(cluster, place, made, send):
    group = f"C_{made}"
    send(made, ["12345"] * 6)
    with PullConsumer(group=group, nameserver=cluster.nameserver, auto_commit=False) as consumer:
        queues = sorted(consumer.queues(made), key=lambda one: one.queue_id)
        consumer.assign(queues)
        consumer.seek(queues[0], 2)
        consumer.seek(queues[1], 3)
        consumer.commit({queues[0]: 2, queues[1]: 3})

    found = {queue.queue: queue for queue in lag.lag(place, group) if queue.topic == made}

    assert [(found[queue].progress, found[queue].end, found[queue].messages) for queue in (0, 1)] == [(2, 3, 1), (3, 3, 0)]
    assert (5 < found[0].bytes < 1000, found[1].bytes) == (True, 0)
    assert 0 < found[0].seconds < 600
    assert found[1].seconds == 0
    seen = list(lag.sample_lag(place, group, made, every_s=0.05, for_s=0.3))
    assert len(seen) >= 2
    assert {(one.topic, one.messages) for one in seen} == {(made, 1)}
    assert all(one.behind_ms > 0 for one in seen)
