"""`Segments`: files of one size, named by the offset of their first byte, seen as one run of bytes.

Knows nothing of what the bytes mean.

A position never crosses a file: callers write and view inside one. Files are opened when first touched; what was written since
the last sync is remembered by file, so that a sync waits for no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from halfmoon.errors import StoreError
from halfmoon.ports import Buffer, Disk, File
from halfmoon.store.layout import file_name, file_offset


class Segments:
    """A run of bytes over files of ``file_bytes`` each. ``first`` is the offset of the first byte that is there."""

    __slots__ = (
        "_base",
        "_current",
        "_disk",
        "_limit",
        "_open",
        "cleared_to",
        "directory",
        "directory_dirty",
        "dirty",
        "file_bytes",
        "first",
        "last",
    )

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self.directory, self.file_bytes = directory, file_bytes
        self.first = 0
        self.last: int | None = None
        """Offset of the last file's first byte; None: no file."""
        self.dirty: dict[int, File] = {}
        """Files written since they were last taken for a sync, by offset."""
        self.directory_dirty = False
        self.cleared_to = 0
        """Behind the last byte that `clear_from` made zero."""
        self._disk = disk
        self._open: dict[int, File] = {}
        self._current: File | None = None
        self._base = self._limit = 0

    @property
    def end(self) -> int:
        """Offset behind the last file; equals ``first`` when there is none."""
        return self.first if self.last is None else self.last + self.file_bytes

    def load(self, *, repair: bool = False) -> None:
        """Find the files that are there.

        A last file without bytes was cut off while it was made and is removed. ``repair``, after an unclean stop: a missing file
        is one whose name did not reach the device, and the files behind it are removed; recovery decides what that means.

        Raises:
            StoreError: a file has another size than configured, or one in the middle is missing.
        """
        offsets = sorted(offset for name in self._disk.list(self.directory) if (offset := file_offset(name)) is not None)
        sizes = [self._disk.file_size(self.path(offset)) for offset in offsets]
        while offsets and sizes[-1] == 0:
            self._disk.remove(self.path(offsets.pop()))
            sizes.pop()
            self.directory_dirty = True
        for offset, size in zip(offsets, sizes):
            if size != self.file_bytes:
                raise StoreError(
                    f"{self.path(offset)} has {size} bytes, but the setting says {self.file_bytes}:"
                    " the size of files cannot change once there are messages"
                )
        for before, after in pairwise(offsets):
            if after != before + self.file_bytes:
                if repair:
                    break
                raise StoreError(f"{self.directory}: no file between {file_name(before)} and {file_name(after)}")
        if offsets:
            self.first = self.last = offsets[0]
        for offset in offsets[1:]:
            if offset == self.last + self.file_bytes:  # type: ignore[operator]
                self.last = offset
            else:
                self._disk.remove(self.path(offset))
                self.directory_dirty = True

    def path(self, offset: int) -> str:
        """Return the path of the file that begins at an offset."""
        return f"{self.directory}/{file_name(offset)}"

    def base(self, position: int) -> int:
        """Return the offset of the first byte of the file that a position lies in."""
        return position - position % self.file_bytes

    def extend(self, position: int) -> None:
        """Make files up to and including the one that a position lies in. The first file of a run may begin anywhere."""
        target = self.base(position)
        at = target if self.last is None else self.last + self.file_bytes
        if self.last is None:
            self.first = target
        while at <= target:
            self._open[at] = self._disk.create(self.path(at), self.file_bytes)
            self.last = at
            self.directory_dirty = True
            at += self.file_bytes

    def preallocate(self, start: int, end: int) -> int:
        """Write zeros from ``start`` until ``end`` is reached, creating files; return where the zeros end.

        So a full disk shows before a message is accepted, and not after.

        ``start`` is what the last call returned, or behind everything that is written. Raises OSError when the disk is full.
        """
        while start < end:
            if self.last is None or start >= self.end:
                self.extend(start)
            base = self.base(start)
            stop = base + min((start - base) // _PREALLOCATED_BYTES * _PREALLOCATED_BYTES + _PREALLOCATED_BYTES, self.file_bytes)
            self.write(start, bytes(stop - start))
            start = stop
        return start

    def write(self, position: int, data: Buffer) -> None:
        """Copy bytes in; the file must be there, and they must fit into it."""
        if not self._base <= position < self._limit:
            self._switch(position)
        base = self._base
        if base not in self.dirty:
            self.dirty[base] = self._current  # type: ignore[assignment]  # _switch has set it
        self._current.write(position - base, data)  # type: ignore[union-attr]

    def view(self, position: int, size: int) -> memoryview:
        """Return bytes without copying; at most to the end of their file."""
        if not self._base <= position < self._limit:
            return self._file(position).view(position % self.file_bytes, size)
        return self._current.view(position - self._base, size)  # type: ignore[union-attr]

    def prefetch(self, position: int, size: int) -> None:
        """Have bytes read that will be viewed soon, at most to the end of their file."""
        if position < self.end:
            self._file(position).prefetch(position % self.file_bytes, size)

    def peek(self, position: int, size: int) -> bytes:
        """Return a copy of bytes, at most to the end of their file, for who looks at few of very many files."""
        return self._file(position).peek(position % self.file_bytes, size)

    def look(self, position: int, size: int) -> tuple[bytes, int]:
        """Return bytes as `peek` does, and the position behind everything that was written into their file."""
        at = position % self.file_bytes
        data, end = self._file(position).look(at, size)
        return data.ljust(min(size, self.file_bytes - at), b"\0"), position - at + end

    def data_end(self, base: int) -> int:
        """Return an offset, from the start of the file that begins at ``base``, behind everything that was written into it."""
        return self._file(base).data_end()

    def _switch(self, position: int) -> None:
        self._current = self._file(position)
        self._base = self.base(position)
        self._limit = self._base + self.file_bytes

    def _file(self, position: int) -> File:
        base = self.base(position)
        file = self._open.get(base)
        if file is None:
            if self.last is None or not self.first <= base <= self.last:
                raise StoreError(f"{self.directory}: no file holds offset {position}")
            file = self._open[base] = self._disk.open(self.path(base))
        return file

    def mark_dirty(self, position: int) -> None:
        """Count the files from a position on as written: another process wrote them, and nobody knows whether they were synced."""
        if self.last is not None:
            for base in range(max(self.first, self.base(position)), self.last + 1, self.file_bytes):
                self.dirty[base] = self._file(base)
            self.directory_dirty = True

    def write_again(self, start: int, end: int, *, only_missing: bool = False) -> None:
        """Write the bytes from ``start`` to ``end`` as they are, so that the next sync brings them to the device.

        After a sync failed, pages count as clean that never got there; nobody but the process that saw it fail knows which.
        ``only_missing``: look, and write those alone that the device may lack.
        """
        end = min(end, self.end)
        while start < end:
            base = self.base(start)
            stop = min(end, base + self.file_bytes)
            span = (start - base, stop - start)
            for at, size in self._file(base).missing(*span) if only_missing else [span]:
                for position in range(base + at, base + at + size, _AGAIN_BYTES):
                    self.write(position, self.peek(position, min(_AGAIN_BYTES, base + at + size - position)))
            start = stop

    def take_dirty(self) -> list[File]:
        """Return the files written since the last call, and forget them."""
        files = list(self.dirty.values())
        self.dirty.clear()
        return files

    def sync_now(self) -> None:
        """Wait until everything written here is on the device, names included."""
        while self.dirty:
            base, file = next(iter(self.dirty.items()))
            file.sync()
            # Only now: a file whose sync fails stays to be synced.
            del self.dirty[base]
        if self.directory_dirty:
            self._disk.sync_directory(self.directory)
            self.directory_dirty = False

    def take_directory_dirty(self) -> bool:
        """Whether names were made or removed since the last call."""
        dirty, self.directory_dirty = self.directory_dirty, False
        return dirty

    def drop_before(self, position: int) -> list[str]:
        """Forget whole files below a position, never the last; return their paths, for somebody else to remove."""
        paths = []
        while self.last is not None and self.first < self.last and self.first + self.file_bytes <= position:
            paths.append(self._forget(self.first))
            self.first += self.file_bytes
        return paths

    def remove_after(self, position: int, *, remove: Callable[[str], None] | None = None) -> None:
        """Remove the files that begin behind a position, at once; ``remove`` does something else with them."""
        while self.last is not None and self.last > position:
            (remove or self._disk.remove)(self._forget(self.last))
            self.last = None if self.last == self.first else self.last - self.file_bytes

    def remove_all(self) -> list[str]:
        """Forget every file; return their paths, for somebody else to remove."""
        paths = []
        if self.last is not None:
            for offset in range(self.first, self.last + 1, self.file_bytes):
                paths.append(self._forget(offset))
        self.last = None
        return paths

    def close_before(self, position: int) -> None:
        """Close the files below a position, so that a reader of all of them has one in memory. They open again when touched."""
        for offset in [offset for offset in self._open if offset + self.file_bytes <= position and offset not in self.dirty]:
            self._close(offset)

    def close(self) -> None:
        """Let go of every file. They open again when touched."""
        for offset in list(self._open):
            self._close(offset)

    def _forget(self, offset: int) -> str:
        self.dirty.pop(offset, None)
        self._close(offset)
        self.directory_dirty = True
        return self.path(offset)

    def _close(self, offset: int) -> None:
        file = self._open.pop(offset, None)
        if file is not None:
            file.close()
        if self._base == offset:
            self._current, self._base, self._limit = None, 0, 0

    def clear_from(self, position: int, *, thorough: bool) -> None:
        """Make every byte from a position to the end of its file zero, and remove the files behind it.

        What is zero already is only read. Without ``thorough`` the search ends at the first 64 KiB of zeros.
        """
        self.remove_after(position)
        if self.last is None or position >= self.end:
            return
        end = self.base(position) + self.data_end(self.base(position))
        while position < end:
            size = min(len(_ZEROS), end - position)
            # Zeros are not written over zeros: that would fill holes, and give the next sync pages for nothing.
            if self.peek(position, size) != _ZEROS[:size]:
                self.write(position, _ZEROS[:size])
                self.cleared_to = position + size
            elif not thorough:
                return
            position += size

    def is_clear(self, position: int, size: int) -> bool:
        """Whether the bytes from a position, at most to the end of its file, are zeros."""
        if position >= self.end:
            return True
        size = min(size, len(_ZEROS))
        view = self.view(position, size)
        return bytes(view) == _ZEROS[: len(view)]


_ZEROS = bytes(64 * 1024)
_PREALLOCATED_BYTES = 16 * 1024
"""Space taken at once, a few pages."""
_AGAIN_BYTES = 1024 * 1024
