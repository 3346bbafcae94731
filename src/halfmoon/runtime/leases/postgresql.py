"""Lease in PostgreSQL: one row of the table `halfmoon_lease`, replaced by one statement. Needs psycopg, of which libpq's functions.

Each call sends one message with all its statements: the server runs them as one transaction without waiting for more, so a
client that is stopped in the middle holds no lock. Settings are made in that transaction (``SET LOCAL``), since nothing else lasts
behind a pooler in transaction mode, such as PgBouncer.
"""

from __future__ import annotations

import math
import re
import select
from collections.abc import Iterator
from typing import NamedTuple

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import Stored
from halfmoon.runtime.leases.addresses import Resolver
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.runtime.leases.record import checked, line, stored

TABLE = "CREATE TABLE halfmoon_lease (name text PRIMARY KEY, version bigint NOT NULL, record text NOT NULL)"
"""Statement that makes the table, where the account may not."""

_BEGIN = (
    "SET LOCAL transaction_isolation = 'read committed'; SET LOCAL synchronous_commit = on; "
    "SET LOCAL statement_timeout = {timeout_ms}; "
)
_READ = "SELECT version, record, pg_is_in_recovery() FROM halfmoon_lease WHERE name = {name}"
_INSERT = (  # a row that is removed and made again begins with another version
    "INSERT INTO halfmoon_lease VALUES ({name}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {record}) "
    "ON CONFLICT (name) DO NOTHING RETURNING version"
)
_UPDATE = (
    "UPDATE halfmoon_lease SET version = version + 1, record = {record} "
    "WHERE name = {name} AND version = {expected} RETURNING version"
)

_NO_TABLE, _NO_RIGHTS = "42P01", "42501"
_ERRORS = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE, pq.ExecStatus.NONFATAL_ERROR)
_REDUNDANT = re.compile("connection to server .*? failed: ")
"""Beginning of libpq's reasons, with an address that stands before them already."""
_PORT = "5432"
HOSTS_MAX = 16
"""Hosts of one URL. They share the time of a call."""


def from_url(url: str, name: str) -> PostgresLease:
    """Return the lease of a URL as libpq takes it. Raises SettingError: it is malformed. The text has nothing of a password."""
    try:
        given = conninfo_to_dict(url)
    except Error as exc:
        reason = re.sub('".*"', '"..."', line(str(exc)))  # what is quoted may be a part of the password
        raise SettingError(
            f"lease: the URL of PostgreSQL is malformed: {reason} (special characters of a password are written %XX)"
        ) from None
    parameters = {key: str(value) for key, value in given.items() if value is not None}
    hosts, ports = parameters.get("host", "").split(","), parameters.get("port", "").split(",")
    if len(hosts) > HOSTS_MAX or len(ports) not in (1, len(hosts)):
        raise SettingError(f"lease: the URL of PostgreSQL has {len(hosts)} hosts (at most {HOSTS_MAX}) and {len(ports)} ports")
    if not all(port == "" or (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536) for port in ports):
        raise SettingError("lease: a port in the URL of PostgreSQL is no number from 1 to 65535")
    return PostgresLease(parameters, name)


class _Failed(Exception):
    """The server refused a statement; nothing of the transaction was done."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(said)
        self.code = code


class PostgresLease:
    """Lease in a row of PostgreSQL; a `halfmoon.ports.LeaseStore`. Keeps one connection, and makes another when that is lost."""

    def __init__(self, parameters: dict[str, str], name: str, resolver: Resolver | None = None) -> None:
        defaults = {"target_session_attrs": "read-write", "application_name": "halfmoon", "gssencmode": "disable"}
        self._parameters = {**defaults, **parameters, "client_encoding": "UTF8"}
        self._name = name
        self._resolver = resolver or Resolver()
        self._connection: pq.abc.PGconn | None = None
        self._warnings: list[str] = []
        self.address = " ".join(str(place) for place in self._places())

    def read(self, timeout_ms: int) -> Stored | None:
        """Return the newest record; None: there is none. Raises LeaseUnavailable."""
        deadline = Deadline(timeout_ms, self.address)
        try:
            row = self._run(_BEGIN + _READ, deadline)
        except _Failed as exc:
            if exc.code == _NO_TABLE:
                return None
            raise self._unavailable(str(exc)) from None
        if row is None:
            return None
        version, text, is_standby = row
        if is_standby == b"t":
            self.close()
            raise self._unavailable("the server is a standby, whose record may be old")
        return stored(text, version.decode(), self.address)

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        """Replace the record; see `halfmoon.ports.LeaseStore.write`."""
        record, deadline = checked(text), Deadline(timeout_ms, self.address)
        if expected is not None and not (expected.isascii() and expected.isdigit() and len(expected) < 19):
            return None  # no version of ours
        values = {"record": record} if expected is None else {"record": record, "expected": expected}
        statement = _BEGIN + (_INSERT if expected is None else _UPDATE)
        try:
            try:
                row = self._run(statement, deadline, **values)
            except _Failed as exc:
                if exc.code != _NO_TABLE:
                    raise
                if expected is not None:
                    return None
                row = self._first(statement, deadline, **values)
        except _Failed as exc:
            raise self._unavailable(str(exc)) from None
        return None if row is None else row[0].decode()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.finish()
            self._connection = None

    def _first(self, statement: str, deadline: Deadline, **values: str) -> list[bytes] | None:
        """Make the table and run a statement; it is the statement that shows whether another member made the table meanwhile."""
        refused: _Failed | None = None
        try:
            self._run(_BEGIN + TABLE, deadline)
        except _Failed as exc:
            refused = exc
        try:
            return self._run(statement, deadline, **values)
        except _Failed as exc:
            if refused is None or exc.code != _NO_TABLE:
                raise
        if refused.code == _NO_RIGHTS:
            raise _Failed(refused.code, f"the table halfmoon_lease is missing, and this account may not make it: run {TABLE}")
        raise refused

    def _unavailable(self, reason: str) -> LeaseUnavailable:
        return LeaseUnavailable(f"PostgreSQL at {self.address}: {reason}", self.address)

    # ------------------------------------------------------------ one message

    def _run(self, statement: str, deadline: Deadline, **values: str) -> list[bytes] | None:
        """Run a transaction and return its only row, as texts; None: there is none.

        Raises:
            _Failed: the server refused it.
            LeaseUnavailable: it is not known what happened; the connection is closed.
        """
        is_whole = False
        try:
            connection = self._usable(deadline)
            literal = pq.Escaping(connection).escape_literal
            literals = {key: literal(value.encode()).decode() for key, value in {"name": self._name, **values}.items()}
            self._warnings.clear()
            connection.send_query(statement.format(timeout_ms=max(1, int(deadline.left_s() * 1000)), **literals).encode())
            results = list(_results(connection, deadline))
            is_whole = connection.status == pq.ConnStatus.OK
        except Error as exc:
            raise self._unavailable(line(str(exc))) from None
        finally:
            if not is_whole:
                self.close()
        for result in results:
            if result.status in _ERRORS:
                raise _failure(result) if is_whole else self._unavailable(str(_failure(result)))
        if values and self._warnings:  # such as: a write was canceled while it waited for a standby, and committed here alone
            raise self._unavailable(self._warnings[0])
        if not is_whole or not results:
            raise self._unavailable("the connection broke")
        row = results[-1]
        return [row.get_value(0, column) or b"" for column in range(row.nfields)] if row.ntuples else None

    def _usable(self, deadline: Deadline) -> pq.abc.PGconn:
        """Return the connection, another one where the server has closed it meanwhile."""
        if self._connection is not None and not _is_open(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._connect(deadline)
            self._connection.notice_handler = self._note
        return self._connection

    def _note(self, notice: pq.abc.PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"WARNING":
            self._warnings.append(str(_failure(notice)))

    # ------------------------------------------------------------ connecting

    def _places(self) -> list[_Place]:
        hosts, ports, given = (self._parameters.get(key, "").split(",") for key in ("host", "port", "hostaddr"))
        given = given if len(given) == len(hosts) else [""] * len(hosts)
        return [_Place(host, ports[at % len(ports)] or _PORT, given[at]) for at, host in enumerate(hosts)]

    def _connect(self, deadline: Deadline) -> pq.abc.PGconn:
        """Return a connection to the first host that takes one for writes, in the order of the URL. Raises LeaseUnavailable."""
        places, reasons = self._places(), []
        for hosts_left, place in zip(range(len(places), 0, -1), places):
            try:
                share = deadline.share(hosts_left, str(place))
                addresses = [place.address] if place.is_known else self._resolver.addresses(place.host, share)
            except LeaseUnavailable as exc:
                reasons.append(str(exc))
                continue
            for left, address in zip(range(len(addresses), 0, -1), addresses):
                own = {**self._parameters, "host": place.host, "port": place.port, "hostaddr": address}
                try:
                    return _connected({key: value for key, value in own.items() if value}, share.share(left, str(place)))
                except LeaseUnavailable as exc:
                    reasons.append(str(exc))
        raise LeaseUnavailable(f"PostgreSQL: {'; '.join(reasons)}", self.address)


class _Place(NamedTuple):
    host: str
    port: str
    address: str
    """IP address that the URL gives; empty: none."""

    @property
    def is_known(self) -> bool:
        """Whether there is nothing to ask a resolver for."""
        return bool(self.address) or self.host in ("", "localhost") or self.host.startswith(("/", "@"))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host or 'localhost'}:{self.port}"


def _connected(parameters: dict[str, str], deadline: Deadline) -> pq.abc.PGconn:
    """Return a connection that does not block. Raises LeaseUnavailable."""
    connection = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    is_open = False
    try:
        while connection.status != pq.ConnStatus.BAD:
            state = connection.connect_poll()
            if state == pq.PollingStatus.OK:
                connection.nonblocking = 1
                is_open = True
                return connection
            if state == pq.PollingStatus.FAILED:
                break
            _await(connection.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT, deadline)
        reason = _REDUNDANT.sub("", connection.get_error_message().strip().partition("\n")[0])
        raise LeaseUnavailable(f"{deadline.address}: {line(reason)}", deadline.address)
    except Error as exc:
        raise LeaseUnavailable(f"{deadline.address}: {line(str(exc))}", deadline.address) from None
    finally:
        if not is_open:
            connection.finish()


def _results(connection: pq.abc.PGconn, deadline: Deadline) -> Iterator[pq.abc.PGresult]:
    """Yield the results of the message that was sent, to its end. Raises psycopg.Error, LeaseUnavailable."""
    while connection.flush():
        _await(connection.socket, select.POLLIN | select.POLLOUT, deadline)
        if _happened(connection.socket, select.POLLIN, 0):
            connection.consume_input()
    while True:
        while connection.is_busy():
            _await(connection.socket, select.POLLIN, deadline)
            connection.consume_input()
        result = connection.get_result()
        if result is None:
            return
        yield result


def _failure(result: pq.abc.PGresult) -> _Failed:
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return _Failed(code.decode(errors="replace"), line(said.decode(errors="replace")))


def _is_open(connection: pq.abc.PGconn) -> bool:
    """Whether a connection that waits for a message is as it was: the server says nothing then, but that it ends."""
    return connection.status == pq.ConnStatus.OK and not _happened(connection.socket, select.POLLIN, 0)


def _await(socket: int, events: int, deadline: Deadline) -> None:
    if not _happened(socket, events, deadline.left_s()):
        raise deadline.passed()


def _happened(socket: int, events: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(socket, events)
    return bool(poll.poll(math.ceil(timeout_s * 1000)))
