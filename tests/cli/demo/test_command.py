"""`halfmoon demo` as a whole, with real processes and a real kill; and that its count bites."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from halfmoon.cli.demo.ledgers import DELIVERIES, ORDERS, connect, counts
from halfmoon.cli.demo.processes import Cast
from halfmoon.cli.demo.story import Ending, Play

README = Path(__file__).resolve().parents[3] / "README.md"


def words(output: str) -> set[str]:
    """Return what is written on the lines of an output, whatever the numbers."""
    return {" ".join(re.sub(r"[\d,.]+", " ", line).split()) for line in output.splitlines() if "─" not in line}


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process of its own, without a terminal."""
    command = [sys.executable, "-m", "halfmoon.cli.main", "demo", "--orders", "120", "--per-second", "200", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_ends_well_after_a_kill_and_says_so_to_programs(tmp_path):
    ended = demo("--json", "--keep", str(tmp_path / "kept"))

    found = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert found["agrees"]
    assert found["orders_written"] == found["acknowledged"] == found["in_the_log_unique"] == found["consumed_unique"] == 120
    assert (found["kills"], len(found["killed_at"]), len(found["ready_ms"])) == (1, 1, 2)
    assert 0 < found["killed_at"][0] < 120
    assert (tmp_path / "kept" / "store" / "commitlog").is_dir()


def test_it_shows_a_table_without_a_terminal():
    ended = demo()

    assert ended.returncode == 0, ended.stderr
    assert "Everything agrees" in ended.stdout
    assert "\x1b" not in ended.stdout
    promised, said = words(README.read_text().split("$ make demo\n")[1].split("```")[0]), words(ended.stdout)
    assert not [line for line in promised if not any(other.startswith(line) for other in said)], ended.stdout


def test_a_directory_that_is_not_empty_is_a_usage_error(tmp_path):
    (tmp_path / "mine").write_text("x")

    assert demo("--keep", str(tmp_path)).returncode == 2


# ---------------------------------------------------------------- the count


def order(name: str, cents: int = 100) -> bytes:
    """A message's body."""
    return json.dumps({"order": name, "cents": cents}).encode()


def ending(tmp_path, written: list[str], acknowledged: list[str], log: list[bytes], delivered: dict[str, int]) -> Ending:
    """Count what two databases and a log hold."""
    cast = Cast(tmp_path)
    play = Play(cast, orders=len(written), per_second=1, kills=0, watch=lambda what, now: None)
    orders, deliveries = connect(tmp_path, ORDERS), connect(tmp_path, DELIVERIES)
    orders.executemany(
        "INSERT INTO orders VALUES (?, 100, ?)", [(name, "id" if name in acknowledged else None) for name in written]
    )
    deliveries.executemany("INSERT INTO deliveries VALUES (?, 100, ?)", delivered.items())
    return play.count(log)


def test_everything_in_its_place_agrees(tmp_path):
    found = ending(tmp_path, ["a", "b"], ["a", "b"], [order("a"), order("b")], {"a": 1, "b": 1})

    assert found.agrees


def test_a_message_stored_or_delivered_twice_is_counted_and_agrees(tmp_path):
    found = ending(tmp_path, ["a", "b"], ["a", "b"], [order("a"), order("b"), order("b")], {"a": 1, "b": 2})

    assert (found.in_the_log, found.in_the_log_unique, found.consumed, found.consumed_unique) == (3, 2, 3, 2)
    assert found.agrees


def test_an_acknowledged_message_that_the_log_lacks_is_lost(tmp_path):
    found = ending(tmp_path, ["a", "b"], ["a", "b"], [order("a")], {"a": 1, "b": 1})

    assert (found.lost_in_the_log, found.agrees) == (1, False)


def test_an_order_that_was_not_delivered_is_lost(tmp_path):
    found = ending(tmp_path, ["a", "b"], ["a", "b"], [order("a"), order("b")], {"a": 1})

    assert (found.lost_on_the_way, found.agrees) == (1, False)


def test_an_order_that_was_never_acknowledged_does_not_agree(tmp_path):
    found = ending(tmp_path, ["a", "b"], ["a"], [order("a"), order("b")], {"a": 1, "b": 1})

    assert not found.agrees


def test_a_message_with_other_content_does_not_agree(tmp_path):
    found = ending(tmp_path, ["a"], ["a"], [order("a", 101)], {"a": 1})

    assert (found.wrong, found.agrees) == (1, False)


def test_counts_are_read_from_the_databases(tmp_path):
    ending(tmp_path, ["a", "b", "c"], ["a", "b"], [], {"a": 3})

    assert counts(connect(tmp_path, ORDERS), connect(tmp_path, DELIVERIES)) == (3, 2, 1)
