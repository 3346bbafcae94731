"""The outcome of the demo: what agrees, and that whatever does not is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from halfmoon.cli.demo.command import app
from halfmoon.cli.demo.ledgers import DELIVERIES, ORDERS, PAID, PLACED, REFUSED, REMINDERS, TOPIC, connect
from halfmoon.cli.demo.outcome import Held, Outcome, books, counted
from halfmoon.cli.demo.pipeline import Audit, SparkResults, compared
from halfmoon.cli.demo.run import Demo


class Half(NamedTuple):
    """A half message as the broker's table has it."""

    msg_id: str
    state: str = "COMMITTED"
    last_answer: str = ""


def order(name: str, cents: int = 100) -> bytes:
    """A message's body."""
    return json.dumps({"order": name, "cents": cents}).encode()


def ending(
    tmp_path, orders: dict[str, str], halves: list[Half], log: list[bytes], delivered: dict[str, int], *, pending: int = 0,
    large: Sequence[str] = (), sent: Sequence[str] = ("a",), reminders: Sequence[str] = ("a",), late_ms: int = 5,
    told: Sequence[str] = ("a",), cents: int = 100, brought: SparkResults | None = None,
) -> Outcome:  # fmt: skip
    """Count what databases and broker hold; the transaction of order ``a`` is ``tx-a``."""
    rows = [(name, cents, state, None if state == PLACED else f"tx-{name}") for name, state in orders.items()]
    connect(tmp_path, ORDERS).executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    connect(tmp_path, ORDERS).executemany("INSERT INTO reminders VALUES (?)", [(name,) for name in sent])
    database = connect(tmp_path, DELIVERIES)
    database.executemany("INSERT INTO deliveries VALUES (?, ?, ?)", [(name, cents, times) for name, times in delivered.items()])
    database.executemany("INSERT INTO large VALUES (?, ?, 1)", [(name, cents) for name in large])
    database.executemany("INSERT INTO reminders VALUES (?, ?, 1)", [(name, late_ms) for name in told])
    held = Held(log, halves, pending, [order(name) for name in reminders])
    facts = counted(books(connect(tmp_path, ORDERS), database), held, brought)
    return Outcome(**facts, kills=0, ready_ms=[], seconds=1.0)


BOTH = {"a": PAID, "b": REFUSED}
DONE = [Half("tx-a"), Half("tx-b", "ROLLED_BACK")]


def test_everything_in_its_place_agrees(tmp_path):
    found = ending(tmp_path, BOTH, DONE, [order("a")], {"a": 1})

    assert (found.paid, found.refused, found.agrees) == (1, 1, True)


def test_a_message_stored_or_delivered_twice_is_counted_and_agrees(tmp_path):
    found = ending(tmp_path, BOTH, [*DONE, Half("tx-a")], [order("a"), order("a")], {"a": 2})

    assert (found.again_visible, found.again_delivered, found.agrees) == (1, 1, True)


def test_a_half_message_that_was_cut_short_and_rolled_back_agrees(tmp_path):
    found = ending(tmp_path, BOTH, [*DONE, Half("tx-old", "ROLLED_BACK", "ROLLBACK")], [order("a")], {"a": 1})

    assert (found.left_behind, found.left_behind_rolled_back, found.by_check, found.agrees) == (1, 1, 1, True)


@pytest.mark.parametrize(
    ("what", "row", "given"),
    [
        ("a paid order whose half message was rolled back", "paid", {"halves": [Half("tx-a", "ROLLED_BACK"), DONE[1]]}),
        ("a paid order that the broker never had", "paid", {"halves": DONE[1:]}),
        ("a paid order that is not in the log", "paid", {"log": []}),
        ("a paid order that was not delivered", "paid", {"delivered": {}}),
        ("a paid order with another sum", "paid", {"log": [order("a", 101)]}),
        ("a refused order that was committed", "refused", {"halves": [DONE[0], Half("tx-b")]}),
        ("a refused order that is visible", "refused", {"log": [order("a"), order("b")]}),
        ("a refused order that was delivered", "refused", {"delivered": {"a": 1, "b": 1}}),
        ("a half message of no order that was committed", "left_behind", {"halves": [*DONE, Half("tx-x")]}),
        ("a message of no order", "left_behind", {"log": [order("a"), order("x")]}),
        ("an order without a decision", "in_doubt", {"orders": {**BOTH, "c": PLACED}}),
        ("a half message without a decision", "in_doubt", {"pending": 1}),
        ("a large order that the filter left out", "large", {"cents": 5001, "log": [order("a", 5001)]}),
        ("an order that the filter should have left out", "large", {"large": ["a"]}),
        ("a reminder that is not in the log", "reminders", {"reminders": []}),
        ("a reminder that did not come", "reminders", {"told": []}),
        ("a reminder that came before its time", "reminders", {"late_ms": -1}),
        ("a reminder of an order that was refused", "reminders", {"told": ["a", "b"]}),
    ],
)  # fmt: skip
def test_the_count_bites(tmp_path, what, row, given):
    asked = {"orders": BOTH, "halves": DONE, "log": [order("a")], "delivered": {"a": 1}, **given}

    found = ending(tmp_path, **asked)
    assert not found.agrees, what
    assert not getattr(found, "reminders_agree" if row == "reminders" else f"{row}_agrees"), what


# ---------------------------------------------------------------- Spark's part


EVENT, REMINDER = (TOPIC, "a", 100), (REMINDERS, "a", None)


def brought(
    rows: Sequence[tuple[str, str | None, int | None]] = (EVENT, REMINDER), copies: Sequence[bytes] = (order("a"),), *,
    killed_at: int = 1, duplicates: int = 0, orphans: int = 0, **states: int,
) -> SparkResults:  # fmt: skip
    """What Spark found where all is well, but for what is given."""
    told = states or {"COMMITTED": 1, "ROLLED_BACK": 1}
    return SparkResults(rows, copies, killed_at, Audit(told, [], duplicates, orphans, "audit.png"), 1.0)


def thrice(killed_at: int) -> SparkResults:
    """What Spark found of an event that is there three times."""
    return brought([EVENT] * 3 + [REMINDER], [order("a")] * 3, killed_at=killed_at)


def with_spark(tmp_path: Path, found: SparkResults, copies: int = 1) -> Outcome:
    """Count with what Spark brought; order ``a`` is so often in the log."""
    return ending(tmp_path, BOTH, DONE, [order("a")] * copies, {"a": copies}, brought=found)


def test_what_spark_found_agrees_with_the_log(tmp_path):
    found = with_spark(tmp_path, brought())

    assert found.spark is not None
    assert (found.spark.table["paid"], found.spark.copies["paid"], found.spark.table["reminders"]) == (1, 1, 1)
    assert found.agrees


def test_a_transaction_that_was_begun_again_is_in_the_state_of_its_last_half_message():
    halves = [Half("tx-a", "ROLLED_BACK"), Half("tx-a"), Half("tx-b"), Half("tx-b", "ROLLED_BACK"), Half("tx-c", "ROLLED_BACK")]

    found = compared(brought(), [order("a")], [], halves, {PAID: {"a"}, REFUSED: set(), PLACED: set()})

    assert found.at_broker == {"COMMITTED": 2, "ROLLED_BACK": 1}


@pytest.mark.parametrize(
    ("what", "found", "copies"),
    [
        ("a row is missing in the table", brought([REMINDER]), 1),
        ("a row is in the table twice", brought([EVENT, EVENT, REMINDER]), 1),
        ("a row says another sum", brought([(TOPIC, "a", 101), REMINDER]), 1),
        ("a refused order is in the table", brought([EVENT, (TOPIC, "b", 100), REMINDER]), 1),
        ("a reminder is missing in the table", brought([EVENT]), 1),
        ("the table has rows of another topic", brought([EVENT, REMINDER, ("other", "a", 100)]), 1),
        ("a copy is missing", brought(copies=[]), 1),
        ("a copy is there twice", brought(copies=[order("a"), order("a")]), 1),
        ("a copy is another message", brought(copies=[order("a") + b" "]), 1),
        ("the driver was killed before it had copied anything", thrice(killed_at=0), 3),
        ("the driver was killed when all was copied", thrice(killed_at=3), 3),
        ("the audit finds one transaction less", brought(COMMITTED=1), 1),
        ("the audit finds one that is pending", brought(COMMITTED=1, ROLLED_BACK=1, PENDING=1), 1),
        ("the audit finds one visible twice that consumers see once", brought(duplicates=1), 1),
        ("the audit finds more of them than consumers", brought([EVENT, EVENT, REMINDER], [order("a")] * 2, duplicates=2), 2),
        ("the audit finds a record of no transaction", brought(orphans=1), 1),
    ],
)  # fmt: skip
def test_the_count_of_sparks_part_bites(tmp_path, what, found, copies):
    assert not with_spark(tmp_path, found, copies).agrees, what


def test_a_transaction_that_audit_and_consumers_see_twice_agrees(tmp_path):
    assert with_spark(tmp_path, brought([EVENT, EVENT, REMINDER], [order("a")] * 2, duplicates=1), 2).agrees


def test_a_kill_in_the_middle_of_several_copies_agrees(tmp_path):
    assert with_spark(tmp_path, thrice(killed_at=2), 3).agrees


@pytest.mark.parametrize(
    ("found", "code", "said"), [(brought(), 0, "Everything agrees"), (brought(copies=[]), 1, "IT DOES NOT AGREE")]
)
def test_what_does_not_agree_is_said_and_is_exit_code_1(tmp_path, monkeypatch, found, code, said):
    ended = with_spark(tmp_path, found)
    ended.ready_ms = [5]
    monkeypatch.setattr(Demo, "run", lambda demo: ended)

    shown = CliRunner().invoke(app, ["--no-spark"])

    assert (shown.exit_code, said in shown.output) == (code, True), (shown.output, shown.exception)
    assert ("NO" in shown.output.split()) == bool(code)
