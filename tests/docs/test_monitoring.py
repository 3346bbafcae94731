"""Alert rules and dashboard name metrics and labels that exist, and commands that do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfmoon.programs.exposition import of_process
from halfmoon.programs.monitoring import METRICS

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "monitoring"
OF_PROMETHEUS = {"instance", "job"}
LABELS: dict[str, set[str]] = {
    **{metric.name: set(metric.labels) for metric in METRICS},
    **{f"{m.name}_{end}": {*m.labels, "le"} for m in METRICS if m.kind == "histogram" for end in ("bucket", "sum", "count")},
    **{family.samples[0].name: set() for family in of_process()},
    "up": set(),
}
FUNCTIONS = {"sum", "time", "min", "max", "rate", "increase", "max_over_time", "topk", "histogram_quantile", "label_values"}
WORDS = {"by", "or", "unless", "offset", "le", "on"}


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield what shows an expression, and the expression."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((DIRECTORY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def bare(expression: str) -> str:
    """Return an expression without its selectors, durations and lists of labels."""
    text = re.sub(r"\{[^}]*\}", "", expression)
    text = re.sub(r"\[[^\]]*\]|\boffset \d+[smhd]\b", "", text)
    return re.sub(r"\bby \([^)]*\)|, instance\)|, broker\)|, topic\)|, group\)", "", text)


@pytest.mark.parametrize(("shown", "expression"), list(expressions()))
def test_an_expression_names_metrics_and_labels_that_exist(shown: str, expression: str):
    names = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", bare(expression))) - FUNCTIONS - WORDS
    assert names
    assert names <= LABELS.keys()
    for name, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= LABELS[name] | OF_PROMETHEUS, name
    known = set.union(*(LABELS[name] for name in names)) | OF_PROMETHEUS
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= known
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_there_is_a_rule_for_each_thing_that_wants_a_person():
    named = {name for rule in rules() for name in re.findall(r"(?:halfmoon|rocketmq)_\w+|up\b", rule["expr"])}
    assert named >= {
        "up", "halfmoon_store_writable", "halfmoon_disk_free_bytes", "halfmoon_group_lag_seconds", "rocketmq_topic_dlq_offset",
        "halfmoon_transactions_oldest_pending_seconds", "halfmoon_transactions_expired_total", "halfmoon_refused_requests_total",
    }  # fmt: skip


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_how_bad_it_is_and_in_words_of_its_own_labels_what(rule: dict[str, Any]):
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    summary = rule["annotations"]["summary"]
    kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
    if kept:
        known = {label.strip() for label in kept[0].split(",")} - {"le"}
    else:
        known = set.union(*(LABELS.get(name, set()) for name in re.findall(r"\w+", rule["expr"]))) | OF_PROMETHEUS
    assert set(re.findall(r"\$labels\.(\w+)", summary)) <= known
    commands = (ROOT / "docs" / "commands.md").read_text()
    for command in re.findall(r": (halfmoon [a-z]+ [a-z]+)$", summary):
        assert f"{command}\n" in commands, command


def test_the_dashboard_has_panels_that_do_not_lie_on_each_other():
    panels = json.loads((DIRECTORY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in (("x", "w"), ("y", "h"))]
        assert any(apart), (one, other)


def test_prometheus_is_pointed_at_the_job_that_rules_and_dashboard_name():
    configuration = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    [job] = configuration["scrape_configs"]
    named = {found for _, expression in expressions() for found in re.findall(r'job="(\w+)"', expression)}
    assert named == {job["job_name"]}
    assert [(DIRECTORY / name).exists() for name in configuration["rule_files"]] == [True]
