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
from tests.events.machine.verbs import verb

NUMBERS = count(1)
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}

assert conftest.settings.configured


class Alias(Application):
    """The connection of this thread to one database."""

    traits = frozenset({"django", "blocking"})

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


@verb("django", opens=True)
async def open_atomic(app: Alias) -> None:
    await app.open()


@verb("django", opens=True)
async def open_atomic_of_ours(app: Alias) -> None:
    app.open_now = True
    await app.enter(atomic(app.using))


@verb("django", weight=2, opens=True)
async def open_without_autocommit(app: Alias) -> None:
    app.open_now = True
    transaction.set_autocommit(False, using=app.using)


@verb("django")
async def switch_django_autocommit_on(app: Alias) -> None:
    transaction.set_autocommit(True, using=app.using)


# ---------------------------------------------------------------- blocks and savepoints


@verb("django", weight=3)
async def enter_atomic(app: Alias) -> None:
    await app.enter(transaction.atomic(using=app.using))


@verb("django")
async def enter_atomic_without_savepoint(app: Alias) -> None:
    await app.enter(transaction.atomic(using=app.using, savepoint=False))


@verb("django")
async def enter_atomic_of_ours(app: Alias) -> None:
    await app.enter(atomic(app.using))


@verb("django", weight=2)
async def make_savepoint(app: Alias) -> None:
    app.savepoints.append(transaction.savepoint(using=app.using))


@verb("django")
async def release_savepoint(app: Alias) -> None:
    if app.savepoints:
        transaction.savepoint_commit(app.savepoints.pop(), using=app.using)


@verb("django")
async def undo_savepoint(app: Alias) -> None:
    if app.savepoints:
        transaction.savepoint_rollback(app.savepoints.pop(), using=app.using)


@verb("django")
async def undo_outermost_savepoint(app: Alias) -> None:
    if app.savepoints:
        outermost = app.savepoints[0]
        app.savepoints.clear()
        transaction.savepoint_rollback(outermost, using=app.using)


@verb("django")
async def set_rollback(app: Alias) -> None:
    transaction.set_rollback(True, using=app.using)


@verb("django")
async def unset_rollback(app: Alias) -> None:
    transaction.set_rollback(False, using=app.using)


@verb("django")
async def on_commit_that_raises(app: Alias) -> None:
    transaction.on_commit(_raise, using=app.using)


def _raise() -> None:
    raise ValueError("of the application")


# ---------------------------------------------------------------- beneath Django


@verb("django")
async def commit_the_driver_connection_of_django(app: Alias) -> None:
    (await app.driver_connection()).commit()


@verb("django")
async def rollback_the_driver_connection_of_django(app: Alias) -> None:
    (await app.driver_connection()).rollback()
