"""`mapped`: a file's bytes as memory that takes no descriptor for as long as it lives. Knows nothing of stores.

Python's own mappings keep a descriptor each before 3.13: a broker of a thousand topics would hold four thousand, and end with
"Too many open files" where the system allows fewer. So the system is asked itself. The memory is given back when nobody holds a
view of it any more, and never before.

A write into memory whose file takes none (the file system became read-only after an error of its device, the file immutable) is a
signal that ends the process. `Mapping.may_write` asks before; Linux answers since 5.14.
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
    """A file's bytes, to read and write, and where they are in memory."""

    view: memoryview
    address: int

    def may_write(self, at: int, size: int) -> bool:
        """Whether the file takes a write of these bytes now. They must be in the mapping. Costs a system call."""
        begin = self.address + at
        first = begin & ~_PAGE_MASK
        refused = _ADVISE(first, begin + size - first, _POPULATE_WRITE)
        return not refused or ctypes.get_errno() == EINVAL  # an older kernel does not know the question


def mapped(fd: int, size: int, path: str) -> Mapping:
    """Return the first ``size`` bytes of an open file, shared with all who map it. The file may be closed.

    ``path`` is for the error's text. Raises OSError, for a file that is shorter as well: a look behind its end is a signal.
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
    weakref.finalize(memory, _UNMAP, address, size).atexit = False  # at the process's end threads may still look
    return Mapping(memoryview(memory).cast("B"), address)
