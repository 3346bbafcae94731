"""Stored records as the buffers of Arrow columns, for `spark.source.rows`. Knows nothing of Arrow's library, keeps nothing.

The buffers lie in one run of bytes, so that the allocator may give the same pages again. A column is the places (begin, size)
of its buffers: of numbers; of bits (None: all are there), offsets and bytes of texts and bodies; of offsets, name offsets, names,
value offsets and values of the properties. Numbers are as in memory, offsets have 32 bits, times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

Columns = tuple[int, bytes, list[list[tuple[int, int] | None]]]
"""How many rows, the buffers, and the columns."""


def row_columns(raw: bytes, begin: int, end: int, names: Sequence[str], verify: bool) -> Columns | None:
    """Return the records of ``raw``, one behind another, that have a queue offset in [begin, end), as columns.

    ``names`` are those of `spark.source.rows.COLUMNS` but brokerName. ``verify`` compares the CRC of every body. None: not all of
    them are ordinary, and whoever asked makes the columns with numpy, or says what is wrong. This twin leaves all of them to numpy.
    """
    return None
