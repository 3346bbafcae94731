"""The checkpoint: from where recovery has to look, and how the last run ended.

The offsets are a row of the journal. The first 24 bytes of the file ``checkpoint`` are RocketMQ's; behind them are our own notes.

Layout of the original's part: physicMsgTimestamp i64 | logicsMsgTimestamp i64 | indexMsgTimestamp i64 (store times, ms).
Copies of it at 1 and 2 KiB, with each bit turned over, are written in turn and before it. They tell a run of another broker, which
moves only the 24 bytes and makes the row void. A process killed in between, or within, leaves the older copy, or the begin of one
and the rest of the other. All of that lies in one page, so a loss of power leaves it as it was at one moment; which one that is
makes no difference to the row.

At 3 KiB each turn notes where the log ends, in two places in turn. A note survives the process and wants no sync: after a kill the
last records of the log may be damaged, and nothing else says that there were any. Decides nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.ports import Disk, File
from halfmoon.store.journal import Journal, Kind, Row
from halfmoon.store.layout import ABORT, CHECKPOINT

_ORIGINAL = Struct(">qqq")
_ROW = Struct(">?qqqqq24s")  # | clean | five offsets | the original's part |
_NOTE = Struct(">qq")  # | end of the log | the same with each bit turned over |
_COPIES_AT, _NOTES_AT = (1024, 2048), 3072
_FILE_BYTES = 4096


class Checkpoint(NamedTuple):
    """Offsets are physical, times are store times in ms."""

    log_ms: int = 0
    """Store time of the last record that was synced."""
    queue_ms: int = 0
    """Store time of the last record whose queue entry was synced."""
    index_ms: int = 0
    """Store time of the last record in the last full, synced key index file."""
    durable_offset: int = 0
    """Log, queues and reservations below are on the device."""
    published_offset: int = 0
    """Log and queues below were written; they count as long as the machine did not restart."""
    indexed_offset: int = 0
    """Key indexes below were written; as above."""
    index_entries: int = 0
    """Entry count of the last key index file at that moment."""
    index_safe_offset: int = 0
    """Last record in the key index files that are full and synced."""
    clean: bool = False
    """Written at a clean stop."""

    @property
    def usable_ms(self) -> int:
        """The original's start of recovery: three seconds before what was surely flushed."""
        return max(0, min(self.log_ms, self.queue_ms) - 3000)


class LastRun(NamedTuple):
    """How the last run of a broker on the directory ended, and what its checkpoint promises."""

    checkpoint: Checkpoint
    ours: bool
    """The checkpoint is Halfmoon's; of another broker's only the three times are known."""
    clean: bool
    lost: bool
    """Writes that were not synced may be gone: the machine restarted, or nobody knows."""
    noted_end: int | None = None
    """Physical offset where the log ended when the process was killed, or shortly before; None: it was not, or nobody knows."""

    @property
    def durable_offset(self) -> int:
        """Physical offset below which log and queues are on the device, as far as is known."""
        return self.checkpoint.durable_offset if self.ours else 0

    @property
    def entered_offset(self) -> int:
        """Physical offset below which log and queues were written and cannot have been lost."""
        published = self.checkpoint.published_offset if self.ours and not self.lost else 0
        return max(self.durable_offset, published)

    @property
    def written_offset(self) -> int:
        """Physical offset below which the log was written and cannot have been lost: keys are entered before queue entries."""
        indexed = self.checkpoint.indexed_offset if self.ours and not self.lost else 0
        return max(self.entered_offset, indexed)

    @property
    def lost_from(self) -> int | None:
        """Physical offset from which on names of files may be lost; None: no name can be."""
        return self.checkpoint.durable_offset if self.ours and self.lost else None


def lost_power(disk: Disk) -> bool:
    """Return whether the machine ended while the store was open, so that what was not on the device may be lost."""
    mark, boot_id = disk.read(ABORT), disk.boot_id()
    return mark is not None and (boot_id is None or mark != boot_id.encode())


def read_last_run(disk: Disk, file: CheckpointFile) -> LastRun:
    """Return how the last run ended; nothing is changed."""
    checkpoint, mark = file.read(), disk.read(ABORT)
    lost = lost_power(disk)
    return LastRun(checkpoint, file.ours, mark is None, lost, None if mark is None or lost else file.noted_end)


class CheckpointFile:
    """Row and file. ``ours`` says whether the last read found that the row counts; else only the three times are known."""

    def __init__(self, disk: Disk, journal: Journal) -> None:
        self._disk, self._journal = disk, journal
        self._file: File | None = None
        self.ours = False
        self.durable_offset = self._written_offset = 0
        """The `Checkpoint.durable_offset` that is on the device itself."""
        self.noted_end: int | None = None
        """Note of `note_end` that the last read found."""
        self._original = b""
        self._copy_at, self._note_at = _COPIES_AT[0], _NOTES_AT

    def read(self) -> Checkpoint:
        """Return what row and file say; nothing is changed."""
        data, row = self._disk.read(CHECKPOINT) or b"", self._journal.value(Kind.CHECKPOINT)
        self.ours = False
        if len(data) < _FILE_BYTES:
            return Checkpoint()
        notes = [_NOTE.unpack_from(data, _NOTES_AT + place) for place in (0, _NOTE.size)]
        self.noted_end = max((end for end, turned in notes if end == ~turned), default=None)
        original = self._original = data[: _ORIGINAL.size]
        if row is not None:
            clean, *numbers, times = _ROW.unpack(row)
            copies = [data[at : at + _ORIGINAL.size] for at in _COPIES_AT]
            older = any(copy.startswith(b"halfmoon") for copy in copies)  # slots of an older version, whose row was believed
            self.ours = _is_copied(original, *map(_turned, copies)) or (older and original == times)
            if self.ours:
                return Checkpoint._make((*_ORIGINAL.unpack(times), *numbers, clean))
        return Checkpoint(*_ORIGINAL.unpack(original))

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; `sync` makes it durable. Raises OSError."""
        original = _ORIGINAL.pack(*checkpoint[:3])
        self._journal.write(Row(Kind.CHECKPOINT, b"", _ROW.pack(checkpoint.clean, *checkpoint[3:8], original)))
        self._written_offset = checkpoint.durable_offset
        if self._file is None:
            usable = self._disk.exists(CHECKPOINT) and self._disk.file_size(CHECKPOINT) == _FILE_BYTES
            self._file = self._disk.open(CHECKPOINT) if usable else self._disk.create(CHECKPOINT, _FILE_BYTES)
            if self.ours:  # so that the next copy takes the place of another
                self._file.write(self._copy_at, _turned(self._original))
        self._copy_at = sum(_COPIES_AT) - self._copy_at
        self._file.write(self._copy_at, _turned(original))
        self._file.write(0, original)

    def note_end(self, log_end: int) -> None:
        """Note where the log ends now, so that a start after a kill knows which records there were. Raises OSError."""
        self._note_at ^= _NOTE.size
        assert self._file is not None
        self._file.write(self._note_at, _NOTE.pack(log_end, ~log_end))

    def sync(self, *, file: bool = False) -> None:
        """Wait until the last written checkpoint is on the device; with ``file`` also the original's part and the notes.

        May be called from another thread.
        """
        offset = self._written_offset
        self._journal.sync()
        if file and self._file is not None:
            self._file.sync()
        self.durable_offset = offset

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _turned(original: bytes) -> bytes:
    """Return a copy, each bit turned over: a file of zeros has none."""
    return bytes(byte ^ 0xFF for byte in original)


def _is_copied(original: bytes, *copies: bytes) -> bool:
    """Whether the original's part is one of two copies, or begins as one and goes on as the other."""
    return any(original == begin[:at] + rest[at:] for begin, rest in (copies, copies[::-1]) for at in range(len(original) + 1))
