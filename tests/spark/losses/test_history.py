"""*Rows returned + loss reported = rows stored*, in histories of brokers that go and topics that change, for each way to read.

Real brokers have these faults one at a time in `tests.spark.faults.test_lost_rows`. Numbers of queues to read and to write are here
alone: each pair would cost real brokers a topic of its own, and here each history has dozens.
"""

from __future__ import annotations

import pytest

from tests.spark.losses.cluster import NAMESERVER, Cluster, reached
from tests.spark.losses.history import simulate_losses
from tests.spark.losses.readers import SharedClock
from tests.spark.query import Query

CASES = [*((name, seed) for name in ("stream", "ingest") for seed in range(1, 9)), *(("batch", seed) for seed in range(1, 4))]


@pytest.mark.parametrize(("reader", "seed"), CASES)
def test_with_fail_on_data_loss_a_reader_returns_every_message_or_an_error_names_what_is_gone(reader: str, seed: int) -> None:
    verdict = simulate_losses(seed, reader=reader, strict=True)

    assert verdict.problems == [], "\n".join(verdict.lines[-30:])
    assert verdict.returned > 0
    assert verdict.lost == 0


@pytest.mark.parametrize(("reader", "seed"), CASES)
def test_without_it_a_reader_goes_on_and_reports_as_many_messages_as_are_gone(reader: str, seed: int) -> None:
    verdict = simulate_losses(seed, reader=reader, strict=False)

    assert verdict.problems == [], "\n".join(verdict.lines[-30:])
    assert verdict.returned > 0


def test_a_broker_that_goes_away_again_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("broker-a", "broker-b")
    for broker in cluster.brokers:
        cluster.create("orders", broker, 1, 1)
    with reached(cluster):
        query = Query(NAMESERVER, SharedClock(cluster), topic="orders", startingOffsets="earliest", retries="0")
        assert query.batch() == []
        for _ in range(2):
            cluster.leave("broker-b")
            assert query.batch() is None
            cluster.back("broker-b")
            assert query.batch() is None

    assert caplog.text.count("orders is not at broker-b any more: the query continues without it") == 2


def test_messages_do_get_lost_and_errors_do_come() -> None:
    verdicts = [simulate_losses(seed, reader=name, strict=strict) for name, seed in CASES[::3] for strict in (True, False)]

    assert sum(verdict.lost for verdict in verdicts) > 0
    assert sum(verdict.errors for verdict in verdicts) > 0
