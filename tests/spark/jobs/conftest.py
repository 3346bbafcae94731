"""Where jobs find the messages."""

from __future__ import annotations

import pytest

from halfmoon.spark.cluster import Cluster


@pytest.fixture
def place(cluster):
    """Where the messages are."""
    return Cluster(cluster.nameserver)
