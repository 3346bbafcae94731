"""Databases whose COMMIT is answered by an error when a test says so, with the data committed or not: nobody can tell which.

PostgreSQL and MariaDB: a wire between client and server is cut when COMMIT passes, before it gets through or after it was carried
out. SQLite: the driver's connection tells of a disk that failed, before its COMMIT or after it.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
from contextlib import suppress

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.pool import NullPool


class UnsureCommits:
    """An engine, and `arm`, which has one COMMIT fail; ``committed`` says whether the data are there then."""

    def __init__(self, url: str, *, committed: bool) -> None:
        self.armed = False
        self._mark, self._thread = b"", 0
        self._committed = committed
        self._closing: list[socket.socket] = []
        self.engine = self._sqlite(url) if url.startswith("sqlite") else self._server(url)

    def arm(self, mark: str) -> None:
        """Have the next COMMIT of the transaction fail that writes this text from now on, in this thread: others commit, too."""
        self._mark, self._thread = mark.encode(), threading.get_ident()
        self.armed = True

    def close(self) -> None:
        """Cut the wire."""
        for one in self._closing:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    # ------------------------------------------------------------ SQLite

    def _sqlite(self, url: str) -> Engine:
        unsure = self

        class Connection(sqlite3.Connection):
            def commit(self) -> None:
                failing = unsure.armed and threading.get_ident() == unsure._thread
                if not failing or unsure._committed:
                    super().commit()
                if failing:
                    unsure.armed = False
                    raise sqlite3.OperationalError("disk I/O error")

        return create_engine(url, connect_args={"factory": Connection}, poolclass=NullPool)

    # ------------------------------------------------------------ PostgreSQL, MariaDB

    def _server(self, url: str) -> Engine:
        place = make_url(url)
        listening = socket.create_server(("127.0.0.1", 0))
        self._closing.append(listening)
        assert place.host is not None
        assert place.port is not None
        threading.Thread(target=self._accept, args=(listening, (place.host, place.port)), daemon=True).start()
        plainly = {"sslmode": "disable"} if place.drivername.startswith("postgresql") else {"ssl_disabled": True}
        return create_engine(place.set(port=listening.getsockname()[1]), poolclass=NullPool, connect_args=plainly)

    def _accept(self, listening: socket.socket, target: tuple[str, int]) -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(target)
                self._closing += [near, far]
                answered = threading.Event()
                threading.Thread(target=self._up, args=(near, far, answered), daemon=True).start()
                threading.Thread(target=self._down, args=(far, near, answered), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket, answered: threading.Event) -> None:
        marked = False
        with suppress(OSError):
            while data := near.recv(65536):
                marked = marked or (self.armed and self._mark in data)
                if marked and self.armed and b"COMMIT" in data:
                    self.armed = False
                    if self._committed:
                        near.shutdown(socket.SHUT_WR)  # before the answer can come back
                        answered.clear()
                        far.sendall(data)
                        answered.wait(60)  # until the server has committed
                    break
                far.sendall(data)
        for one in (near, far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _down(self, far: socket.socket, near: socket.socket, answered: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                answered.set()
                near.sendall(data)
