"""Metrics of transactions in Prometheus' text format: one help line a metric, escaped labels, all counters."""

from __future__ import annotations

from types import SimpleNamespace

from halfmoon.cli.tx.metrics import exposition, label_text, metric_name, show_figures


def stats(**values: object) -> SimpleNamespace:
    """Return the figures of a broker."""
    group = SimpleNamespace(group="P_shop", pending=2, producers=1, oldest_ms=7_000)
    given = {
        "broker": "a", "now_ms": 10_000, "oldest_ms": 7_000, "pending_count": 2, "groups": [group],
        "per_second": {"P_shop": {"commits": 0.5}}, "counters": {"commits": 9, "new one": 1}, "not_reported": [],
    }  # fmt: skip
    return SimpleNamespace(**{**given, **values})


def test_a_metric_has_one_help_line_and_a_sample_a_broker():
    lines = exposition([stats(), stats(broker="b", groups=[], per_second={})])

    assert lines.count("# TYPE halfmoon_transactions_pending_all gauge") == 1
    assert 'halfmoon_transactions_pending_all{broker="b"} 2' in lines
    assert 'halfmoon_transactions_oldest_pending_seconds{broker="a",group="P_shop"} 3.0' in lines
    assert 'halfmoon_transactions_decisions_per_second{broker="a",group="P_shop",kind="commits"} 0.5' in lines
    assert 'halfmoon_transactions_new_one_total{broker="a"} 1' in lines


def test_names_and_labels_are_what_the_format_allows():
    assert metric_name("a-b c") == "a_b_c"
    assert label_text('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


def test_figures_of_a_group_without_pending_messages_are_shown_too(capsys):
    show_figures([stats(groups=[])])
    show_figures([stats(counters={}, oldest_ms=-1)])

    first, second = capsys.readouterr().out.split("a: 2 pending")[1:]
    assert first.startswith(", the oldest for 3.0s\n")
    assert "P_shop" in first
    assert "0.5" in first
    assert "not reported" in second
