"""Connections of a publisher's own: kept between uses, replaced when they broke, and never those of a parent process."""

from __future__ import annotations

import os

import pytest

from halfmoon.events.databases.own_connections import KEPT_MAX, OwnConnections
from tests.events.forking import in_child


class Fake:
    """A connection that may be broken."""

    def __init__(self) -> None:
        self.broken = self.closed = False

    def rollback(self) -> None:
        if self.broken:
            raise ConnectionError

    def close(self) -> None:
        self.closed = True


class Database:
    """Opens connections, and begins on them what a use begins."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.opened: list[Fake] = []
        self.own = OwnConnections(self.open, keeps=lambda _: keeps)

    def open(self) -> Fake:
        self.opened.append(Fake())
        return self.opened[-1]

    def begin(self, connection: Fake) -> None:
        connection.rollback()


def test_a_connection_serves_one_use_after_the_other() -> None:
    database = Database()
    for _ in range(3):
        with database.own.use(database.begin):
            pass
    assert len(database.opened) == 1
    database.own.release()
    assert database.opened[0].closed


def test_an_error_in_a_block_costs_no_connection_that_can_be_rolled_back() -> None:
    database = Database()
    for _ in range(2):
        with pytest.raises(ValueError), database.own.use(database.begin):
            raise ValueError
    assert len(database.opened) == 1
    database.opened[0].broken = False
    block = database.own.use(database.begin)
    block.__enter__().broken = True
    block.__exit__(None, None, None)
    assert database.opened[0].closed


def test_one_that_broke_while_it_was_idle_is_replaced() -> None:
    database = Database()
    with database.own.use(database.begin):
        pass
    database.opened[0].broken = True
    with database.own.use(database.begin) as connection:
        assert connection is database.opened[1]
    assert database.opened[0].closed


def test_a_new_one_that_cannot_begin_is_closed_and_says_why() -> None:
    database = Database()

    def fails(connection: Fake) -> None:
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"), database.own.use(fails):
        pass
    assert database.opened[0].closed


def test_no_more_are_kept_than_the_bound_and_none_that_only_its_thread_may_use() -> None:
    database = Database()
    blocks = [database.own.use(database.begin) for _ in range(KEPT_MAX + 2)]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        block.__exit__(None, None, None)
    assert sum(not connection.closed for connection in database.opened) == KEPT_MAX

    bound = Database(keeps=False)
    with bound.own.use(bound.begin):
        pass
    assert bound.opened[0].closed


def test_a_child_of_a_fork_neither_uses_nor_closes_those_of_its_parent() -> None:
    database = Database()
    with database.own.use(database.begin):
        pass
    if (pid := os.fork()) == 0:
        with database.own.use(database.begin) as connection:
            fresh = connection is database.opened[-1] and len(database.opened) == 2
        database.own.release()
        os._exit(0 if fresh and not database.opened[0].closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_of_a_fork_waits_for_no_thread_of_the_parent() -> None:
    database = Database()
    with database.own._lock:  # as another thread has it at the fork
        assert in_child(database.own.release, within_s=10)
