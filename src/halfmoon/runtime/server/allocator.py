"""The C library's allocator, as a server wants it. Process-wide, so only a program of ours may ask for it, never a library."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 16 * 1024 * 1024
"""Free memory at the heap's end that is not given back."""
_GROWTH_BYTES = 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
"""Blocks from this size on have pages of their own."""


def keep_freed_memory() -> bool:
    """Have glibc keep what a turn freed for the next turn. Returns False where the C library is another one; nothing is done then.

    What a turn reads and answers takes some hundred KiB, which by default go back to the kernel at once: each turn then pays
    a page fault for every 4 KiB, more than its copies cost.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = {_TRIM_THRESHOLD: _KEPT_BYTES, _TOP_PAD: _GROWTH_BYTES, _MMAP_THRESHOLD: _BLOCK_BYTES}
    taken = [set_option(option, value) for option, value in options.items()]
    return all(taken)
