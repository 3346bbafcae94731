"""Where jobs find the messages."""

from __future__ import annotations

import pytest

from halfmoon.spark.jobs.reading import Cluster


@pytest.fixture
def place(cluster):
    """Where the messages are."""
    return Cluster(cluster.nameserver)
