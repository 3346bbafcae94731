"""`halfmoon sql` against a running broker: rows, JSON, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def orders(run, topic) -> str:
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    for number in range(4):
        run("produce", topic, "--tag", f"t{number % 2}", f'{{"n": {number}}}')
    return topic


def test_a_query_shows_the_rows_of_topics(run, orders):
    shown = run("sql", f"select tags, count(*) as messages from {orders} group by tags order by tags")
    cells = [line.split() for line in shown.out.splitlines() if "─" not in line]
    assert cells == [["tags", "messages"], ["t0", "2"], ["t1", "2"]]

    found = run("sql", f"select sum(n) total, min(tags) from {orders} where n > 0", "--decode", "json", "--json").json()
    assert found == {"columns": ["total", "min(tags)"], "rows": [{"total": 6, "min(tags)": "t0"}], "more": False}


def test_a_limit_says_that_there_are_more_rows(run, orders):
    found = run("sql", f"select queueOffset, queueOffset from {orders} order by 1", "--limit", "3", "--json").json()

    assert (len(found["rows"]), found["more"]) == (3, True)
    assert found["columns"] == ["queueOffset", "queueOffset_2"]
    assert "there are more than these 3: give --limit" in run("sql", f"select queueId from {orders}", "--limit", "3").out


def test_only_recent_messages_are_read_where_that_is_asked_for(run, orders):
    assert run("sql", f"select count(*) c from {orders}", "--since", "1h", "--json").json()["rows"] == [{"c": 4}]
    assert run("sql", f"select count(*) c from {orders}", "--since", "2999-01-01T00:00:00Z", "--json").json()["rows"] == [{"c": 0}]


@pytest.mark.parametrize(
    ("query", "says"), [("selec 1", "syntax error"), ("select * from nowhere", "nowhere"), ("select x from {topic}", "x")]
)
def test_a_wrong_query_is_refused_with_the_words_of_duckdb(run, orders, query, says):
    failed = run("sql", query.format(topic=orders))

    assert failed.code == 2
    assert says in failed.err


def test_rows_of_nothing_are_none(run, orders):
    assert run("sql", f"select * from {orders} where tags = 'none'", "--fail-if-empty").code == 1


MISSING = """
import sys
from types import ModuleType
from halfmoon.cli.main import main

sys.modules.update({"duckdb": ModuleType("duckdb"), sys.argv.pop(1): None})
sys.exit(main())
"""


@pytest.mark.parametrize(("missing", "remedy"), [("duckdb", "pip install duckdb"), ("pyarrow", "pip install 'halfmoon[arrow]'")])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(missing, remedy):
    failed = subprocess.run(
        [sys.executable, "-c", MISSING, missing, "sql", "select 1"], capture_output=True, text=True, check=False
    )

    assert (failed.returncode, f"{missing} is not installed: {remedy}" in failed.stderr) == (2, True)
