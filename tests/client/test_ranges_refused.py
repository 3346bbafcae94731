"""Ranges that nothing can be waited for are an error at once, however patient the client is."""

from __future__ import annotations

import time

import pytest

from halfmoon import Admin
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoPermission, NoRoute
from halfmoon.testing.local import LocalCluster
from tests.client.test_ranges import fill

pytestmark = pytest.mark.slow


def test_a_topic_that_nobody_heard_of_is_an_error_at_once(cluster: LocalCluster):
    begin = time.monotonic()
    with Ranges(nameserver=cluster.nameserver, retries_max=20) as patient, pytest.raises(NoRoute, match="nobody_heard_of_it"):
        patient.bounds("nobody_heard_of_it")

    assert time.monotonic() - begin < 10


def test_what_a_broker_does_not_let_read_is_an_error_at_once(cluster: LocalCluster, topic: str):
    fill(cluster, topic, 20)
    with Ranges(nameserver=cluster.nameserver, retries_max=20) as patient:
        assert patient.bounds(topic)
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.create_topic(topic, queue_count=1, perm=2)
        begin = time.monotonic()
        with pytest.raises(NoPermission):
            list(patient.read("broker-a", topic, 0, 0, 20))

    assert time.monotonic() - begin < 10
