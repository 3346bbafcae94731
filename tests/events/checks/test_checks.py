# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Answers to brokers' checks: whom they ask, what is said, and when nothing is."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import CheckContext, Codecs, Event, NameRefused, Publisher
from halfmoon.events.checks.checks import Checks
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.publishing.delivery_modes import TOKEN, TOKEN_PROPERTY
from halfmoon.model import LocalTransactionState, StoredMessage
from tests.events.fakes import Blocks, FakeTransport, stored

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
NOT_MINE, OPEN = LocalTransactionState.NOT_MINE, LocalTransactionState.OPEN


def half(topic: str = "TP_ORDER", code: str = "EC_PAID", payload: object = None, **properties: str) -> StoredMessage:
    """Return a half message as a broker asks about it."""
    now_ms = time.time_ns() // 1_000_000
    event = Event(id="AB12", topic=topic, code=code, payload=payload or {"order_id": 42}, key="42")
    return stored(message_of(event, Codecs(), group="P_shop", now_ms=now_ms), TRAN_MSG="true", PGROUP="P_shop", **properties)


@pytest.fixture
def checks() -> Checks:
    return Checks(Codecs())


# ---------------------------------------------------------------- hand-written checks


@pytest.mark.mission("002-11")
def test_returning_is_commit_and_after_rollback_only_it_is_rollback(checks: Checks) -> None:
    checks.add("TP_ORDER", "EC_PAID", lambda event, context: None)
    checks.add("TP_ORDER", "EC_SENT", lambda event, context: context.set_rollback_only("no such order"))
    assert (checks.answer(half()), checks.answer(half(code="EC_SENT"))) == (COMMIT, ROLLBACK)


@pytest.mark.mission("002-11")
def test_an_exception_leaves_it_open_even_after_rollback_only(checks: Checks, caplog: pytest.LogCaptureFixture) -> None:
    def check(event: Event, context: CheckContext) -> None:
        context.set_rollback_only()
        raise OSError("the database does not answer")

    checks.add("TP_ORDER", "EC_PAID", check)
    assert checks.answer(half()) is OPEN
    (line,) = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert line.getMessage() == "check failed: group=P_shop topic=TP_ORDER message=AB12 tag=EC_PAID; the broker asks again"
    assert "OSError: the database does not answer" in caplog.text


@pytest.mark.mission("002-09", "002-10")
def test_a_publisher_declares_a_check_which_is_given_event_and_context() -> None:
    transport = FakeTransport()
    publisher = Publisher("P_shop", transport=transport)
    seen: list[tuple[Event, CheckContext]] = []

    @publisher.check("TP_ORDER", "EC_PAID")
    def paid(event: Event, context: CheckContext) -> None:
        seen.append((event, context))

    publisher.start()
    assert transport.answer is not None
    message = half(TRANSACTION_CHECK_TIMES="3")
    assert transport.answer(message) is COMMIT
    [(event, context)] = seen
    assert (event.id, event.topic, event.code, event.payload) == ("AB12", "TP_ORDER", "EC_PAID", {"order_id": 42})
    assert (event.key, event.group, event.transactional) == ("42", "P_shop", True)
    assert context.message is message
    assert context.checks == 3
    publisher.close()


@pytest.mark.mission("002-07")
def test_the_most_exact_declaration_is_asked_and_of_two_the_one_of_a_topic(checks: Checks) -> None:
    asked: list[str] = []
    for topic, code in [("*", "*"), ("*", "EC_PAID"), ("TP_ORDER", "*"), ("TP_ORDER", "EC_PAID"), ("TP_STOCK", "*")]:
        checks.add(topic, code, lambda event, context, name=f"{topic}/{code}": asked.append(name))
    for topic, code in [
        ("TP_ORDER", "EC_PAID"),
        ("TP_ORDER", "EC_SENT"),
        ("TP_STOCK", "EC_PAID"),
        ("TP_MAIL", "EC_PAID"),
        ("T", "E"),
    ]:
        checks.answer(half(topic, code))
    assert asked == ["TP_ORDER/EC_PAID", "TP_ORDER/*", "TP_STOCK/*", "*/EC_PAID", "*/*"]


def test_a_coroutine_function_may_answer(checks: Checks) -> None:
    async def check(event: Event, context: CheckContext) -> None:
        context.set_rollback_only()

    checks.add("*", "*", check)
    assert checks.answer(half()) is ROLLBACK


def test_without_a_check_the_message_stays_undecided(checks: Checks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    checks.add("TP_STOCK", "*", lambda event, context: None)
    assert checks.answer(half()) is NOT_MINE
    assert "no check here" in caplog.text
    assert "event=AB12" in caplog.text


def test_a_payload_that_does_not_decode_is_undecided(checks: Checks) -> None:
    checks.add("*", "*", lambda event, context: None)
    message = half()
    message.body = b"{"
    assert checks.answer(message) is OPEN


def test_what_cannot_be_declared_is_refused(checks: Checks) -> None:
    checks.add("TP_ORDER", "EC_PAID", lambda event, context: None)
    with pytest.raises(UsageError, match="two checks of TP_ORDER/EC_PAID"):
        checks.add("TP_ORDER", "EC_PAID", lambda event, context: None)
    with pytest.raises(NameRefused):
        checks.add("TP ORDER", "EC_PAID", lambda event, context: None)
    with pytest.raises(NameRefused):
        checks.add("TP_ORDER", "EC||PAID", lambda event, context: None)
    with pytest.raises(UsageError, match="function of event and context"):
        checks.add("TP_ORDER", "EC_PAID", "a name")  # type: ignore[arg-type]
    with pytest.raises(NameRefused, match="not declared"):
        Publisher("P_shop", transport=FakeTransport(), topics=["TP_ORDER"]).check("TP_STOCK")


# ---------------------------------------------------------------- token rows


class Shop(NamedTuple):
    """A publisher with token rows, and the transport through which brokers ask it."""

    publisher: Publisher
    transport: FakeTransport
    database: Blocks

    def asked(self) -> LocalTransactionState:
        """Ask about the last half message."""
        assert self.transport.answer is not None
        return self.transport.answer(stored(self.transport.messages[-1], TRAN_MSG="true", PGROUP="P_shop"))

    def rows(self) -> list[int]:
        with self.database.fresh() as rows:
            return [row[0] for row in rows.all("SELECT state FROM halfmoon_event WHERE state < 2")]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database, transport = Blocks(tmp_path / "shop.db"), FakeTransport()
    with Publisher("P_shop", transport=transport, provider=database) as publisher:
        publisher.create_tables()
        yield Shop(publisher, transport, database)


def test_a_missing_row_proves_nothing_about_a_message_that_was_published_without_one(shop: Shop) -> None:
    assert shop.transport.answer is not None
    message = half()
    assert TOKEN_PROPERTY not in message.properties
    assert shop.transport.answer(message) is NOT_MINE
    assert shop.rows() == []


def _sees_no_order(event: Event, context: CheckContext) -> None:
    """A check as it is asked in another process: the order is not committed, or never will be."""
    context.set_rollback_only("no such order")


def test_a_hand_written_check_asked_while_the_transaction_is_open_does_not_roll_it_back(shop: Shop) -> None:
    shop.publisher.check("TP_ORDER", "EC_PAID")(_sees_no_order)
    with shop.database.begin():
        shop.publisher.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
        with ThreadPoolExecutor() as elsewhere:
            answer = elsewhere.submit(shop.asked).result(60)
    assert answer is OPEN
    assert shop.asked() is COMMIT  # though the check says what it saw a moment before the commit


def test_a_hand_written_check_rolls_back_what_did_not_commit_and_can_never_commit_any_more(shop: Shop) -> None:
    shop.publisher.check("TP_ORDER", "EC_PAID")(_sees_no_order)
    with pytest.raises(ValueError), shop.database.begin():
        shop.publisher.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
        raise ValueError
    assert shop.asked() is ROLLBACK
    assert shop.rows() == [0]


def test_a_hand_written_check_commits_by_what_it_sees(shop: Shop) -> None:
    shop.publisher.check("TP_ORDER", "EC_PAID")(lambda event, context: None)
    with shop.database.begin():
        shop.publisher.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
    assert shop.asked() is COMMIT


def test_that_the_table_is_missing_is_said_once_and_the_broker_asks_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checks = Checks(Codecs(), Blocks(tmp_path / "shop.db"))
    asked = half(**{TOKEN_PROPERTY: TOKEN})
    assert [checks.answer(asked) for _ in range(3)] == [OPEN] * 3
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "halfmoon_event" in record.getMessage()
    assert record.exc_info is None
