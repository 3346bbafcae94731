"""Pages that show facts and changes that carry something out, declared as values. Knows no HTTP.

A page is a function that returns plain facts (dicts, lists, msgspec structs); its template shows them, and ``PATH.json`` is the
same facts. A change is a form that an operator sends; it is written to the audit log before it is carried out, and is carried out
once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.access.attempts import Attempts
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms
from halfmoon.console.access.sessions import Sessions
from halfmoon.console.access.users import Users
from halfmoon.console.sampler import Sampler
from halfmoon.console.tables import behind, cursor_of, ordered
from halfmoon.errors import UsageError
from halfmoon.shown.texts import read_time

Facts = dict[str, Any]
T = TypeVar("T")

PAGE_SIZE = 100
"""Rows of a page."""

REASON_MAX = 200
"""Longest reason for an irreversible change, as the audit log keeps it."""

TEXT_MAX, CURSOR_MAX = 512, 8192
"""Longest name, key or word that a query or a form takes, and longest cursor; longer ones are refused in words."""


class ConsoleServices(NamedTuple):
    """Services of pages and changes.

    ``secure``: browsers speak TLS, with a proxy or with the console, which then shows a certificate. ``public_url``: where browsers
    find the console behind a proxy, empty without one.
    """

    admin: AsyncAdmin
    sampler: Sampler
    users: Users
    sessions: Sessions
    attempts: Attempts
    audit: Audit
    secure: bool = False
    public_url: str = ""

    @property
    def shows_certificate(self) -> bool:
        """Whether browsers have checked that the name which they ask is the console's."""
        return self.secure and not self.public_url


class Asked(NamedTuple):
    """Request for a page or a change: the cluster, the fields of the query or form, and the visitor."""

    admin: AsyncAdmin
    values: Mapping[str, str]
    user: str
    services: ConsoleServices

    def text(self, name: str, default: str | None = None, *, length_max: int = TEXT_MAX) -> str:
        """Return a value without blanks around it. Raises UsageError: it is missing without a default, or too long."""
        value = self.values.get(name, "").strip()
        if len(value) > length_max:
            raise UsageError(f"{name} is {len(value):,} characters long: at most {length_max:,} are taken")
        if value:
            return value
        if default is None:
            raise UsageError(f"{name} is missing")
        return default

    def number(self, name: str, default: int | None = None, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return a whole number. Raises UsageError: it is missing without a default, not a number, or out of bounds."""
        text = self.text(name, None if default is None else str(default), length_max=20)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()):
            raise UsageError(f"{name} must be a whole number, not {text}")
        if not low <= int(text) <= high:
            raise UsageError(f"{name} must be from {low:,} to {high:,}")
        return int(text)

    def choice(self, name: str, choices: Mapping[str, Any] | tuple[str, ...], default: str | None = None) -> str:
        """Return one of the choices. Raises UsageError."""
        text = self.text(name, default)
        if text not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}")
        return text

    def confirm(self, name: str) -> None:
        """Raise UsageError unless a name was typed, in the field ``typed``, as it is."""
        if self.values.get("typed", "") != name:
            raise UsageError(f"to confirm, type the name exactly: {name}")

    def moment(self, name: str, default: str | None = None) -> int | None:
        """Return a time in ms since the epoch; None where there is none and the default is empty. Raises UsageError."""
        text = self.text(name, default)
        try:
            return max(0, read_time(text, self.now_ms)) if text else None
        except ValueError as exc:
            raise UsageError(f"{name}: {exc}") from None

    def rows(self, found: Iterable[T], key: Callable[[T], str] = str) -> tuple[list[T], str | None]:
        """Return `PAGE_SIZE` items behind the key that the query names, in the order of keys; and the last key, None: no more.

        Items that come or go meanwhile move no others out of a page.
        """
        ordered = sorted(found, key=key)
        begin = bisect_right(ordered, self.after, key=key)
        shown = ordered[begin : begin + PAGE_SIZE]
        return shown, key(shown[-1]) if begin + PAGE_SIZE < len(ordered) else None

    def table(self, found: Iterable[T], key: Callable[[T], str], sort: str) -> tuple[list[T], str | None]:
        """Return `PAGE_SIZE` items behind the cursor, in the order that the query names or ``sort``; and the next cursor.

        Items that come or go meanwhile move no others out of a page. Raises UsageError.
        """
        sort = self.text("sort", sort)
        rows = ordered(found, sort, key)
        rows = behind(rows, sort, key, self.after) if self.after else rows
        return rows[:PAGE_SIZE], cursor_of(rows[PAGE_SIZE - 1], sort, key) if len(rows) > PAGE_SIZE else None

    def sorted(self, rows: list[T]) -> list[T]:
        """Return the rows of a page with a cursor of the cluster in the order that the query names, if any. Raises UsageError."""
        sort = self.text("sort", "")
        return ordered(rows, sort, lambda row: "") if sort else rows

    @property
    def after(self) -> str:
        """Return the cursor behind which the page begins, as the page before named it; empty: at the first row."""
        return self.text("after", "", length_max=CURSOR_MAX)

    @property
    def now_ms(self) -> int:
        """Return the time, in ms since the epoch."""
        return now_ms()


class Page(NamedTuple):
    """Page at ``path``; ``template`` shows its facts, and bytes are a file to keep. ``menu``: its group of the menu; empty: none.

    ``under``: the path of the page in the menu that it belongs to. ``fragment``: no page of its own but a part that a page gets
    again and again while it is looked at; asking for it keeps no session alive.
    """

    path: str
    title: str
    template: str
    facts: Callable[[Asked], Awaitable[Facts | bytes]]
    menu: str = ""
    under: str = ""
    operators: bool = False
    fragment: bool = False


class Done(NamedTuple):
    """Result of a change: a sentence, and the page to show then, with its query."""

    said: str
    then: str


class Change(NamedTuple):
    """Form that an operator sends to ``path``. ``audit``: which of its fields the audit log keeps.

    ``irreversible``: the form needs a reason, which is kept as well. Its page states the effect before it asks for one.
    """

    path: str
    act: Callable[[Asked], Awaitable[Done]]
    audit: tuple[str, ...]
    irreversible: bool = False


class Question(NamedTuple):
    """Question before an irreversible change, for ``confirm.html``: its effects as sentences, the button, the form's fields.

    ``back`` is the page to return to without the change. ``typed``: a name to type first; empty: none.
    """

    effects: list[str]
    button: str
    fields: dict[str, str]
    back: str
    typed: str = ""
