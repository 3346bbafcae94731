"""The metrics of a name server, and their values. Changes nothing."""

from __future__ import annotations

from halfmoon.metrics import Metric, Samples
from halfmoon.nameserver.nameserver import NameServer

BROKERS = Metric("halfmoon_nameserver_brokers", "gauge", (), "Brokers that are registered.")
TOPICS = Metric("halfmoon_nameserver_topics", "gauge", (), "Topics that they registered.")
TOPICS_LEFT_OUT = Metric("halfmoon_nameserver_topics_left_out_total", "counter", (), "Topics beyond topics_max, left out.")

METRICS = [BROKERS, TOPICS, TOPICS_LEFT_OUT]


def samples(core: NameServer) -> Samples:
    """Yield what a name server says of itself."""
    yield BROKERS, (), core.routes.live_count
    yield TOPICS, (), core.routes.topic_count
    yield TOPICS_LEFT_OUT, (), core.routes.left_out
