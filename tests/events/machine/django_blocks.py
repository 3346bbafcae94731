"""Django: one alias of ``DATABASES`` with ``atomic`` and with autocommit off, and the verbs that only it has."""

from __future__ import annotations

import gc
from contextlib import suppress
from itertools import count
from typing import Any

from django.db import connections, transaction
from sqlalchemy import make_url

from halfmoon.events import Publisher
from halfmoon.events.django import atomic, provider
from tests.events.django import conftest  # configures the project
from tests.events.machine.application import GROUP, Application
from tests.events.machine.verbs import one, verb

NUMBERS = count(1)
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}

assert conftest.settings.configured


class Alias(Application):
    """The connection of this thread to one database."""

    traits = frozenset({"django", "blocking", "bare"})

    def _publisher(self) -> Publisher:
        url = make_url(self.store.url)
        configured = {
            "ENGINE": f"django.db.backends.{ENGINES[self.store.dialect]}", "NAME": url.database, "HOST": url.host or "",
            "PORT": str(url.port or ""), "USER": url.username or "", "PASSWORD": url.password or "",
            "OPTIONS": {"timeout": 1.0} if self.store.dialect == "sqlite" else {},
        }  # fmt: skip
        self.using = f"machine_{next(NUMBERS)}"  # of this store: threads keep connections by alias
        self.known = dict(connections.settings)
        connections.settings = connections.configure_settings({**self.known, self.using: configured})
        return Publisher(GROUP, transport=self.carrier, provider=provider(self.using))

    def shut(self) -> None:
        super().shut()
        connections[self.using].close()
        self._lose()
        connections.settings = self.known

    @property
    def django(self) -> Any:
        """Django's wrapper of the connection."""
        return connections[self.using]

    @property
    def opened(self) -> bool:
        return self.open_now

    @property
    def handle(self) -> Any:
        return self.using

    def forget(self) -> None:
        self.open_now = False
        self.savepoints: list[str] = []

    def drop(self) -> None:
        self.blocks.clear()
        self.forget()
        self._lose()
        gc.collect()

    def sever(self) -> None:
        self._lose()
        super().sever()

    def _lose(self) -> None:
        with suppress(AttributeError):  # there is none in this thread
            del connections[self.using]

    async def open(self) -> None:
        self.open_now = True
        await self.enter(transaction.atomic(using=self.using))

    async def text(self, statement: str) -> None:
        with self.django.cursor() as cursor:
            cursor.execute(statement)

    async def commit(self) -> None:
        transaction.commit(using=self.using)

    async def rollback(self) -> None:
        transaction.rollback(using=self.using)

    async def close(self) -> None:
        """Close the connection. Outside of blocks it is like new afterwards."""
        try:
            self.django.close()
            if not self.blocks and not self.django.get_autocommit():
                self.django.set_autocommit(True)
        finally:
            if not self.blocks:
                self.forget()

    async def driver_connection(self) -> Any:
        self.django.ensure_connection()
        return self.django.connection

    def left(self) -> None:
        self.forget()


# ---------------------------------------------------------------- ways to begin


one("open atomic", lambda app: app.open(), "django", opens=True)


@verb("django", opens=True)
async def open_atomic_of_ours(app: Alias) -> None:
    app.open_now = True
    await app.enter(atomic(app.using))


@verb("django", weight=2, opens=True)
async def open_without_autocommit(app: Alias) -> None:
    app.open_now = True
    transaction.set_autocommit(False, using=app.using)


one("switch django autocommit on", lambda app: transaction.set_autocommit(True, using=app.using), "django")


# ---------------------------------------------------------------- blocks and savepoints


one("enter atomic", lambda app: app.enter(transaction.atomic(using=app.using)), "django", weight=3)
one("enter atomic without savepoint", lambda app: app.enter(transaction.atomic(using=app.using, savepoint=False)), "django")
one("enter atomic of ours", lambda app: app.enter(atomic(app.using)), "django")
one("make savepoint", lambda app: app.savepoints.append(transaction.savepoint(using=app.using)), "django", weight=2)
one("release savepoint", lambda app: app.savepoints and transaction.savepoint_commit(app.savepoints.pop(), app.using), "django")
one("undo savepoint", lambda app: app.savepoints and transaction.savepoint_rollback(app.savepoints.pop(), app.using), "django")


@verb("django")
async def undo_outermost_savepoint(app: Alias) -> None:
    if app.savepoints:
        outermost = app.savepoints[0]
        app.savepoints.clear()
        transaction.savepoint_rollback(outermost, using=app.using)


one("set rollback", lambda app: transaction.set_rollback(True, using=app.using), "django")
one("unset rollback", lambda app: transaction.set_rollback(False, using=app.using), "django")
one("on commit that raises", lambda app: transaction.on_commit(_raise, using=app.using), "django")


def _raise() -> None:
    raise ValueError("of the application")


# ---------------------------------------------------------------- beneath Django


one("commit the driver connection of django", lambda real: real.commit(), "django", of="driver_connection")
one("rollback the driver connection of django", lambda real: real.rollback(), "django", of="driver_connection")
