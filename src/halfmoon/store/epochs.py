"""`Epochs`: which master wrote which part of the log, and the identity of a directory; saved as ``config/epochs.json``.

A log is written by one master after another. Each begins an *epoch* when it starts: a number higher than all before, the offset
where its records begin, and the member that writes them. A member is a directory, named by a random id that it keeps. Two logs that
know the same row are the same up to where either of them leaves that epoch (`common_end`).

That holds as long as a master begins an epoch before it stores anything, unless it goes on with all that it wrote in its last one;
and a slave goes on in this order: it cuts its log at the common end, adopts the master's rows, and copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Self

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import PeerError, StoreError, UsageError
from halfmoon.ports import Disk
from halfmoon.store.layout import RESTORED

PATH = "config/epochs.json"
ROWS_MAX = 1000
"""Rows of a table. Of more, the oldest are dropped: those of records that retention has deleted, or will delete first."""

_NUMBER_MAX = 2**63 - 1
MEMBER = re.compile(r"[0-9a-f]{32}")
"""Form of the id of a directory."""
_ROW = re.compile(r"([1-9][0-9]{0,18}):(0|[1-9][0-9]{0,18}):([0-9a-f]{32})")
TEXT_LENGTH_MAX = ROWS_MAX * (19 + 19 + 32 + 3)
"""Characters of all rows in the form of `Epochs.text`."""


class EpochRow(NamedTuple):
    """One epoch: its number, from 1 on; the physical offset of its first record; the id of its master's directory."""

    epoch: int
    start: int
    member: str


class Common(NamedTuple):
    """How far two logs are the same: to the physical offset ``end``. ``row`` is the last epoch in common; None: there is none."""

    row: EpochRow | None
    end: int


class _Saved(msgspec.Struct):
    member: str
    rows: list[tuple[int, int, str]]
    lost: bool = False
    restored: bool = False
    """The id was made for the restored backup that is still marked as one."""
    synced: bool = False
    """The last run waited for the disk, so that a power loss takes nothing that it reported."""
    pair: str = ""
    """The broker, ``cluster/name``, of whose pair this directory is a member; empty: of none."""


class PairOf(NamedTuple):
    """The pair to which a directory belongs: its broker, ``cluster/name``, and the last epoch that the directory knows."""

    broker: str
    epoch: int


_saved = json_decoder(_Saved)


class Epochs:
    """The table of one directory. ``member`` is the directory's id: 32 hex digits. ``rows`` have rising numbers and starts.

    ``lost``: a power loss may have taken records that this member had reported as copied, and it has not followed a master since.
    ``pair``: the broker, ``cluster/name``, of whose pair the directory is a member; empty: of none.
    ``is_restored``: the directory is a restored backup, on which no broker has started, and which has followed no master of ours.
    """

    def __init__(self, disk: Disk, member: str, rows: tuple[EpochRow, ...], *, lost: bool = False) -> None:
        self._disk, self.member, self.rows, self.lost, self.is_restored, self._synced = disk, member, rows, lost, False, False
        self.pair = ""

    @classmethod
    def load(cls, disk: Disk, random: Random) -> Self:
        """Return the table of a directory. One without a table gets an id from ``random``, saved before this returns.

        So does a restored backup, until a broker has started on it: the original goes on under the id that was copied. Waits for
        the disk.

        Raises:
            StoreError: the file is damaged. The id is not replaced by another one: the directory's epochs would be lost with it.
            OSError: the disk fails.
        """
        data, fresh = disk.read(PATH), f"{random.getrandbits(128):032x}"
        if data is None:
            return cls._made(disk, fresh, ())
        try:
            saved: _Saved = _saved.decode(data)
            if not MEMBER.fullmatch(saved.member):
                raise PeerError(f"{saved.member[:80]!r} is not the id of a member")
            rows = checked(saved.rows)
        except (msgspec.MsgspecError, RecursionError, PeerError) as exc:
            raise StoreError(
                f"{PATH} is damaged: {exc}. It says which master wrote which part of the log. Put back a copy of it. To give up"
                " what only this directory has, move the directory away and copy the master again"
            ) from None
        restored = disk.exists(RESTORED)
        if restored and not saved.restored:
            return cls._made(disk, fresh, rows, restored=True)
        epochs = cls(disk, saved.member, rows, lost=saved.lost)
        epochs.is_restored, epochs._synced, epochs.pair = restored, saved.synced, saved.pair
        if saved.restored and not restored:
            epochs._save(rows)
        return epochs

    @classmethod
    def _made(cls, disk: Disk, member: str, rows: tuple[EpochRow, ...], *, restored: bool = False) -> Self:
        epochs = cls(disk, member, rows)
        epochs.is_restored = restored
        epochs._save(rows)
        return epochs

    def begin(self, epoch: int, start: int) -> None:
        """Begin an epoch of this member at the end of its log. Rows that begin behind it go: the log has nothing of them.

        ``start`` is behind the last record, and before a blank tail that the start itself has added (`RecoveryResult.found_end`):
        others may have records there. Saved when this returns; waits for the disk.

        Raises:
            UsageError: the number is not higher than the last, or out of range, or the offset is; nothing changed.
            OSError: the disk fails; nothing changed.
        """
        if self.rows and epoch <= self.rows[-1].epoch:
            raise UsageError(f"epoch {epoch} is not higher than the last, {self.rows[-1].epoch}")
        if not (0 < epoch <= _NUMBER_MAX and 0 <= start <= _NUMBER_MAX):
            raise UsageError(f"an epoch cannot have the number {epoch} and begin at {start}")
        kept = [row for row in self.rows if row.start <= start]
        self._save((*kept, EpochRow(epoch, start, self.member))[-ROWS_MAX:])

    def adopt(self, rows: Sequence[tuple[int, int, str]]) -> None:
        """Take the rows of a master; the log must be cut at the common end before. This directory keeps its own id.

        Saved when this returns; waits for the disk. A restored backup is none any more: its log is a part of the master's, which
        gives out no offset twice.

        Raises:
            PeerError: the rows are not a table; nothing changed.
            OSError: the disk fails; nothing changed.
        """
        taken = checked(rows)
        if taken != self.rows or self.is_restored:
            self._save(taken)
        if self.is_restored:
            self._disk.remove(RESTORED)
            self._disk.sync_directory("")
            self.started()

    def started(self) -> None:
        """Note that the directory is a restored backup no more, so that a backup of it is one again. Raises OSError."""
        if self.is_restored:
            self.is_restored = False
            self._save(self.rows)

    def begin_run(self, *, lost_power: bool, sync_flush: bool, pair: str) -> None:
        """Note of which pair this is a member, how this run reports, and what a power loss may have taken of the last.

        Waits for the disk. Raises OSError.

        A restored backup looks as after a power loss, but under its new id nothing was reported.
        """
        lost = self.lost or (lost_power and not self._synced and not self.is_restored)
        if (lost, sync_flush, pair) != (self.lost, self._synced, self.pair):
            self.lost, self._synced, self.pair = lost, sync_flush, pair
            self._save(self.rows)

    def leave_pair(self) -> None:
        """Be the directory of a plain broker from now on. Saved when this returns; waits for the disk. Raises OSError."""
        if self.pair:
            self.pair = ""
            self._save(self.rows)

    def found(self) -> None:
        """Note that what may have been lost is there again. Saved when this returns; waits for the disk. Raises OSError."""
        if self.lost:
            self.lost = False
            self._save(self.rows)

    def rename(self, random: Random) -> None:
        """Take another id: this is a copy of a directory that goes on under this one. Waits for the disk. Raises OSError."""
        self.member = f"{random.getrandbits(128):032x}"
        self._save(self.rows)

    def text(self) -> str:
        """Return the rows as text for other members: ``epoch:start:member``, with commas between rows. `parse` reads it."""
        return ",".join(f"{row.epoch}:{row.start}:{row.member}" for row in self.rows)

    def _save(self, rows: tuple[EpochRow, ...]) -> None:
        # An older copy would call the records of the last epoch those of the epoch before, so none is kept.
        saved = _Saved(self.member, list(rows), self.lost, self.is_restored, self._synced, self.pair)
        self._disk.save(PATH, msgspec.json.encode(saved), keep_previous=False)
        self.rows = rows


def pair_of(disk: Disk) -> PairOf | None:
    """Return the pair of which a directory is a member; None: of none, it is a backup that was restored, or nothing can be read."""
    try:
        saved: _Saved = _saved.decode(disk.read(PATH) or b"")
    except (msgspec.MsgspecError, RecursionError, OSError):  # `Epochs.load` says so before anything is served
        return None
    if not saved.pair or (disk.exists(RESTORED) and not saved.restored):
        return None
    return PairOf(saved.pair, saved.rows[-1][0] if saved.rows else 0)


def parse(text: str) -> tuple[EpochRow, ...]:
    """Return the rows in a text from another member. Raises PeerError when it is too long or not a table."""
    if len(text) > TEXT_LENGTH_MAX:
        raise PeerError(f"a table of epochs has {len(text)} characters; the most are {TEXT_LENGTH_MAX}")
    rows = []
    for part in text.split(",") if text else ():
        if (found := _ROW.fullmatch(part)) is None:
            raise PeerError(f"{part[:80]!r} is not an epoch")
        rows.append((int(found[1]), int(found[2]), found[3]))
    return checked(rows)


def checked(rows: Sequence[tuple[int, int, str]]) -> tuple[EpochRow, ...]:
    """Return rows that came from outside as a table.

    Raises:
        PeerError: there are more than `ROWS_MAX`, a number is out of range, a member is not an id, numbers do not rise, or starts
            fall.
    """
    if len(rows) > ROWS_MAX:
        raise PeerError(f"a table of epochs has {len(rows)} rows; the most are {ROWS_MAX}")
    last_epoch = last_start = 0
    for epoch, start, member in rows:
        if not (last_epoch < epoch <= _NUMBER_MAX and last_start <= start <= _NUMBER_MAX):
            raise PeerError(f"epoch {epoch} at {start} cannot follow epoch {last_epoch} at {last_start}")
        if not MEMBER.fullmatch(member):
            raise PeerError(f"{member[:80]!r} is not the id of a member")
        last_epoch, last_start = epoch, start
    return tuple(EpochRow(*row) for row in rows)


def common_end(mine: Sequence[EpochRow], my_end: int, theirs: Sequence[EpochRow], their_end: int) -> Common:
    """Return how far two logs are the same, from the tables and the ends of both.

    An epoch is in common when number, start and member agree; the logs are the same up to the end of the last such epoch in the log
    where it ends first. It ends where the next row begins, and not behind the log's end. An end that lies before the first offset
    of a log says that it has nothing to go on from.
    """
    known = {row: place for place, row in enumerate(theirs)}
    for place in reversed(range(len(mine))):
        row = mine[place]
        if row in known:
            return Common(row, min(_end_of(mine, place, my_end), _end_of(theirs, known[row], their_end)))
    return Common(None, 0)


def _end_of(rows: Sequence[EpochRow], place: int, log_end: int) -> int:
    """Return where an epoch ends in a log."""
    return min(rows[place + 1].start, log_end) if place + 1 < len(rows) else log_end
