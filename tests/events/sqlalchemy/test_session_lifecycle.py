"""Which sessions of a class are open in a context and have had no statement yet."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.events.sqlalchemy.session_lifecycle import mark_used, note_openings, unused_here, used_or_closed


@pytest.fixture
def maker() -> sessionmaker[Session]:
    found = sessionmaker(create_engine("sqlite://"))
    for _ in range(2):  # the second does nothing
        note_openings(found.class_)
    return found


def test_an_open_session_is_unused_until_it_has_a_transaction_or_is_closed(maker: sessionmaker[Session]) -> None:
    first, second = maker(), maker()
    assert unused_here(maker.class_, after=0) == [first, second]
    mark_used(first)
    second.close()
    assert unused_here(maker.class_, after=0) == []
    assert used_or_closed(first)
    assert used_or_closed(second)


def test_sessions_of_other_classes_and_those_that_wait_for_their_begin_do_not_count(maker: sessionmaker[Session]) -> None:
    other = Session()
    waiting = maker(autobegin=False)
    assert unused_here(maker.class_, after=0) == []
    assert not used_or_closed(other)
    assert not used_or_closed(waiting)
