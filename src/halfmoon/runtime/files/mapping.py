"""Memory mappings that keep no descriptor. Knows nothing of stores.

Python's own mappings keep a descriptor each before 3.13: a broker of a thousand topics would hold four thousand, and fail with
"Too many open files" if the system allows fewer. `mapped` therefore calls the system directly. The memory is released when no view
of it exists any more.

A write into the mapping of a file that is not writable (the file system became read-only after a device error, the file immutable)
raises a signal that ends the process. `Mapping.may_write` checks before; it needs Linux 5.14.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from errno import EINVAL, EIO
from typing import NamedTuple

_SYSTEM = ctypes.CDLL(None, use_errno=True)
_MAP, _UNMAP, _ADVISE = _SYSTEM.mmap, _SYSTEM.munmap, _SYSTEM.madvise
_MAP.restype = ctypes.c_void_p
_MAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_UNMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_ADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_POPULATE_WRITE = 23
_PAGE_MASK = mmap.PAGESIZE - 1


class Mapping(NamedTuple):
    """Mapped bytes of a file, and their address in memory."""

    view: memoryview
    address: int

    def may_write(self, at: int, size: int) -> bool:
        """Return whether these bytes of the mapping can be written now. Costs a system call."""
        return not self._advise(at, size, _POPULATE_WRITE) or ctypes.get_errno() == EINVAL  # not supported by an older kernel

    def will_need(self, at: int, size: int) -> None:
        """Have the system begin to read bytes that are not in memory."""
        self._advise(at, size, mmap.MADV_WILLNEED)

    def _advise(self, at: int, size: int, advice: int) -> int:
        begin = self.address + at
        first = begin & ~_PAGE_MASK
        return int(_ADVISE(first, begin + size - first, advice))


def mapped(fd: int, size: int, path: str) -> Mapping:
    """Return the first ``size`` bytes of an open file as a shared mapping. The file may be closed afterwards.

    ``path`` is for the error's text. Raises OSError, also for a shorter file: access after its end would be a signal.
    """
    if not size:
        return Mapping(memoryview(bytearray()), 0)
    if (there := os.fstat(fd).st_size) < size:
        raise OSError(EIO, f"the file was cut to {there} bytes of {size}", path)
    address = _MAP(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _UNMAP, address, size).atexit = False  # at the end of the process, threads may still read it
    return Mapping(memoryview(memory).cast("B"), address)
