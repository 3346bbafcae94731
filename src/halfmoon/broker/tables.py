"""The JSON tables of ``config/``: which have changed and are to be saved, and reading them. Never writes by itself.

A table is saved whole, atomically and durably (`Disk.save`), as `Work`: at most one save of a table is in progress, and changes
meanwhile lead to another one. `when_saved` calls back once tables are saved; while a table cannot be saved, requests that depend on
it are refused (`check`). Reading falls back to the ``.bak`` of the previous save if the file is missing or does not parse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from halfmoon.effects import Work
from halfmoon.errors import PeerError, ServiceNotAvailable, StoreError, SystemBusy
from halfmoon.instant import Instant
from halfmoon.ports import Disk
from halfmoon.store.log.quarantine import Quarantine

log = logging.getLogger("halfmoon.broker.tables")

T = TypeVar("T")

OnSaved = Callable[[str | None, Instant], None]
"""Called with None, or the reason why a table is not saved; and the time."""

WAITING_MAX = 1000
"""Commands of operators that may wait for one table."""


class _Table:
    __slots__ = ("busy", "changed", "dump", "path", "patient", "waiting")

    def __init__(self, path: str, dump: Callable[[], bytes], patient: bool) -> None:
        self.path, self.dump, self.patient = path, dump, patient
        self.changed = self.busy = False
        self.waiting: list[OnSaved] = []
        """Callbacks of changes that the next save covers."""


class Tables:
    """The tables of one broker."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._tables: dict[str, _Table] = {}
        self._in_a_hurry = False
        self.touched = False
        """A table may have changes to save."""
        self.changes: set[str] = set()
        """Paths that changed since somebody cleared this."""
        self.unsent: set[str] = set()
        """Paths that changed since slaves were last sent them."""
        self.on_save: Callable[[str], None] = lambda path: None
        """Called with the path of a table that is about to be saved."""
        self.failed: dict[str, str] = {}
        """Paths whose last save failed, with the reason; tried again with the next change or `save_changed`."""

    def load(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return a saved table, from its ``.bak`` if the file is missing, empty or damaged; None if neither exists.

        It is logged when the older copy is used, or when nothing is left of a table. What is damaged
        is kept in ``quarantine/`` then.

        Raises:
            StoreError: both exist and neither parses. Differs: the original starts with an empty table and forgets in silence.
        """
        reasons, empty = [], []
        for name in (path, path + ".bak"):
            try:
                data = self._disk.read(name)
            except IsADirectoryError:
                reasons.append(f"{name} is a directory")
                continue
            if data is None:
                continue
            if not data.strip():
                empty.append(f"{name} is empty")
                continue
            try:
                table = parse(data)
            except PeerError as exc:
                reasons.append(f"{name}: {exc}")
                continue
            if name != path:
                why = "; ".join([*reasons, *empty]) or f"{path} is missing"
                log.warning("%s: using the older copy %s, later changes are lost", why, name)
                if reasons:
                    self._set_aside(path, reasons[0])
            return table
        if reasons:
            raise StoreError(
                f"a saved table cannot be read: {'; '.join(reasons)}. Put back a copy of {path}, or remove it and {path}.bak to"
                " begin with an empty one"
            )
        if empty:
            log.warning("%s: the broker begins without what was saved there", "; ".join(empty))
        return None

    def _set_aside(self, path: str, reason: str) -> None:
        """Move away what the next save would replace, or could not."""
        try:
            Quarantine(self._disk).file(path, reason)
        except OSError as exc:
            log.warning("%s cannot be set aside: %s", path, exc)

    def add(self, path: str, dump: Callable[[], bytes], *, patient: bool = False) -> Callable[[], None]:
        """Add a table; return the function that marks it changed. A ``patient`` one waits for the next round of saves."""
        table = self._tables[path] = _Table(path, dump, patient)

        def changed() -> None:
            table.changed = self.touched = True
            self.changes.add(path)
            self.unsent.add(path)

        return changed

    def paths(self) -> list[str]:
        """Return the path of each table."""
        return list(self._tables)

    def dump(self, path: str) -> bytes:
        """Return a table as it is now, in the form in which it is saved."""
        return self._tables[path].dump()

    def save_changed(self, *, everything_changed: bool = False) -> list[Work[None]]:
        """Return the saves that are due: changed tables with no save under way.

        Patient ones, and those whose last save failed, only with ``everything_changed``, or once `hurry` was called.
        """
        if not self.touched and not everything_changed:
            return []
        self.touched = False
        works = []
        for table in self._tables.values():
            patient = (table.patient and not self._in_a_hurry) or table.path in self.failed
            if self._in_a_hurry and table.path in self.failed:
                continue  # it was tried at the stop or just before, and would fail again
            if table.changed and not table.busy and (everything_changed or not patient or table.waiting):
                table.changed, table.busy = False, True
                waiting, table.waiting = table.waiting, []
                data = table.dump()
                self.on_save(table.path)
                works.append(
                    Work(
                        partial(self._disk.save, table.path, data), partial(self._saved, table, waiting), name=f"save {table.path}"
                    )
                )
        return works

    def hurry(self) -> None:
        """Save all tables now, as the broker stops; each is tried only once more."""
        self._in_a_hurry = self.touched = True
        self.failed.clear()

    def when_saved(self, paths: Iterable[str], on_saved: OnSaved, now: Instant) -> None:
        """Save tables as they are now; call ``on_saved`` once, when all are saved or have failed."""
        changed = [table for table in map(self._tables.__getitem__, paths) if table.changed or table.busy]
        ended: list[str | None] = []

        def save_ended(reason: str | None, now: Instant) -> None:
            ended.append(reason)
            if len(ended) == len(changed):
                on_saved("; ".join(filter(None, ended)) or None, now)

        for table in changed:
            table.changed = self.touched = True
            table.waiting.append(save_ended)
        if not changed:
            on_saved(None, now)

    def check(self, *paths: str) -> None:
        """Call it before anything is changed. Raises ServiceNotAvailable while a table cannot be saved, SystemBusy."""
        for path in paths:
            if (reason := self.failed.get(path)) is not None:
                raise ServiceNotAvailable(f"service not available now: {path} cannot be saved: {reason}")
            if len(self._tables[path].waiting) >= WAITING_MAX:
                raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    def _saved(self, table: _Table, waiting: list[OnSaved], result: Any, now: Instant) -> None:
        table.busy = False
        self.touched = True
        if isinstance(result, Exception):
            if table.path not in self.failed:
                log.error("a table cannot be saved, requests that depend on it are refused: path=%s error=%s", table.path, result)
            self.failed[table.path] = str(result)
            table.changed = True
        elif self.failed.pop(table.path, None) is not None:
            log.warning("a table is saved again: path=%s", table.path)
        for on_saved in waiting:
            on_saved(self.failed.get(table.path), now)
