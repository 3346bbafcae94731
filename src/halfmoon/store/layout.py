"""Where things lie in a store's directory, and the numbers of its formats. Holds names, layouts and checks of names.

Follows the layout of RocketMQ 4.9.7, byte for byte. ``journal``, ``quarantine`` and the ``checkpoint`` from 1 KiB on are ours; so
is ``transaction``, whose state table and redo log follow 3.x (TransactionStateService, 3.1.4).
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from halfmoon.errors import UsageError
from halfmoon.hot import STATE, UNIT

COMMIT_LOG, CONSUME_QUEUE, INDEX = "commitlog", "consumequeue", "index"
TRANSACTION = "transaction"
STATE_TABLE, REDO_LOG, CHECKS = f"{TRANSACTION}/statetable", f"{TRANSACTION}/redolog", f"{TRANSACTION}/checks"
CHECKPOINT, ABORT, LOCK = "checkpoint", "abort", "lock"
BACKUP_MARK = b"backup"
"""Content of ``abort`` in the copy of a running store: the boot of no machine. The key index file that was being written then is
left out of the copy."""
RESTORED = "restored"
"""In a backup: the first start on it gives all topics another birth. The original may give out the same offsets once more."""
STARTING_OVER = "starting-over"
"""A mark: the store is being moved aside, see `halfmoon.store.log.earlier_copy`."""
JOURNAL = "journal"
"""Directory of the broker's own state, see `halfmoon.store.journal`."""
SPARE = "config/spare"
QUARANTINE = "quarantine"
"""Keeps what recovery cut off the log; nothing reads it."""
DIRECTORIES = (COMMIT_LOG, CONSUME_QUEUE, INDEX, TRANSACTION, QUARANTINE, JOURNAL, "config")

BLANK_MAGIC: Final = -875286124
"""The closed rest of a log file (0xCBD43194)."""
BLANK = Struct(">ii")  # | remaining bytes i32 | magic i32 |
BLANK_BYTES: Final = 8

PREPARED, COMMIT, ROLLBACK = 4, 8, 12
"""Values of a record's transaction bits (0xC)."""

OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d"
"""Properties of an op record, exactly as the original writes them: no separator at the end."""
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Where half messages lie until they are decided, and the records that say which of them are. Queue 0 of each."""

STATE_BYTES: Final = 24
UNIT_BYTES: Final = 20
CHECK_SLOT = Struct(">HHHH")  # | physical offset & 0xFFFF | checks that count | sent | crc | 15 times 8 = 128 bytes
CHECK = Struct(">I4s")  # | sent, seconds u32 | answer u8, hash of the producer 3 | = 8 bytes
CHECK_SLOT_BYTES: Final = 128
assert (STATE.size, UNIT.size, CHECK_SLOT.size + 15 * CHECK.size) == (STATE_BYTES, UNIT_BYTES, CHECK_SLOT_BYTES)

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_FILE_NAME = re.compile(r"[0-9]{20}")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def file_name(offset: int) -> str:
    """Return the name of the file whose first byte has this offset: 20 decimal digits."""
    return f"{offset:020d}"


def file_offset(name: str) -> int | None:
    """Return the offset that a file's name says, or None when it is not such a name."""
    return int(name) if _FILE_NAME.fullmatch(name) else None


def queue_directory(topic: str, queue_id: int) -> str:
    """Return the directory of a queue.

    Raises:
        UsageError: the topic is not made of ``%|a-zA-Z0-9_-`` only, or is longer than 127, or the queue number is negative.
    """
    if not _TOPIC.fullmatch(topic):
        raise UsageError(f"the topic {topic[:200]!r} cannot name a directory: 1 to 127 of %|a-zA-Z0-9_-")
    if not 0 <= queue_id < 2**31:
        raise UsageError(f"queue number {queue_id} is out of range")
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def is_topic_directory(name: str) -> bool:
    """Whether a name found under ``consumequeue`` can be a topic."""
    return _TOPIC.fullmatch(name) is not None


def is_queue_directory(name: str) -> bool:
    """Whether a name found under a topic can be a queue number."""
    return _QUEUE_ID.fullmatch(name) is not None and int(name) < 2**31
