"""Leases in PostgreSQL: rights, standbys, poolers, locks, and commits of which nobody knows whether they stand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import LeaseStore
from halfmoon.runtime.leases import lease_store
from halfmoon.runtime.leases.postgresql import TABLE, PostgresLease, from_url
from tests.events.databases.test_pgbouncer import bouncer_url
from tests.events.real_databases import Postgres, missing, plain, postgres_server, postgres_url
from tests.interop.process import free_port
from tests.runtime.leases.systems import PostgresSystem, new_name
from tests.waiting import until

__all__ = ["bouncer_url", "postgres_server", "postgres_url"]

WELL_MS, SOON_MS = 30_000, 500


@pytest.fixture
def url(postgres_url: str) -> str:
    """The URL of a lease in an empty database."""
    return plain(postgres_url)


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def reason(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(LeaseUnavailable) as caught:
        call(*arguments)
    return str(caught.value)


def first(store: LeaseStore, text: bytes = b"1") -> str:
    version = store.write(text, None, WELL_MS)
    assert version is not None
    return version


def increments(url: str, name: str, threads: int, each: int) -> int:
    """Count up in threads, by a store of each, and return the number that the record has at last."""
    first(from_url(url, name), b"0")

    def count() -> None:
        store, done = from_url(url, name), 0
        while done < each:
            found = store.read(WELL_MS)
            assert found is not None
            done += store.write(b"%d" % (int(found.text) + 1), found.version, WELL_MS) is not None
        store.close()

    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(count) for _ in range(threads)]:
            job.result()
    found = from_url(url, name).read(WELL_MS)
    assert found is not None
    return int(found.text)


# ---------------------------------------------------------------- rights and tables


def test_the_table_is_made_with_the_first_record_by_whoever_comes_first(url: str, admin: psycopg.Connection[Any]) -> None:
    stores, gate = [from_url(url, new_name()) for _ in range(6)], threading.Barrier(6)

    def write(store: PostgresLease) -> str | None:
        assert store.read(WELL_MS) is None
        gate.wait(60)
        return store.write(b"1", None, WELL_MS)

    with ThreadPoolExecutor(6) as pool:
        assert None not in list(pool.map(write, stores))
    assert admin.execute("SELECT count(*) FROM halfmoon_lease").fetchone() == (6,)
    for store in stores:
        store.close()


def test_an_account_that_may_not_make_the_table_is_told_the_statement(url: str, admin: psycopg.Connection[Any]) -> None:
    role = f"poor_{new_name()[-12:]}"
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'")
    store = from_url(url.replace("halfmoon:", f"{role}:", 1).replace(url.split(":")[2].partition("@")[0], "s3cret"), new_name())
    try:
        assert store.read(WELL_MS) is None
        said = reason(store.write, b"1", None, WELL_MS)
        assert f"this account may not make it: run {TABLE}" in said
        assert "s3cret" not in said
        admin.execute(TABLE)
        assert "permission denied for table halfmoon_lease" in reason(store.read, WELL_MS)
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON halfmoon_lease TO {role}")
        version = first(store)
        assert store.write(b"2", version, WELL_MS) is not None
    finally:
        store.close()
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_a_row_that_is_removed_has_changed_and_its_versions_never_come_again(url: str, admin: psycopg.Connection[Any]) -> None:
    store = from_url(url, new_name())
    versions = [first(store)]
    versions.append(store.write(b"2", versions[0], WELL_MS) or "")
    admin.execute("DELETE FROM halfmoon_lease")
    assert store.read(WELL_MS) is None
    assert store.write(b"3", versions[1], WELL_MS) is None
    assert first(store) not in versions
    admin.execute("DROP TABLE halfmoon_lease")
    assert store.write(b"3", versions[1], WELL_MS) is None


# ---------------------------------------------------------------- who answers


def test_a_wrong_password_or_database_is_told_without_the_password(url: str) -> None:
    password = url.split(":")[2].partition("@")[0]
    said = reason(from_url(url.replace(password, "s3cret"), new_name()).read, WELL_MS)
    assert 'password authentication failed for user "halfmoon"' in said
    assert "s3cret" not in said
    said = reason(from_url(f"{url.rpartition('/')[0]}/nowhere", new_name()).read, WELL_MS)
    assert 'database "nowhere" does not exist' in said
    assert password not in said


def test_hosts_are_tried_in_turn_whether_they_refuse_or_hang(url: str) -> None:
    before, place = url.rpartition("@")[0], url.rpartition("@")[2]
    with socket.create_server(("127.0.0.1", 0)) as hung:
        dead = f"127.0.0.1:{free_port()}"
        store = from_url(f"{before}@{dead},127.0.0.1:{hung.getsockname()[1]},{place}", new_name())
        version = store.write(b"1", None, 3_000)
        assert version is not None
        assert store.read(WELL_MS) == (b"1", version)
        store.close()
        said = reason(from_url(f"{before}@{dead},127.0.0.1:{hung.getsockname()[1]}/x", new_name()).read, SOON_MS)
    assert f"{dead}: Connection refused" in said
    assert "no answer within" in said


def test_a_name_of_a_host_is_resolved(url: str) -> None:
    asked: list[str] = []

    class Names:
        def addresses(self, host: str, _deadline: object) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"]

    parameters = {**from_url(url, "a/b")._parameters, "host": "db.test"}
    store = PostgresLease(parameters, new_name(), Names())  # type: ignore[arg-type]
    first(store)
    store.close()
    assert asked == ["db.test"]
    assert "the name db.invalid is not found" in reason(from_url("postgresql://db.invalid/x", "a/b").read, WELL_MS)


def test_a_socket_of_this_machine_needs_no_host_in_the_url(postgres_server: Postgres, url: str) -> None:
    store = from_url(
        f"postgresql://halfmoon@:{postgres_server.port}/{url.rpartition('/')[2]}?host={postgres_server.directory}", "a/b"
    )
    first(store)
    store.close()


def test_a_database_that_is_read_only_gives_no_lease(url: str, admin: psycopg.Connection[Any]) -> None:
    name = url.rpartition("/")[2]
    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store = from_url(url, new_name())
    try:
        assert "session is read-only" in reason(store.read, WELL_MS)
    finally:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert store.read(WELL_MS) is None
    store.close()


@pytest.fixture
def own() -> Iterator[PostgresSystem]:
    """A server of the test's own."""
    if why := missing():
        pytest.skip(why)
    started = PostgresSystem()
    yield started
    started.close()


def test_a_standby_gives_no_lease_until_it_is_promoted(own: PostgresSystem) -> None:
    store, any_server = own.store(name := new_name()), lease_store(f"{own.url}?target_session_attrs=any", name)
    version = first(store)
    own.server.stop()
    (own.server.directory / "data" / "standby.signal").touch()
    own.server.start()
    assert "read-only" in reason(store.read, WELL_MS)
    assert "read-only" in reason(store.write, b"2", version, WELL_MS)
    assert "a standby, whose record may be old" in reason(any_server.read, WELL_MS)
    assert "read-only transaction" in reason(any_server.write, b"2", version, WELL_MS)
    with own.server.connect() as admin:
        admin.execute("SELECT pg_promote()")
    assert any_server.read(WELL_MS) == store.read(WELL_MS) == (b"1", version)
    assert store.write(b"2", version, WELL_MS) is not None


# ---------------------------------------------------------------- writes


def test_a_commit_that_no_standby_confirmed_is_not_known_to_stand(own: PostgresSystem) -> None:
    name = new_name()
    store, others = own.store(name), own.store(name)
    version = first(store)
    with own.server.connect() as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute(f"ALTER DATABASE {own.database} SET synchronous_commit = off")  # the lease says otherwise
        admin.execute("SELECT pg_reload_conf()")

        def write_on() -> None:
            written: str | None = version
            for _ in range(10_000):  # until the server has read its configuration again
                written = store.write(b"2", written, SOON_MS)

        assert "no answer within" in reason(write_on)
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: admin.execute(f"SELECT pg_terminate_backend(pid) {waiting}").fetchall() == [])
        found = others.read(WELL_MS)
        assert found is not None
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(reason, others.write, b"3", found.version, WELL_MS)
            until(lambda: admin.execute(f"SELECT pg_cancel_backend(pid) {waiting}").fetchall())
            assert "canceling wait for synchronous replication" in writing.result()
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
    found = store.read(WELL_MS)
    assert found is not None
    assert found.text == b"3"  # it stands here, and a failover would have lost it


def test_a_lock_of_somebody_else_ends_the_write_here_and_in_the_server(url: str, admin: psycopg.Connection[Any]) -> None:
    store = from_url(url, new_name())
    version = first(store)
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM halfmoon_lease FOR UPDATE")
        with pytest.raises(LeaseUnavailable):
            store.write(b"2", version, SOON_MS)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until(lambda: admin.execute(waiting).fetchone() == (0,))
    assert store.read(WELL_MS) == (b"1", version)
    store.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_lost_race_is_one_whatever_isolation_the_database_has(url: str, admin: psycopg.Connection[Any], level: str) -> None:
    admin.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_isolation = '{level}'")
    assert increments(url, new_name(), threads=3, each=15) == 45


def test_a_pooler_in_transaction_mode_changes_nothing(bouncer_url: str) -> None:
    address, name = plain(bouncer_url), new_name()
    assert increments(address, name, threads=3, each=15) == 45
    store = from_url(address, name)
    assert store.read(WELL_MS) == from_url(address, name).read(WELL_MS)
    with psycopg.connect(address) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)  # nothing was left behind
    store.close()


def test_a_server_that_closes_the_connection_meanwhile_is_asked_again_at_once(url: str, admin: psycopg.Connection[Any]) -> None:
    store = from_url(url, new_name())
    version = first(store)
    mine = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'halfmoon'"
    assert admin.execute(f"{mine} AND datname = current_database()").fetchall() == [(True,)]
    assert store.write(b"2", version, WELL_MS) is not None
    store.close()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"E\0\0\0\x08SX\0\0", b"R\0\0\0\x08\0\0\0\0" * 3, b"\0" * 99]
)
def test_what_speaks_no_postgresql_is_an_error(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):  # the second without TLS
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"postgresql://a:s3cret@127.0.0.1:{listener.getsockname()[1]}/x"
        assert "s3cret" not in reason(from_url(url, "a/b").read, SOON_MS)


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@a:x/b",
        "postgresql://u:s3cret@a:70000/b",
        "postgresql://u:s3cret@a:1,b:2,c/b?port=1,2",
        "postgresql://u:s3cret%zz@a/b",
        "postgresql://u:s3/cret?s3cret@a/b",
        'postgresql://u:p/x"s3cret?y"@a/b',
        "postgresql://a/b?password=s3cret&colour=blue",
        "postgresql://[::1/b?password=s3cret",
        f"postgresql://u:s3cret@{','.join(['a'] * 17)}/b",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingError, match="URL of PostgreSQL") as caught:
        from_url(url, "a/b")
    assert "s3cret" not in str(caught.value)


def test_a_store_does_not_show_the_password() -> None:
    assert "s3cret" not in repr(from_url("postgresql://u:s3cret@a/b", "a/b"))


def test_settings_of_the_url_win_but_for_the_encoding() -> None:
    given = from_url("postgresql://a/b?target_session_attrs=primary&client_encoding=latin1", "a/b")._parameters
    assert (given["target_session_attrs"], given["client_encoding"]) == ("primary", "UTF8")
