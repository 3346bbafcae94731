"""Bits that travel in numbers called sysFlag: of stored records, of pulls, of topics. Holds no behaviour."""

from __future__ import annotations

COMPRESSED = 0x1
"""The body is compressed; the type stands in `COMPRESSION_MASK`."""

MULTI_TAGS = 0x2
"""The topic's filter type is MULTI_TAG. Set by the broker."""

TRANSACTION_MASK = 0xC
TRANSACTION_NOT, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0x0, 0x4, 0x8, 0xC
"""The transaction bits, of records and of ``commit_or_rollback``."""

BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20
"""The host takes 20 bytes instead of 8."""

NEED_UNWRAP, INNER_BATCH = 0x40, 0x80
"""Inner batches of 5.x; read and passed on, never made."""

COMPRESSION_MASK = 0x700
LZ4, ZSTD, ZLIB = 0x100, 0x200, 0x300
"""Compression types. No type with `COMPRESSED` set is zlib too, as 4.7.1 writes it."""

PULL_COMMIT_OFFSET, PULL_SUSPEND, PULL_SUBSCRIPTION, PULL_CLASS_FILTER, PULL_LITE = 0x1, 0x2, 0x4, 0x8, 0x10
"""Bits of a pull: ``commit_offset`` is to be stored, the broker may hold the call, the subscription is in the request, a dead
feature, and a pull consumer's pull."""

TOPIC_UNIT, TOPIC_UNIT_SUB = 0x1, 0x2
"""Bits of a topic's sysFlag."""
