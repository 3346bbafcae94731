"""Figures of transactions: tables for people, and metrics in Prometheus' text exposition format (version 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_table
from halfmoon.cli.tx.tables import show_notes
from halfmoon.metrics import TRANSACTIONS
from halfmoon.shown.texts import span_text


def show_figures(brokers: Sequence[Any]) -> None:
    """Write figures of every broker as tables."""
    for stats in brokers:
        oldest = "" if stats.oldest_ms < 0 else f", the oldest for {span_text(stats.now_ms - stats.oldest_ms)}"
        say(f"{stats.broker}: {stats.pending_count:,} pending{oldest}")
        groups = {group.group: group for group in stats.groups}
        rows = [_group_row(stats, name, groups.get(name)) for name in sorted({*groups, *stats.per_second})]
        if rows:
            show_table("groups", ("group", "pending", "oldest", "producers", "commits/s", "rollbacks/s"), rows)
        if stats.counters:
            counters = [(name.replace("_", " "), count) for name, count in stats.counters.items()]
            show_table("since the start", ("what", "count"), counters)
    show_notes(brokers)


def _group_row(stats: Any, name: str, group: Any) -> list[object]:
    """Return the figures of a producer group; ``group`` is None where it has nothing pending."""
    rates = stats.per_second.get(name, {})
    per_second = [f"{rates.get(kind, 0.0):.1f}" if stats.counters else "not reported" for kind in ("commits", "rollbacks")]
    if group is None:
        return [name, 0, "", "", *per_second]
    age = span_text(stats.now_ms - group.oldest_ms) if group.oldest_ms >= 0 else ""
    return [name, group.pending, age, group.producers, *per_second]


def exposition(brokers: Sequence[Any]) -> list[str]:
    """Return figures of all brokers as the lines of metrics; what a broker does not report has no line."""
    metrics: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, type_: str, text: str, value: float, /, **labels: str) -> None:
        inner = ",".join(f'{label}="{label_text(value)}"' for label, value in labels.items())
        number = str(value) if isinstance(value, int) else repr(float(value))
        metrics.setdefault(f"halfmoon_transactions_{metric_name(name)}", (type_, text, []))[2].append(f"{{{inner}}} {number}")

    for stats in brokers:
        labels = {"broker": stats.broker}
        add("pending_all", "gauge", "Half messages of a broker without a decision.", stats.pending_count, **labels)
        for group in stats.groups:
            group_labels = {**labels, "group": group.group}
            add("pending", "gauge", "Half messages of a producer group without a decision.", group.pending, **group_labels)
            add("producers", "gauge", "Live producers of a group that has something pending.", group.producers, **group_labels)
            if group.oldest_ms >= 0:
                age = max(0, stats.now_ms - group.oldest_ms) / 1000
                add(
                    "oldest_pending_seconds",
                    "gauge",
                    "Age of a group's oldest half message without a decision.",
                    age,
                    **group_labels,
                )
        for name, rates in stats.per_second.items():
            for kind, rate in rates.items():
                text = "Decisions per second over the last minute."
                add("decisions_per_second", "gauge", text, float(rate), **labels, group=name, kind=kind)
        for name, count in stats.counters.items():
            add(f"{name}_total", "counter", TRANSACTIONS.get(name, metric_name(name)), count, **labels)
    lines = []
    for name, (type_, text, samples) in metrics.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {type_}", *(name + sample for sample in samples)]
    return lines


def metric_name(name: str) -> str:
    """Return a counter's name as a broker reports it, with an underscore for what no metric's name has."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def label_text(text: str) -> str:
    """Return the value of a label as it stands between quotes."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
