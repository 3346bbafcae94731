"""Token rows over real databases: what a check answers, whatever the transaction is doing; tables; removal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, select, text

from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy, Refused, Rows
from halfmoon.events.databases.retention import STEP_ROWS
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import CONSUMED, OUTBOX, TOKENS, TableMissing
from halfmoon.model import LocalTransactionState
from tests.events.sqlalchemy.shops import Order, Shop, opened
from tests.waiting import until

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN, OPEN = LocalTransactionState.UNKNOWN, LocalTransactionState.OPEN
NOW = 1_800_000_000_000


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with opened(database_url) as shop:
        yield shop


def ask(shop: Shop, event_id: str, published_ms: int = NOW, now_ms: int = NOW) -> LocalTransactionState:
    return tokens.answer(shop.provider, event_id, published_ms, now_ms, lock_wait_ms=100)


def write(shop: Shop, event_id: str, now_ms: int = NOW) -> None:
    shop.provider.rows(shop.provider.current()).run(tokens.INSERT, tokens.values(event_id, now_ms))


def stored(shop: Shop) -> list[tuple[str, int]]:
    with shop.provider.fresh() as rows:
        return [(row[0], row[1]) for row in rows.all("SELECT id, state FROM halfmoon_event WHERE state < 2 ORDER BY id")]


# ---------------------------------------------------------------- answers


def test_an_old_event_without_a_token_stays_undecided_and_the_log_says_so(shop, caplog):
    old = NOW - tokens.KEEP_MS // 2 - 1
    with shop.Session.begin():
        write(shop, "kept", old)

    with caplog.at_level(logging.WARNING, "halfmoon.events"):
        assert ask(shop, "gone", published_ms=old) is UNKNOWN
    assert "event_id=gone" in caplog.text
    assert ask(shop, "gone", published_ms=0) is UNKNOWN
    assert ask(shop, "gone", published_ms=old + 1) is ROLLBACK
    assert ask(shop, "kept", published_ms=old) is COMMIT


def test_a_database_that_cannot_be_asked_leaves_it_undecided():
    gone = provider(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    assert tokens.answer(gone, "a", NOW, NOW) is OPEN


def test_many_checks_at_the_same_time_agree(shop):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tokens.answer(shop.provider, "a", NOW, NOW, lock_wait_ms=5_000), range(12)))
    assert found == [ROLLBACK] * 12
    assert stored(shop) == [("a", tokens.TOMBSTONE)]


def test_a_check_that_waits_for_readers_does_not_keep_the_writer_waiting_for_long(sqlite_url):
    """With a rollback journal a commit waits for readers, and nobody else may begin meanwhile: for as long as the check waits."""
    with opened(sqlite_url) as shop:
        with shop.Session.begin() as session:
            session.add_all(Order(id=number) for number in range(3_000))
        reader = shop.engine.raw_connection()
        cursor = reader.cursor()
        cursor.execute("SELECT id FROM orders")
        cursor.fetchone()

        before = time.monotonic()
        assert ask(shop, "a") is OPEN
        assert time.monotonic() - before < 4  # a driver waits for 5 s unless it is told not to

        cursor.fetchall()
        reader.close()
        with shop.Session.begin():
            write(shop, "a")
        assert ask(shop, "a") is COMMIT


# ---------------------------------------------------------------- every interleaving


class Pausing:
    """A provider that stops before and after the insert of a tombstone, until it may go on."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.dialect = real.dialect
        self.reached = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    @contextmanager
    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Iterator[Rows]:
        with self._real.fresh(lock_wait_ms=lock_wait_ms) as rows:
            yield _Paused(rows, self)

    def pause(self) -> None:
        self.reached.release()
        self.go.acquire(timeout=60)


class _Paused:
    def __init__(self, rows: Rows, owner: Pausing) -> None:
        self._rows = rows
        self._owner = owner
        self.dialect = rows.dialect
        self.all = rows.all

    def run(self, statement: str, values: Any = None) -> int:
        self._owner.pause()
        count = self._rows.run(statement, values)
        self._owner.pause()
        return count


class Original:
    """A transaction that publishes, in a thread of its own, a step at a time."""

    def __init__(self, shop: Shop, event_id: str, *, commits: bool) -> None:
        self._shop, self._id, self._commits = shop, event_id, commits
        self._thread = ThreadPoolExecutor(1)
        self._session = shop.Session()
        self.failure: Exception | None = None
        self.committed = False

    def step(self, number: int) -> None:
        """Take a step; one that waits for a lock goes on behind our back."""
        future = self._thread.submit((self._begin, self._write, self._end)[number])
        _wait(future)

    def close(self) -> None:
        self._thread.submit(self._session.close).result(60)
        self._thread.shutdown()

    def _begin(self) -> None:
        self._session.begin()
        self._session.execute(select(Order))

    def _write(self) -> None:
        try:
            local = self._shop.provider.current(self._session)
            self._shop.provider.rows(local).run(tokens.INSERT, tokens.values(self._id, NOW))
        except (Refused, Busy) as failure:
            self.failure = failure

    def _end(self) -> None:
        if self._commits and self.failure is None:
            self._session.commit()
            self.committed = True
        else:
            self._session.rollback()


def _wait(future: Any) -> None:
    end = time.monotonic() + 0.03
    while not future.done() and time.monotonic() < end:
        time.sleep(0.002)


BEFORE, BETWEEN, WAITING, WRITTEN, AFTER = range(5)
"""Where a step falls: before the check, between its look and its insert, while that waits, before its commit, after it."""


def history(shop: Shop, event_id: str, places: tuple[int, int, int], *, commits: bool) -> tuple[LocalTransactionState, Original]:
    """Run one interleaving of a transaction's three steps with a check, and return the check's answer."""
    original = Original(shop, event_id, commits=commits)
    pausing, found = Pausing(shop.provider), []
    check = threading.Thread(target=lambda: found.append(tokens.answer(pausing, event_id, NOW, NOW, lock_wait_ms=80)))

    def steps(place: int) -> None:
        for number in range(3):
            if places[number] == place:
                original.step(number)

    steps(BEFORE)
    check.start()
    stopped = _stops(pausing, check)
    steps(BETWEEN)
    pausing.go.release()
    if stopped:
        time.sleep(0.01)
    steps(WAITING)
    _stops(pausing, check)
    steps(WRITTEN)
    pausing.go.release()
    check.join(60)
    steps(AFTER)
    original.close()
    return found[0], original


def _stops(pausing: Pausing, check: threading.Thread) -> bool:
    """Wait until the check stops at a pause (True) or ends."""
    while check.is_alive():
        if pausing.reached.acquire(timeout=0.005):
            return True
    return False


PLACES = [(a, b, c) for a in range(5) for b in range(a, 5) for c in range(b, 5)]


@pytest.mark.parametrize("kind", ["journal", "wal", "read committed", "serializable"])
@pytest.mark.slow
def test_no_interleaving_of_a_check_with_a_transaction_is_answered_wrongly(kind, request):
    """All 35 ways in which the three steps of a transaction fall among those of a check, committing and rolling back."""
    sqlite = kind in {"journal", "wal"}
    with opened(request.getfixturevalue("sqlite_url" if sqlite else "postgres_url")) as shop:
        if kind == "wal":
            with shop.engine.connect() as connection:
                assert connection.scalar(text("PRAGMA journal_mode = WAL")) == "wal"
        elif not sqlite:
            shop.Session.configure(bind=shop.engine.execution_options(isolation_level=kind.upper()))
        seen = set()
        for number, (places, commits) in enumerate((p, c) for p in PLACES for c in (True, False)):
            event_id = f"event{number}"
            answer, original = history(shop, event_id, places, commits=commits)
            truth = COMMIT if original.committed else ROLLBACK

            assert answer in {OPEN, truth}, (places, commits, original.failure)
            assert ask(shop, event_id) is truth, (places, commits, original.failure)
            seen.add((answer, original.committed, type(original.failure)))

    assert {(COMMIT, True, type(None)), (ROLLBACK, False, type(None)), (ROLLBACK, False, Refused)} <= seen
    assert any(answer is OPEN for answer, _, _ in seen)


# ---------------------------------------------------------------- tables and removal


def test_tables_are_made_once_even_by_many_at_the_same_time(database_url):
    engine = create_engine(database_url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tokens.create_tables(provider(engine), (TOKENS, CONSUMED, OUTBOX)), range(4)))
    tokens.require(provider(engine), (TOKENS, CONSUMED, OUTBOX))
    engine.dispose()


def test_what_may_not_be_made_is_raised(postgres_url):
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE guest LOGIN PASSWORD 'guest'"))
    guest = create_engine(engine.url.set(username="guest", password="guest"))
    with pytest.raises(Exception, match="permission denied"):
        tokens.create_tables(provider(guest))
    with pytest.raises(TableMissing, match="create_tables"):
        tokens.require(provider(guest))
    for one in (guest, engine):
        one.dispose()
    with create_engine(postgres_url).connect() as connection:
        connection.execute(text("DROP ROLE guest"))
        connection.commit()


def test_only_old_rows_are_removed_and_in_bounded_batches(shop):
    limit = NOW - tokens.KEEP_MS
    with shop.engine.begin() as connection:
        values = [
            {"id": f"old{number}", "state": number % 2, "created_ms": limit - 1 - number // 3}
            for number in range(3 * STEP_ROWS + 200)
        ]
        values += [{"id": f"new{number}", "state": 1, "created_ms": limit + number} for number in range(2)]
        values += [{"id": "now", "state": 1, "created_ms": NOW}]
        connection.execute(text(tokens.INSERT), values)
    blocks = _counting(shop.provider)

    assert tokens.purge(blocks, NOW) == 3 * STEP_ROWS + 200
    assert blocks.count > 3
    assert [name for name, _ in stored(shop)] == ["new0", "new1", "now"]
    assert tokens.purge(shop.provider, NOW) == 0


def test_a_clock_that_is_weeks_ahead_removes_no_row_that_a_check_may_need(shop):
    with shop.engine.begin() as connection:
        rows = [("old", NOW - tokens.KEEP_MS - 1), ("asked", NOW - tokens.KEEP_MS // 2), ("newest", NOW)]
        connection.execute(text(tokens.INSERT), [{"id": name, "state": 1, "created_ms": at} for name, at in rows])

    assert tokens.purge(shop.provider, NOW + 30 * 24 * 3600 * 1000) == 1
    assert [name for name, _ in stored(shop)] == ["asked", "newest"]
    assert ask(shop, "asked", published_ms=NOW - tokens.KEEP_MS // 2) is COMMIT


class _counting:
    def __init__(self, real: Any) -> None:
        self._real, self.count, self.dialect = real, 0, real.dialect

    def fresh(self, **options: Any) -> Any:
        self.count += 1
        return self._real.fresh(**options)


def test_rows_are_removed_in_the_background_until_the_end(shop, caplog):
    before = threading.enumerate()
    with shop.engine.begin() as connection:
        connection.execute(insert(Order).values(id=1))
        connection.execute(text(tokens.INSERT), {"id": "old", "state": 1, "created_ms": 5})
        connection.execute(text(tokens.INSERT), {"id": "new", "state": 1, "created_ms": NOW})
    cleaning = tokens.TokenRetention(shop.provider, first_s=0.01, every_s=0.01, clock_ms=lambda: NOW)
    cleaning.start()
    cleaning.start()
    until(lambda: len(stored(shop)) == 1)
    cleaning.close()
    cleaning.close()

    assert stored(shop) == [("new", 1)]
    assert not [one for one in threading.enumerate() if one.name == "halfmoon-tokens" and one not in before]


def test_a_removal_that_fails_is_tried_again(shop, caplog):
    with shop.engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {TOKENS.name}"))
    with caplog.at_level(logging.INFO, "halfmoon.events"):
        cleaning = tokens.TokenRetention(shop.provider, first_s=0.01, every_s=0.02, clock_ms=lambda: NOW)
        cleaning.start()
        until(lambda: "could not be removed" in caplog.text)
        tokens.create_tables(shop.provider)
        with shop.engine.begin() as connection:
            connection.execute(
                text(tokens.INSERT), [{"id": name, "state": 1, "created_ms": at} for name, at in (("old", 5), ("new", NOW))]
            )
        until(lambda: len(stored(shop)) == 1)
        cleaning.close()

    assert stored(shop) == [("new", 1)]
