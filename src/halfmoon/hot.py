"""The native seam: what touches each message, over columns. Bytes in, columns or bytes out, no callbacks.

The functions in Python are `halfmoon.columns`: the reference for a compiled twin, which is never needed for correctness.
"""

from __future__ import annotations

from halfmoon.columns.batch import BATCH_MAX, Draft, batch_drafts, batch_items
from halfmoon.columns.frames import Frame, cut
from halfmoon.columns.headers import EndHeader, PullHeader, end_header_json, pull_header_json
from halfmoon.columns.messages import ALL, AT_ONCE, DURABLE, NO_ANSWER, Messages, crc32
from halfmoon.columns.properties import stored_properties, tag_hash
from halfmoon.columns.reading import Group, Reader

__all__ = [
    "ALL",
    "AT_ONCE",
    "BATCH_MAX",
    "DURABLE",
    "NO_ANSWER",
    "Draft",
    "EndHeader",
    "Frame",
    "Group",
    "Messages",
    "PullHeader",
    "Reader",
    "batch_drafts",
    "batch_items",
    "crc32",
    "cut",
    "end_header_json",
    "pull_header_json",
    "stored_properties",
    "tag_hash",
]
