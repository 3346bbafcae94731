"""Promises of `halfmoon.events` as short programs: each was broken once by a publisher that inferred outcomes from calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from halfmoon.events.testing import MemoryBus
from tests.events.machine.application import CODE, TOPIC
from tests.events.machine.providers import DRIVERS, PROVIDERS, running
from tests.events.machine.stores import Store
from tests.events.real_databases import plain

Play = Callable[..., None]

MARIADB = ["session on mariadb", "django on mariadb", "pymysql", "MySQLdb", "mariadb", "async session on aiomysql"]
SESSIONS = [
    "session on sqlite",
    "session on postgresql",
    "session on mariadb",
    "async session on psycopg",
    "async session on asyncpg",
]
TASKS = ["async session on psycopg", "async session on asyncpg", "async session on aiomysql"]
DEDUP = [name for name in PROVIDERS if name.startswith("dedup ")]


def each(providers: list[str], *programs: str) -> pytest.MarkDecorator:
    """Run a test with each provider and program; verbs of a program are joined by `` > ``. Those with a server are slow."""
    marks = {name: [pytest.mark.slow] if PROVIDERS[name][0] != "sqlite" else [] for name in providers}
    cases = [pytest.param(name, program, marks=marks[name]) for name in providers for program in programs]
    return pytest.mark.parametrize(("name", "program"), cases)


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Play a program in a provider; ``pairs``: how many of its events must be accepted."""

    def url(dialect: str) -> str:
        if dialect == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('machine') / 'rows.db'}"
        found: str = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[dialect]).create()
        return found

    with ExitStack() as stack:
        open_now = {}

        def run(name: str, program: str, pairs: int = 0) -> None:
            if (driver := name.split()[-1]) in DRIVERS:
                pytest.importorskip(driver)
            if name not in open_now:
                open_now[name] = stack.enter_context(running(name, url))
            app = open_now[name]
            before = app.counts["paired"]
            app.play(program.split(" > "))
            assert app.counts["paired"] - before >= pairs, f"the publisher refused events: {app.swallowed}"

        yield run


# ---------------------------------------------------------------- pools and proxies


@pytest.mark.slow
def test_an_event_is_delivered_when_psycopg_pool_commits_beneath_the_proxy(postgres_url: str):
    pool_module = pytest.importorskip("psycopg_pool")
    bus, store = MemoryBus(), Store(postgres_url)
    database = provider(store.raw)
    with Publisher("P_machine", transport=bus, provider=database) as events:
        with pool_module.ConnectionPool(plain(postgres_url), min_size=1) as pool, pool.connection() as real:
            connection = database.proxied(real)
            connection.execute("INSERT INTO machine_row VALUES ('1')")
            event_id = events.publish(TOPIC, CODE, 1, transactional=True).event_id
        _decided(bus)

        assert store.committed()["1"] == 1
        assert [event.id for event in bus.events(TOPIC)] == [event_id]


@each(["sqlite3", "psycopg", "psycopg2", "pymysql", "MySQLdb", "mariadb"], "open from a pool > publish > leave a block")
def test_an_event_is_delivered_when_a_pool_commits_beneath_the_proxy(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["sqlite3", "psycopg", "psycopg2", "pymysql", "MySQLdb", "mariadb"],
    "publish > commit beneath > publish > rollback",
    "publish > rollback beneath > publish > commit",
)
def test_the_outcome_is_the_databases_when_the_application_ends_the_drivers_connection(play: Play, name: str, program: str):
    play(name, program, pairs=2)


# ---------------------------------------------------------------- SQLAlchemy


@each(SESSIONS, "SELECT 1 > begin nested of the connection > publish > undo nested > publish > commit")
def test_a_savepoint_of_the_sessions_connection_takes_its_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=2)


@each(
    SESSIONS,
    "publish > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
    "publish > SAVEPOINT a > publish > RELEASE SAVEPOINT a > commit",
    "publish > COMMIT",
    "publish > COMMIT > rollback",
    "publish > ROLLBACK > commit",
    "publish > commit by driver sql > rollback",
)
def test_statements_of_transactions_in_a_session_decide_its_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(SESSIONS, "begin nested > begin nested > publish > undo outermost nested > publish > commit")
def test_the_outer_of_two_open_savepoints_takes_the_inner_ones_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=2)


@each(["session on sqlite", "session on postgresql"], "open joined > publish > close > commit the joined connection")
def test_a_joined_connection_decides_the_sessions_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- consumers


@each([name for name in DEDUP if PROVIDERS[name][0] == "postgresql"], "INSERT INTO machine_unique VALUES (1)", "deadlock")
def test_a_consumer_that_swallows_what_aborts_its_transaction_is_given_the_event_again(play: Play, name: str, program: str):
    play(name, program)


@each([name for name in DEDUP if PROVIDERS[name][0] == "mysql"], "deadlock")
def test_a_consumer_that_swallows_a_deadlock_is_given_the_event_again(play: Play, name: str, program: str):
    play(name, program)


@each(
    DEDUP,
    "ROLLBACK",
    "rollback",
    "SAVEPOINT a > ROLLBACK",
    "COMMIT",
    "commit",
    "commit > fail",
    "fail",
    "close",
    "publish > ROLLBACK",
)
def test_a_consumers_event_is_acknowledged_if_and_only_if_its_effect_was_committed(play: Play, name: str, program: str):
    play(name, program)


# ---------------------------------------------------------------- errors that end a transaction


@each(MARIADB, "publish > deadlock > publish > commit", "publish > deadlock > commit")
def test_an_application_that_swallows_a_deadlock_commits_only_what_came_after_it(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["session on sqlite", "core on sqlite", "django on sqlite", "sqlite3", "async session on aiosqlite"],
    "publish > INSERT OR ROLLBACK INTO machine_unique VALUES (1) > publish > commit",
    "publish > INSERT OR ROLLBACK INTO machine_unique VALUES (1) > commit",
)
def test_a_statement_that_rolls_sqlites_transaction_back_takes_its_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["session on sqlite", "session on postgresql", "core on postgresql", "django on postgresql", "sqlite3", "psycopg"],
    "INSERT INTO machine_child VALUES (7) > publish > commit",
    "INSERT INTO machine_child VALUES (7) > publish > COMMIT",
)
def test_a_commit_that_the_database_refuses_delivers_nothing(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- psycopg, psycopg2


@each(
    ["psycopg"],
    "enter transaction to be rolled back > publish > leave a block",
    "publish > enter transaction to be rolled back > publish > leave a block > commit",
)
def test_a_block_that_is_forced_to_roll_back_takes_its_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(["psycopg"], "SAVEPOINT a > publish > composed rollback to > commit", "publish > composed commit > rollback")
def test_composed_statements_decide_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(["psycopg"], "enter pipeline > publish > leave a block > commit", "enter pipeline > publish > commit > leave a block")
def test_an_event_published_in_a_pipeline_is_delivered_with_its_commit(play: Play, name: str, program: str):
    play(name, program)


@each(["psycopg2"], "publish > reset connection > publish > commit")
def test_a_reset_of_psycopg2_takes_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=2)


@each(
    ["session on postgresql", "psycopg", "django on postgresql"],
    "publish > PREPARE TRANSACTION 'machine' > commit prepared",
    "publish > PREPARE TRANSACTION 'machine' > close > rollback prepared",
)
def test_a_prepared_transaction_decides_its_events_when_it_ends(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- MariaDB


@each(
    ["MySQLdb", "pymysql", "mariadb"],
    "publish > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
    "publish > COMMIT > publish > rollback",
    "publish > ROLLBACK > publish > commit",
    "publish > COMMIT AND CHAIN > publish > rollback",
    "publish > SET autocommit = 1",
    "publish > CALL machine_commits() > rollback",
    "publish > CALL machine_rolls_back() > commit",
)
def test_statements_of_transactions_in_mariadbs_drivers_decide_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    MARIADB,
    "SAVEPOINT a > publish > CREATE TABLE IF NOT EXISTS machine_ddl (id INTEGER) > ROLLBACK TO SAVEPOINT a > commit",
    "SAVEPOINT a > publish > ALTER TABLE machine_ddl_missing ADD COLUMN x INTEGER > ROLLBACK TO SAVEPOINT a > rollback",
)
def test_ddl_inside_a_savepoint_commits_what_is_rolled_back_afterwards(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(["session on mariadb"], "begin nested > publish > CREATE TABLE IF NOT EXISTS machine_ddl (id INTEGER) > undo nested > commit")
def test_ddl_inside_a_nested_block_commits_what_is_rolled_back_afterwards(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(["pymysql"], "publish > kill the connection > ping > publish > commit", "publish > kill the connection > commit")
def test_a_connection_that_was_killed_takes_its_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["session on postgresql", "psycopg", "pymysql", "django on postgresql"],
    "publish > SELECT 1; ROLLBACK; SELECT 2 > commit",
    "publish > SELECT 1; COMMIT > rollback",
    "publish > COMMIT; BEGIN > rollback",
)
def test_several_statements_in_one_text_decide_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- sqlite3


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the attribute came with Python 3.12")
@each(
    ["sqlite3"],
    "open with the attribute autocommit > BEGIN > publish > COMMIT",
    "open with the attribute autocommit > BEGIN > publish > ROLLBACK",
    "open with the attribute autocommit > BEGIN > publish > close",
    "open with the attribute autocommit > BEGIN > publish > commit",
    "open with the attribute autocommit > BEGIN > publish > rollback > COMMIT",
    "publish > set the attribute autocommit",
)
def test_the_attribute_autocommit_of_sqlite3_is_understood(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["sqlite3"],
    "publish > executescript that fails",
    "publish > executescript of the connection",
    "publish > executescript that fails > publish > rollback",
)
def test_a_script_commits_what_came_before_it(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["sqlite3", "psycopg", "psycopg2", "pymysql", "MySQLdb", "mariadb"],
    "publish > switch autocommit on > close",
    "publish > switch autocommit on > ROLLBACK",
    "publish > switch autocommit on beneath > close",
)
def test_autocommit_that_is_switched_on_in_a_transaction_decides_what_the_driver_makes_of_it(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- Django


@each(
    ["django on sqlite", "django on postgresql", "django on mariadb"],
    "publish > ROLLBACK",
    "publish > COMMIT > fail a block",
    "publish > rollback the driver connection of django",
    "publish > commit the driver connection of django > fail a block",
    "enter atomic > publish > fail a block > publish > leave a block",
    "make savepoint > make savepoint > publish > undo outermost savepoint > publish",
    "open without autocommit > publish > ROLLBACK > commit",
    "open without autocommit > SAVEPOINT a > publish > ROLLBACK TO SAVEPOINT a > commit",
)
def test_statements_of_transactions_in_django_decide_its_events(play: Play, name: str, program: str):
    play(name, program, pairs=1)


# ---------------------------------------------------------------- processes and tasks


@each(["session on sqlite", "session on postgresql", "psycopg", "pymysql", "django on postgresql"], "publish > fork > commit")
def test_a_forked_child_decides_nothing_of_its_parents(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(["session on sqlite", "session on postgresql", "sqlite3", "psycopg", "pymysql", "django on sqlite"], "publish > drop")
def test_a_connection_that_is_dropped_takes_its_events_along(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    ["async session on aiosqlite", *TASKS],
    "open begin block > SELECT 1 > publish in a task > leave a block",
    "open begin block > publish in a task > leave a block",
    "open session > publish in a task > commit",
)
def test_a_child_task_publishes_in_the_transaction_it_inherits(play: Play, name: str, program: str):
    play(name, program, pairs=1)


@each(
    TASKS,
    "open session > publish in tasks with sessions of their own > close",
    "open begin block > publish > publish in tasks with sessions of their own > leave a block",
)
def test_tasks_of_a_group_publish_in_sessions_of_their_own(play: Play, name: str, program: str):
    play(name, program, pairs=3)


@each(
    TASKS, "publish in a cancelled task > commit", "publish > commit in a cancelled task", "publish in a cancelled task > rollback"
)
def test_a_cancelled_task_leaves_row_and_event_together(play: Play, name: str, program: str):
    play(name, program)


def _decided(bus: MemoryBus) -> None:
    """Wait until a bus has nothing undecided, then ask."""
    import time

    until = time.monotonic() + 2
    while bus.pending and time.monotonic() < until:
        time.sleep(0.002)
    for _ in range(100):
        if bus.pending:
            bus.check_now()
