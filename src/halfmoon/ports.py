"""Interfaces between the runtime and the pure parts: a disk, the record of a lease, and the shape of a core that it can run.

`Disk` and `File` are implemented by `halfmoon.runtime.files.disk` (real files) and `halfmoon.testing.disk` (torn and lost writes).
All paths are relative to the store's directory, with ``/`` between parts; they are made of numbers and checked names only.
Reads and writes are copies to and from memory (the page cache) and do not wait; only methods that say so wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from halfmoon.effects import CoreEffect
from halfmoon.instant import Instant, Steady

Buffer = bytes | bytearray | memoryview


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds the store."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """A file of fixed size, made full of zeros."""

    path: str
    size: int

    def write(self, at: int, data: Buffer) -> None:
        """Copy bytes in at a position; they survive the process at once and a power loss after `sync`."""

    def write_numbers(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Copy big-endian 32-bit numbers in, each at its own place, a multiple of four.

        A process killed meanwhile leaves each of them whole, old or new.
        """

    def view(self, at: int, size: int) -> memoryview:
        """Return bytes without copying. The view stays valid while it is held, even after `Disk.remove`."""

    def peek(self, at: int, size: int) -> bytes:
        """Return a copy of bytes, for who looks at few of very many files: `view` may keep something of a file from then on."""

    def prefetch(self, at: int, size: int) -> None:
        """Have bytes read that will be viewed soon. Does not wait for the device, and may do nothing."""

    def data_end(self) -> int:
        """Return an offset behind everything that was written, as far as the file system knows; what follows is zeros."""

    def look(self, at: int, size: int) -> tuple[bytes, int]:
        """Return what `peek` does, but not beyond `data_end`, and that: both for the price of one."""

    def missing(self, at: int, size: int) -> list[tuple[int, int]]:
        """Return the spans, as (at, size), of which the device may not have what `view` shows; all, where that cannot be found out.

        Waits for the device. It may keep the others in a cache of its own still: `sync` follows.
        """

    def sync(self) -> None:
        """Wait until everything written before the call is on the device. May be called from another thread.

        Raises OSError, also for a file that is gone: only one that was given back by `close` may be removed meanwhile.
        """

    def close(self) -> None:
        """Give the file back; views that are still held stay valid."""


class DirectoryLock(Protocol):
    """An exclusive lock that ends with the process."""

    def release(self) -> None:
        """Let others in."""


class Disk(Protocol):
    """One directory tree. Methods raise OSError as the system reports it."""

    def create(self, path: str, size: int) -> File:
        """Make a file of zeros with this size, and its directories; an existing file is replaced."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when it is missing."""

    def file_size(self, path: str) -> int:
        """Size of a file in bytes."""

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""

    def modified_ms(self, path: str) -> int:
        """When the file was last changed, milliseconds since the epoch."""

    def is_private(self, path: str) -> bool:
        """Whether nobody but its owner may use a file. Raises FileNotFoundError."""

    def rename(self, path: str, to: str) -> None:
        """Give a file another name in its directory tree, whose directories are made; the file must not be open."""

    def resize(self, path: str, size: int) -> None:
        """Make a file that is not open longer; what is new are zeros."""

    def remove(self, path: str) -> None:
        """Remove a file (or an empty directory); missing is no error. Views of it stay valid."""

    def read(self, path: str) -> bytes | None:
        """Whole content of a small file, or None when it is missing."""

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        """Replace a small file atomically and durably.

        Temporary file, sync, the old one kept as ``.bak``, rename, sync of the directory. ``private``: readable by its owner only.
        Waits for the device. May be called from another thread.
        """

    def sync_directory(self, path: str) -> None:
        """Make names made in or removed from a directory durable. Waits for the device."""

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Wait as `File.sync` does for each file, and `sync_directory` for each directory; many are synced together."""

    def usage(self) -> DiskUsage:
        """Space of the file system."""

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock of the directory. Raises StoreLocked when another process has it."""

    def boot_id(self) -> str | None:
        """Return a text that changes when the machine restarts, and unsynced writes may be lost; None: unknown."""


class Stored(NamedTuple):
    """Record of a lease as its store has it."""

    text: bytes
    """JSON in UTF-8, at most `LEASE_RECORD_BYTES_MAX`."""
    version: str
    """Text that changes with every write, and never comes again."""


class LeaseStore(Protocol):
    """One record in another system, which compares and replaces it in one step. Implemented by `halfmoon.runtime.leases`.

    Calls block; each returns or raises within ``timeout_ms``. They come from one thread at a time, not always the same one. A call
    that failed breaks nothing: the next one works once the system does.
    """

    address: str
    """The system's servers, for logs; nothing of a password."""

    def read(self, timeout_ms: int) -> Stored | None:
        """Return the newest record; None: there is none. Raises LeaseUnavailable."""

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        """Replace the record if its version is still ``expected`` (None: there is none yet), and return the new version.

        None: it has changed, and nothing was written. Where the JSON has a text ``holder`` and a number ``epoch``, a system with
        fields of its own for them shows both.

        Raises:
            LeaseUnavailable: it is not known whether it was written; it may be written later still.
            ValueError: the text is no UTF-8, has a NUL, or is longer than `LEASE_RECORD_BYTES_MAX`.
        """

    def close(self) -> None:
        """Give back connections. A later call opens them again."""


class Core(Protocol):
    """A server without its sockets. The runtime (or the simulated world) calls these, one at a time, and never from two threads.

    ``peer`` numbers a connection, chosen by the runtime and never used twice. ``now`` has a steady time, for durations, and a date,
    which never steps back. Bytes are only accumulated by `feed`; one `commit` a turn of the loop handles all that every connection
    brought. After `commit`, `lost`, `tick` and every ``Work.done`` the runtime fetches `effects` and carries them out in order.
    """

    def start(self, now: Instant) -> None:
        """Begin: listeners are open."""

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Take in an accepted connection; ``remote`` is ``host:port``."""

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in the verified certificate of a connection. Once at most, and before its first `feed`."""

    def feed(self, peer: int, data: bytes) -> None:
        """Bytes arrived."""

    def commit(self, now: Instant) -> bool:
        """Handle what was fed since the last call; return whether more is left: call it again, once `effects` are carried out.

        After a second such call the runtime reads what others sent first.
        """

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Note that a connection does not read what it is sent, so that nothing is read from it, or that it reads again."""

    def unanswered(self, peer: int) -> bool:
        """Return whether requests of the connection wait for a further turn; then the end of its stream does not close it yet."""

    def lost(self, peer: int, now: Instant) -> None:
        """Forget a connection that is gone."""

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called next, or None. Who waits for a date is early or late once the clock is set: ask again."""

    def tick(self, now: Instant) -> None:
        """Time has come: deadlines, periodic work."""

    def effects(self) -> list[CoreEffect]:
        """Take what is to be done out of the core."""

    def stop(self, now: Instant) -> list[Any]:
        """Begin a clean stop; return operations to drive to their end (unregistering, the last sync) before leaving."""
