"""The text of metrics, as prometheus-client's own parsers read it."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from halfmoon.metrics import Metric, TurnTimes
from halfmoon.programs.exposition import LABEL_LENGTH_MAX, OPENMETRICS, PLAIN, MetricsPage, of_process

GAUGE = Metric("halfmoon_thing", "gauge", ("broker", "group"), "A \\ thing\nof two lines.")
BARE = Metric("halfmoon_bare", "gauge", (), "Without labels.")
COUNTER = Metric("halfmoon_events_total", "counter", ("broker",), "Events.")
TURNS = Metric("halfmoon_turn_seconds", "histogram", ("server",), "Turns.")
FORMATS = [(PLAIN, parse_plain), (OPENMETRICS, parse_openmetrics)]


def read(page, content_type, parse):
    text = b"".join(page.pieces(content_type)).decode()
    assert text.endswith("# EOF\n") is (content_type == OPENMETRICS)
    assert text.count("# EOF") == (content_type == OPENMETRICS)
    families = {family.name: family for family in parse(text)}
    return families, {(s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples}


@pytest.mark.parametrize(("content_type", "parse"), FORMATS)
def test_every_kind_of_metric_reads_back_as_it_was(content_type, parse):
    page, times = MetricsPage(1000, of_process()), TurnTimes()
    for ns in (1000, 10_000_000):
        times.took(ns)
    for sample in [
        (GAUGE, ("b", "g"), 1.5),
        (BARE, (), 7),
        (COUNTER, ("b",), 2**53),
        (TURNS, ("x",), times),
        (GAUGE, ("b", "h"), 0),
    ]:
        page.add(sample)

    families, found = read(page, content_type, parse)
    assert found["halfmoon_thing", "b", "g"] == 1.5
    assert found["halfmoon_thing", "b", "h"] == 0
    assert found["halfmoon_bare",] == 7
    assert found["halfmoon_events_total", "b"] == 2**53
    assert found["halfmoon_turn_seconds_bucket", "+Inf", "x"] == found["halfmoon_turn_seconds_count", "x"] == 2
    assert found["halfmoon_turn_seconds_bucket", "0.016777216", "x"] == 2
    assert found["halfmoon_turn_seconds_sum", "x"] == pytest.approx(0.010001)
    assert families["halfmoon_thing"].type == "gauge"
    assert families["halfmoon_thing"].documentation == GAUGE.text
    assert families["halfmoon_events"].type == "counter"
    assert families["halfmoon_turn_seconds"].type == "histogram"
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    assert page.series == 4 + 19


@pytest.mark.parametrize(("content_type", "parse"), FORMATS)
@pytest.mark.parametrize("name", ['quote"d', "back\\slash", "two\nlines", "ümläut ☾", "} 1\nforged 2", "\\n", ""])
def test_a_name_of_any_characters_stays_in_its_label(content_type, parse, name):
    page = MetricsPage(1000)
    page.add((GAUGE, (name, "g"), 1))

    families, _ = read(page, content_type, parse)
    assert [sample.labels for sample in families["halfmoon_thing"].samples] == [{"broker": name, "group": "g"}]
    assert not [family for family in families if "forged" in family]


def test_a_name_that_is_no_text_leaves_the_others_as_they_are():
    page = MetricsPage(1000)
    page.add((GAUGE, ("\ud800", "g"), 1))
    page.add((GAUGE, ("b", "g"), 2))
    _, found = read(page, PLAIN, parse_plain)
    assert found["halfmoon_thing", "?", "g"] == 1
    assert found["halfmoon_thing", "b", "g"] == 2


def test_many_samples_of_a_metric_stay_together_and_in_order():
    page = MetricsPage(10_000)
    for number in range(3000):
        page.add((GAUGE, ("b", f"g{number}"), number))
        page.add((COUNTER, (f"b{number}",), number))
    families, _ = read(page, OPENMETRICS, parse_openmetrics)
    assert [sample.value for sample in families["halfmoon_thing"].samples] == list(range(3000))
    assert len(families["halfmoon_events"].samples) == 3000


def test_a_long_name_is_cut():
    page = MetricsPage(1000)
    page.add((GAUGE, ("x" * 100_000, "g"), 1))
    assert sum(map(len, page.pieces(PLAIN))) < 10_000 + LABEL_LENGTH_MAX


def test_series_beyond_the_bound_are_counted_and_what_closes_a_page_is_not():
    page = MetricsPage(10)
    for number in range(15):
        page.add((GAUGE, ("b", str(number)), number))
    page.close([(BARE, (), page.left_out)])

    _, found = read(page, PLAIN, parse_plain)
    assert sum(name[0] == "halfmoon_thing" for name in found) == 10
    assert found["halfmoon_bare",] == 5
