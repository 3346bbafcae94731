"""What a name server says of itself to monitoring."""

from __future__ import annotations

from halfmoon.nameserver import metrics
from tests.nameserver.house import House


def values(house: House) -> dict[str, object]:
    return {metric.name: value for metric, _, value in filter(None, metrics.samples(house.core))}


def test_brokers_and_topics_are_counted_and_refusals_by_code() -> None:
    house = House()
    assert values(house)["halfmoon_nameserver_brokers"] == 0
    house.register()
    assert house.route("nowhere") == 17

    assert values(house).keys() == {metric.name for metric in metrics.METRICS}
    assert values(house)["halfmoon_nameserver_brokers"] == 1
    assert values(house)["halfmoon_nameserver_topics"] == len(house.core.routes.topics()) > 0
    assert house.core.peers.refusals == {17: 1}
