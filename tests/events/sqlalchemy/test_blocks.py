"""Which transactions of SQLAlchemy are noted, and how many."""

from __future__ import annotations

import contextvars
import gc

from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import sessionmaker

from halfmoon.events.databases.other_blocks import open_blocks
from halfmoon.events.sqlalchemy import blocks


def test_a_context_remembers_only_what_runs_and_so_many(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCKS_MAX", 3)
    made = sessionmaker(create_engine("sqlite://"))

    def work() -> None:
        for _ in range(5):
            with made.begin() as session:
                session.execute(text("SELECT 1"))
        assert len(blocks._noted.get()) <= 2  # of the last session, and its connection
        sessions = [made() for _ in range(5)]
        for session in sessions:
            session.begin()
        assert len(open_blocks()) == len(blocks._noted.get()) == 3
        for session in sessions:
            session.close()
        assert open_blocks() == []

    contextvars.copy_context().run(work)


def test_a_session_that_is_dropped_is_not_kept():
    context = contextvars.copy_context()
    context.run(lambda: sessionmaker(create_engine("sqlite://"))().begin())
    gc.collect()
    assert context.run(open_blocks) == []


def test_a_hook_after_the_commit_publishes_in_no_block():
    seen = []
    with sessionmaker(create_engine("sqlite://")).begin() as session:
        event.listen(session, "after_commit", lambda _: seen.append(open_blocks()))
        session.execute(text("SELECT 1"))
    assert seen == [[]]
