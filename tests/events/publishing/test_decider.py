"""Half messages are decided by their rows: off the path of their transactions, whatever was seen of these, and never by a guess."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from halfmoon.events.checks import tokens
from halfmoon.events.event import Event
from halfmoon.events.publishing.decider import Decider, Question
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import create
from halfmoon.model import MessageQueue, SendResult, SendStatus
from tests.events.fakes import Blocks, FakeTransport, Prepared
from tests.waiting import until


class Background(FakeTransport):
    """A transport that nobody reads: decisions come by themselves."""

    def settled_by(self, settle: Callable[[], None]) -> bool:
        return False


def watched(decider: Decider, event_id: str, published_ms: int | None = None, home: tokens.Home = tokens.NOWHERE) -> Question:
    now_ms = time.time_ns() // 1_000_000
    event = Event(id=event_id, topic="T", code="C", published_ms=now_ms if published_ms is None else published_ms)
    result = SendResult(SendStatus.SEND_OK, event_id, "0" * 32, MessageQueue("T", "b", 0), 0)
    return decider.watch(event, Prepared(event_id, result), None, home)


class Story:
    """A decider over a file, and events whose rows are written by hand."""

    def __init__(self, path: Path) -> None:
        self.database, self.transport = Blocks(path), Background()
        tokens.create_tables(self.database)
        self.decider = Decider(self.database, self.transport)
        self.connection = sqlite3.connect(path, check_same_thread=False, timeout=0.1)

    def write(self, event_id: str) -> None:
        self.connection.execute("INSERT INTO halfmoon_event VALUES (?, 1, 1)", (event_id,))

    def watch(self, event_id: str, *, published_ms: int | None = None) -> Question:
        return watched(self.decider, event_id, published_ms)

    def decided(self) -> dict[str, bool]:
        return dict(self.transport.decided)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    found = Story(tmp_path / "shop.db")
    yield found
    found.decider.close(0)
    found.connection.close()


def test_a_row_is_a_commit_and_none_after_the_end_a_rollback(story: Story) -> None:
    story.write("E1")
    first, second = story.watch("E1"), story.watch("E2")
    story.connection.commit()
    story.decider.ask(first)
    story.decider.ask(second)
    until(lambda: len(story.decided()) == 2, "both")
    assert story.decided() == {"E1": True, "E2": False}
    with pytest.raises(sqlite3.IntegrityError):  # the tombstone keeps the row out for ever
        story.write("E2")


def test_while_the_transaction_is_open_nothing_is_decided_whoever_says_that_it_ended(story: Story) -> None:
    story.write("E1")
    question = story.watch("E1")
    story.decider.ask(question)
    until(lambda: question.tries >= 3, "asked in vain")
    assert story.decided() == {}
    story.connection.commit()
    until(lambda: story.decided() == {"E1": True}, "committed")


def test_a_transaction_whose_end_nobody_saw_is_decided_all_the_same(story: Story) -> None:
    story.write("E1")
    story.watch("E1")
    story.connection.commit()
    until(lambda: story.decided() == {"E1": True}, "asked without a signal")


def test_many_questions_share_a_query(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = []
    for number in range(100):
        story.write(f"E{number}")
        questions.append(story.watch(f"E{number}"))
    story.connection.commit()
    queries: list[int] = []
    plain = tokens.states

    def counted(provider, event_ids, home, **options):  # type: ignore[no-untyped-def]
        queries.append(len(event_ids))
        return plain(provider, event_ids, home, **options)

    monkeypatch.setattr(tokens, "states", counted)
    story.decider.settle()
    assert set(story.decided().values()) == {True}
    assert len(story.decided()) == 100
    assert queries[0] == 100


def test_a_close_decides_what_is_over_and_leaves_what_is_open(story: Story) -> None:
    story.write("E1")
    first = story.watch("E1")
    story.connection.commit()
    story.decider.ask(first)
    story.write("E2")
    story.watch("E2")
    story.decider.close(2_000)
    assert story.decided() == {"E1": True}
    assert story.transport.gone == ["E2"]
    story.watch("E3")
    assert story.transport.gone == ["E2", "E3"]


def test_a_close_comes_in_time_while_somebody_holds_the_table(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    database, transport = provider(sessionmaker(engine)), Background()
    tokens.create_tables(database)
    decider = Decider(database, transport)
    with engine.connect() as holder, engine.connect() as other:
        holder.execute(text("LOCK TABLE halfmoon_event IN ACCESS EXCLUSIVE MODE"))
        decider.ask(watched(decider, "E1"))
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
        until(lambda: other.execute(waiting).scalar(), "the question waits")
        begun = time.monotonic()
        decider.close(300)
        assert time.monotonic() - begun < 20
        assert (transport.decided, transport.gone) == ([], ["E1"])
    engine.dispose()
    database.release()


def test_who_holds_the_table_of_one_tenant_keeps_no_other_waiting(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    database, transport = provider(sessionmaker(engine)), Background()
    with engine.begin() as connection:
        for schema in ("tenant_a", "tenant_b"):
            connection.execute(text(f"CREATE SCHEMA {schema}"))
            for statement in create(tokens.TOKENS, "postgresql", schema):
                connection.execute(text(statement))
        connection.execute(text("INSERT INTO tenant_b.halfmoon_event VALUES ('E2', 1, 1)"))
    decider = Decider(database, transport)
    with engine.connect() as holder:
        holder.execute(text("LOCK TABLE tenant_a.halfmoon_event IN ACCESS EXCLUSIVE MODE"))
        first, second = (watched(decider, f"E{n}", home=tokens.Home(0, f"tenant_{'-ab'[n]}")) for n in (1, 2))
        decider.ask(first)
        until(lambda: first.tries, "asked in vain")
        decider.ask(second)
        until(lambda: transport.decided == [("E2", True)], "the other tenant's")
    until(lambda: len(transport.decided) == 2, "the first one's")
    decider.close(0)
    database.release()
    engine.dispose()


def test_a_row_that_may_have_been_removed_proves_nothing(story: Story) -> None:
    story.decider.ask(story.watch("E1", published_ms=1))
    until(lambda: story.transport.gone == ["E1"], "left to the check")
    assert story.decided() == {}


def test_a_database_that_fails_is_said_once_and_asked_again(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.connection.execute("ALTER TABLE halfmoon_event RENAME TO elsewhere")
    story.connection.commit()
    question = story.watch("E1")
    story.decider.ask(question)
    until(lambda: question.tries >= 3, "asked in vain")
    story.connection.execute("ALTER TABLE elsewhere RENAME TO halfmoon_event")
    story.connection.commit()
    until(lambda: story.decided() == {"E1": False}, "rolled back")
    assert sum("token rows cannot be read" in text for text in caplog.messages) == 1


def test_each_half_message_is_decided_once_by_whoever_asks(story: Story) -> None:
    questions = []
    for number in range(50):
        story.write(f"E{number}")
        questions.append(story.watch(f"E{number}"))
    story.connection.commit()
    threads = [threading.Thread(target=story.decider.settle) for _ in range(4)]
    for one in threads:
        one.start()
    for question in questions:
        story.decider.ask(question)
    for one in threads:
        one.join()
    until(lambda: len(story.decided()) == 50, "all")
    assert len(story.transport.decided) == 50
