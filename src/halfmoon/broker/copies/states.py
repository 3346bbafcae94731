"""`States`: what a broker keeps beside its log, for slaves of ours: which tables changed, and rows of the journal. Decides nothing.

Changes are numbered. A table is dumped when it is sent, so a slave that is late gets the newest alone. Rows are sent one by one:
each says what was about to be appended when it was written. Of those that count already where the slave's log ends, it gets the
newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from halfmoon.broker.tables import Tables
from halfmoon.store.journal import Journal, Kind, Row
from halfmoon.wire.copying import FILE, State, encode_state

ROWS_MAX = 4096
"""Rows that are remembered: each has some hundred bytes. A slave whose log lacks more of them gets the newest of these only."""


class Change(NamedTuple):
    """A value for a slave: it counts once its log has come to offset ``at``. ``number`` grows, and is reported back."""

    number: int
    at: int
    data: bytes


class States:
    """The changes of one broker, whose log ends at ``end_offset()``. ``tables`` are its tables, ``rows`` those of its journal.

    ``count`` is the number of the last change; ``on_change`` is called at each one.
    """

    COPIED = frozenset({Kind.DELAYS})
    """Rows of the journal that slaves get: the others speak of files of this directory."""

    def __init__(self, end_offset: Callable[[], int], tables: Tables, journal: Journal) -> None:
        self._end_offset, self._known_tables, self._journal = end_offset, tables, journal
        tables.on_save, journal.on_write = self.table_changed, self.row_written
        self.count = 0
        self._is_complete = False
        self.on_change: Callable[[], None] = lambda: None
        self._tables: dict[str, int] = {}
        """Number of the last change, by path, in the order of the changes."""
        self._rows: deque[Change] = deque(maxlen=ROWS_MAX)

    def table_changed(self, path: str) -> None:
        """Note that a table changed."""
        self._tables.pop(path, None)
        self._known_tables.unsent.discard(path)
        self.count += 1
        self._tables[path] = self.count
        self.on_change()

    def row_written(self, row: Row) -> None:
        """Note a row of the journal. Call it before what the row speaks of is appended."""
        if row.kind in self.COPIED:
            self.count += 1
            self._rows.append(Change(self.count, self._end_offset(), encode_state(State(self.count, row.kind, row.key, row.value))))
            self.on_change()

    def look(self) -> None:
        """Note the tables that changed and are not saved yet; the first time, everything that there is."""
        if not self._is_complete:
            self._complete()
        for path in sorted(self._known_tables.unsent):
            self.table_changed(path)

    def since(self, number: int, offset: int) -> Iterator[Change]:
        """Yield the changes after one, in their order, for a slave that was sent the log up to ``offset``. Call `look` before."""
        if number >= self.count:
            return
        tables = deque((changed, path) for path, changed in self._tables.items() if changed > number)
        rows = [row for row in self._rows if row.number > number]
        old = [place for place, row in enumerate(rows) if row.at <= offset]
        rows = rows[old[-1] :] if old else rows
        for row in rows:
            while tables and tables[0][0] < row.number:
                yield self._table(*tables.popleft())
            yield row
        for each in tables:
            yield self._table(*each)

    def _complete(self) -> None:
        """Give a number to what has not changed since the start."""
        self._is_complete = True
        for path in self._known_tables.paths():
            if path not in self._tables:
                self.table_changed(path)
        for kind in self.COPIED:
            for key, value in self._journal.rows(kind):
                self.row_written(Row(kind, key, value))

    def _table(self, number: int, path: str) -> Change:
        data = self._known_tables.dump(path)
        return Change(number, self._end_offset(), encode_state(State(number, FILE, path.encode(), data if data.strip() else None)))
