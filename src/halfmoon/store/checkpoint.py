"""The checkpoint: from where recovery has to look, and how the last run ended.

The first 24 bytes of the file are RocketMQ's; two slots at 1 and 2 KiB (`store.two_slots`) and two notes at 3 KiB are our own.

Layout of the original's part: physicMsgTimestamp i64 | logicsMsgTimestamp i64 | indexMsgTimestamp i64 (store times, ms).
A slot holds a copy of those 24 bytes, so that a run of another broker, which moves only them, makes it void. The slots are
written in turn, the slot first and the 24 bytes after it: a process killed in between, or within, finds the older slot valid.

Each turn notes where the log ends, in two places in turn. A note survives the process and wants no sync: after a kill the last
records of the log may be damaged, and nothing else says that there were any. Reads and writes one small file; decides nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.ports import Disk
from halfmoon.store.layout import ABORT, CHECKPOINT
from halfmoon.store.two_slots import TwoSlots

_ORIGINAL = Struct(">qqq")
_SLOT = Struct(">qqqqq24s")  # | five offsets | copy of the original's part |
_NOTE = Struct(">qq")  # | end of the log | the same with each bit turned over |
_NOTES_AT = 3072
_CLEAN = 1


class Checkpoint(NamedTuple):
    """Offsets are physical, times are store times in ms."""

    log_ms: int = 0
    """Of the last record that was synced."""
    queue_ms: int = 0
    """Of the last record whose queue entry was synced."""
    index_ms: int = 0
    """Of the last record in the last full, synced key index file."""
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


def read_last_run(disk: Disk, file: CheckpointFile) -> LastRun:
    """Return how the last run ended; nothing is changed."""
    checkpoint, mark = file.read(), disk.read(ABORT)
    boot_id = disk.boot_id()
    lost = mark is not None and (boot_id is None or mark != boot_id.encode())
    return LastRun(checkpoint, file.ours, mark is None, lost, None if mark is None or lost else file.noted_end)


class CheckpointFile:
    """The file. ``ours`` says whether the last read found a valid slot; without one only the three times are known."""

    def __init__(self, disk: Disk) -> None:
        self._slots = TwoSlots(disk, CHECKPOINT, (1024, 2048), _SLOT.size)
        self.ours = False
        self.durable_offset = self._written_offset = 0
        """The `Checkpoint.durable_offset` that is on the device itself."""
        self.noted_end: int | None = None
        """Note of `note_end` that the last read found."""
        self._note_at = _NOTES_AT

    def read(self) -> Checkpoint:
        """Return what the file says; nothing is changed."""
        found = self._slots.read()
        self.ours = False
        if found is None:
            return Checkpoint()
        data, slots = found
        notes = [_NOTE.unpack_from(data, _NOTES_AT + place) for place in (0, _NOTE.size)]
        self.noted_end = max((end for end, turned in notes if end == ~turned), default=None)
        original = data[: _ORIGINAL.size]
        copies = [slot.held[-_ORIGINAL.size :] for slot in slots]
        if len(slots) == 2 and original not in copies and _spliced(original, *copies):
            original = copies[1]  # the process was killed in the middle of the 24 bytes: as if it had not begun
        for slot, copy in zip(slots, copies):
            if copy == original:
                self._slots.sequence, self.ours = max(self._slots.sequence, slot.sequence), True
                *numbers, _ = _SLOT.unpack(slot.held)
                return Checkpoint._make((*_ORIGINAL.unpack(copy), *numbers, bool(slot.flags & _CLEAN)))
        return Checkpoint(*_ORIGINAL.unpack(original))

    def write(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint into the next slot; `sync` makes it durable."""
        self._written_offset = checkpoint.durable_offset
        original = _ORIGINAL.pack(*checkpoint[:3])
        file = self._slots.write(_CLEAN * checkpoint.clean, _SLOT.pack(*checkpoint[3:8], original))
        file.write(0, original)

    def note_end(self, log_end: int) -> None:
        """Note where the log ends now, so that a start after a kill knows which records there were. Raises OSError."""
        self._note_at ^= _NOTE.size
        assert self._slots.file is not None
        self._slots.file.write(self._note_at, _NOTE.pack(log_end, ~log_end))

    def sync(self) -> None:
        """Wait until the last written checkpoint is on the device."""
        offset = self._written_offset
        if self._slots.sync():
            self.durable_offset = offset

    def close(self) -> None:
        """Let go of the file."""
        self._slots.close()


def _spliced(data: bytes, begin: bytes, rest: bytes) -> bool:
    """Whether bytes begin as one text does and go on as another of the same length."""
    return any(data == begin[:at] + rest[at:] for at in range(len(data)))
