"""The publisher of the project: one a process, made from ``HALFMOON`` when it is first used."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from halfmoon.events.django.configuration import SETTING, configuration
from halfmoon.events.publishing.publisher import Publisher

C = TypeVar("C", bound=Callable[..., Any])

AGAIN_S = 10
"""A start that failed is tried again with a request that comes so much later."""

ENTRIES = {"django.core.wsgi", "django.core.asgi"}
"""Loaded by the project's ``wsgi.py`` and ``asgi.py`` before Django is ready, and by commands only after it."""

log = logging.getLogger("halfmoon.events")


class ProjectEvents:
    """Stands for the project's publisher, and makes it when something of it is first used. Checks may be declared before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._checks: list[tuple[str, str, Callable[..., Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as what copy() and inspect look for
            raise AttributeError(name)
        return getattr(self.publisher(), name)

    def __enter__(self) -> Publisher:
        return self.publisher().__enter__()

    def __exit__(self, *error: object) -> None:
        self.publisher().__exit__(*error)

    async def __aenter__(self) -> Publisher:
        return await self.publisher().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self.publisher().__aexit__(*error)

    def __repr__(self) -> str:
        return f"<events of the project, {'not made yet' if self._publisher is None else f'group {self._publisher.group}'}>"

    def publisher(self) -> Publisher:
        """Return the publisher. Raises ImproperlyConfigured."""
        publisher = self._publisher
        if publisher is None:
            with self._lock:
                if (publisher := self._publisher) is None:
                    publisher = configuration().publisher()
                    self._declare(publisher)
                    self._publisher = publisher
        return publisher

    def connect(self) -> None:
        """Make the publisher, which connects in the background, in a process that serves.

        A process serves if it has loaded Django's entry for WSGI or ASGI servers. Mistakes are reported with the first request.

        A command such as ``migrate`` does not serve, nor do tests, which would answer checks from a database of their own.
        """
        if sys.modules.keys() & ENTRIES and "django.test" not in sys.modules:
            with suppress(Exception):
                self.publisher()

    def check(self, topic: str = "*", code: str = "*") -> Callable[[C], C]:
        """Declare a check as `Publisher.check` does, without reading the settings yet."""

        def keep(function: C) -> C:
            with self._lock:
                if self._publisher is not None:
                    self._publisher.check(topic, code)(function)
                self._checks.append((topic, code, function))
            return function

        return keep

    def made(self, **changes: Any) -> Publisher:
        """Return another publisher of the same settings, but for some, with the same checks. Raises ImproperlyConfigured."""
        with self._lock:
            publisher = configuration().publisher(**changes)
            self._declare(publisher)
            return publisher

    def forget(self) -> None:
        """Close the publisher; the next use makes another one, of the settings as they are then."""
        with self._lock:
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _declare(self, publisher: Publisher) -> None:
        for topic, code, function in self._checks:
            publisher.check(topic, code)(function)


project = ProjectEvents()
events = cast(Publisher, project)
"""The project's publisher."""


class OpenOnRequest:
    """Opens the project's publisher with the first request of a web process, so that brokers can ask it. Requests do not wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: tuple[Publisher | None, int] = (None, 0)
        self._not_before_s = 0.0

    def request_started(self, **_: Any) -> None:
        """Open the publisher with the first request."""
        if self._opened == (project._publisher, os.getpid()):
            return
        with self._lock:
            now = time.monotonic()
            if now < self._not_before_s:
                return
            self._not_before_s = now + AGAIN_S
        threading.Thread(target=self._open, name="halfmoon-open", daemon=True).start()

    def _open(self) -> None:
        try:
            publisher = project.publisher()
            publisher.start()
        except Exception as exc:
            log.warning("the publisher could not be opened, a later request tries again: reason=%s", exc)
        else:
            self._opened = publisher, os.getpid()


def settings_changed(*, setting: str, **_: Any) -> None:
    """Forget the publisher when a test changes the settings: the next use makes a new one."""
    if setting == SETTING:
        project.forget()
