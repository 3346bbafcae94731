"""Which queue a message goes to when brokers are slow or fail."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.faults import FaultTable, avoid_ms, choose_queue
from halfmoon.client.core.route import PublishInfo, publish_info, route_of
from halfmoon.client.settings import ProducerSettings
from halfmoon.model import MessageQueue
from tests.client.scripted import route

NOW = 1_700_000_000_000


def info(brokers) -> PublishInfo:
    return publish_info("t", route_of(route(brokers)))


def table(**latencies) -> FaultTable:
    found = FaultTable(enabled=True)
    for name, latency in latencies.items():
        found.record(f"broker-{name}", latency, NOW)
    return found


@pytest.mark.mission("000-52")
@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(0, 0), (49, 0), (50, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000),
     (14_999, 180_000), (15_000, 600_000)],
)  # fmt: skip
def test_a_slow_success_is_avoided_for_as_long_as_the_table_says(latency_ms, avoided_ms):
    assert avoid_ms(latency_ms) == avoided_ms


@pytest.mark.mission("000-51")
def test_a_failed_broker_counts_as_thirty_seconds_and_is_avoided_for_ten_minutes():
    faults = FaultTable(enabled=True)

    faults.record("broker-a", 1, NOW, failed=True)

    assert faults.items["broker-a"].latency_ms == 30_000
    assert not faults.available("broker-a", NOW + 599_999)
    assert faults.available("broker-a", NOW + 600_000)


@pytest.mark.mission("000-49")
def test_avoidance_is_off_unless_asked_for_and_then_notes_nothing():
    faults = FaultTable(enabled=ProducerSettings().latency_avoidance)

    faults.record("broker-a", 20_000, NOW, failed=True)

    assert not faults.enabled
    assert faults.items == {}


@pytest.mark.mission("000-53", "000-50")
def test_the_first_available_broker_in_turn_is_taken():
    faults = table(a=600)

    chosen = {
        choose_queue(found, None, faults, NOW).broker_name for found in [info({"broker-a": 4, "broker-b": 2})] for _ in range(12)
    }

    assert chosen == {"broker-b"}


def test_an_available_broker_other_than_the_one_that_failed_comes_first():
    faults, found = FaultTable(enabled=True), info({"broker-a": 4, "broker-b": 1})

    assert {choose_queue(found, "broker-a", faults, NOW).broker_name for _ in range(10)} == {"broker-b"}


def test_the_only_available_broker_is_taken_even_if_it_failed_last():
    faults, found = table(b=20_000), info({"broker-a": 1, "broker-b": 1})

    assert choose_queue(found, "broker-a", faults, NOW).broker_name == "broker-a"


@pytest.mark.mission("000-53")
def test_when_all_are_avoided_the_least_bad_one_is_taken_with_the_turn_modulo_its_queues():
    faults, found = table(a=20_000, b=600), info({"broker-a": 4, "broker-b": 3})

    chosen = [choose_queue(found, None, faults, NOW) for _ in range(6)]

    assert chosen == [MessageQueue("t", "broker-b", (found.turn - 5 + i) % 3) for i in range(6)]


@pytest.mark.mission("000-53")
def test_a_least_bad_broker_without_queues_is_forgotten_and_the_turn_goes_on():
    faults, found = table(a=20_000, gone=600), info({"broker-a": 2})

    assert choose_queue(found, None, faults, NOW).broker_name == "broker-a"
    assert "broker-gone" not in faults.items


@pytest.mark.mission("000-54", "004-09")
def test_off_queues_come_in_turn_and_a_retry_takes_another_broker():
    faults, found = FaultTable(enabled=False), info({"broker-a": 2, "broker-b": 2})
    start = found.turn

    chosen = [choose_queue(found, None, faults, NOW) for _ in range(4)]

    assert chosen == [found.queues[(start + 1 + i) % 4] for i in range(4)]
    assert {choose_queue(found, "broker-b", faults, NOW).broker_name for _ in range(8)} == {"broker-a"}


def test_off_a_retry_with_one_broker_only_takes_its_next_queue():
    faults, found = FaultTable(enabled=False), info({"broker-a": 2})

    assert {choose_queue(found, "broker-a", faults, NOW).queue_id for _ in range(4)} == {0, 1}
