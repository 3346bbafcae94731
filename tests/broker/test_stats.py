"""Counters: what is put is counted under its topic and the broker, behind a forgotten topic too, and only up to a bound."""

from __future__ import annotations

from halfmoon.broker.stats import PutTimes, Stats
from halfmoon.instant import instant

NOW = 1_700_000_000_000


def test_each_put_counts_for_its_topic_and_for_the_broker():
    stats = Stats("cluster", instant(NOW))
    for count, size in ((1, 100), (32, 9000), (1, 50)):
        stats.moved("orders", None, count, size)
    stats.moved("others", None, 5, 500)

    item = stats.item("TOPIC_PUT_SIZE", "orders")
    assert item is not None
    assert (stats.total("TOPIC_PUT_NUMS", "orders"), item.total, item.times) == (34, 9150, 3)
    assert (stats.total("TOPIC_PUT_NUMS", "others"), stats.total("BROKER_PUT_NUMS")) == (5, 39)


def test_a_forgotten_topic_begins_anew_and_the_brokers_sum_goes_on():
    stats = Stats("cluster", instant(NOW))
    stats.moved("orders", None, 3, 300)
    stats.moved("orders", None, 4, 400)

    stats.topic_deleted("orders")
    stats.moved("orders", None, 1, 100)
    stats.moved("orders", None, 1, 100)

    assert (stats.total("TOPIC_PUT_NUMS", "orders"), stats.total("TOPIC_PUT_SIZE", "orders")) == (2, 200)
    assert stats.total("BROKER_PUT_NUMS") == 9


def test_topics_beyond_the_bound_of_counters_are_not_counted():
    stats = Stats("cluster", instant(NOW))
    stats.items_max = 4
    for _ in range(3):
        for topic in ("a", "b", "c"):
            stats.moved(topic, None, 1, 10)

    assert [stats.total("TOPIC_PUT_NUMS", topic) for topic in ("a", "b", "c")] == [3, 3, 0]
    assert stats.total("BROKER_PUT_NUMS") == 9


def test_what_is_kept_of_how_long_reads_took_is_bounded():
    stats = Stats("C", instant(0))
    stats.latencies_max, stats.reads_timed_max = 3, 5
    for number in range(9):
        stats.read(number, "t", "g")
    stats.turned(4)
    stats.turned(4)  # nothing was read in it

    found = [stats.item("GROUP_GET_LATENCY", f"{number}@t@g") for number in range(9)]
    assert [item and item.total for item in found] == [4, 4, 4, *[None] * 6]
    stats.topic_deleted("t")
    stats.read(8, "t", "g")
    stats.turned(4)
    assert stats.total("GROUP_GET_LATENCY", "8@t@g") == 4, "there is room again"


def test_samples_are_taken_when_they_are_due_and_not_before():
    stats = Stats("cluster", instant(NOW))
    stats.moved("orders", None, 10, 1000)
    assert stats.due(instant(NOW)) == NOW + 10_000
    stats.tick(instant(NOW + 9_999))
    assert stats.due(instant(NOW)) == NOW + 10_000
    stats.tick(instant(NOW + 10_000))
    stats.moved("orders", None, 50, 5000)
    stats.tick(instant(NOW + 20_000))

    assert stats.due(instant(NOW)) == NOW + 30_000
    assert stats.per_second("TOPIC_PUT_NUMS", "orders")[0] == 3.0


def test_what_came_before_the_first_sample_counts_in_its_window():
    stats = Stats("cluster", instant(NOW))
    stats.moved("orders", None, 10, 1000)
    stats.tick(instant(NOW + 10_000))

    item = stats.item("TOPIC_PUT_NUMS", "orders")
    assert item is not None
    assert item.rate(0) == (10, 1.0, 10.0)


def test_put_times_are_those_of_the_last_whole_minute():
    times = PutTimes(NOW)
    times.took(0, 990)
    times.took(12, 10)
    assert (times.distribution(), times.percentile(0.99), times.percentile(0.999)) == ("null", 0.0, 12.0)

    times.tick(NOW + 60_000)
    times.took(20_000)

    assert times.distribution().startswith("[<=0ms]:990 [0~10ms]:0 [10~50ms]:10 [50~100ms]:0 ")
    assert times.percentile(0.999) == 12.0
    assert times.max_ms == 20_000
    times.tick(NOW + 120_000)
    assert times.distribution().endswith("[5~10s]:0 [10s~]:1 ")
    assert times.percentile(0.99) == 20_000.0
    times.tick(NOW + 180_000)
    assert times.percentile(0.99) == 0.0
