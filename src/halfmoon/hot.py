"""The native seam: what touches each message, over columns. Bytes in, columns or bytes out, no callbacks.

The functions in Python are `halfmoon.columns`, the reference. The package ``halfmoon-native`` has the same ones compiled; they are
taken where it is installed with the same interface and ``HALFMOON_NATIVE`` is not 0, and never needed for correctness.
"""

from __future__ import annotations

import logging
from os import environ
from typing import TYPE_CHECKING, Any

from halfmoon.columns import INTERFACE
from halfmoon.columns.batch import BATCH_MAX, ITEM_BYTES_MIN, Draft
from halfmoon.columns.completions import CompletionFields, Decided
from halfmoon.columns.frames import Frame
from halfmoon.columns.headers import PullHeader, pull_header_json
from halfmoon.columns.keys import (
    COMMIT_KIND,
    HALF_KIND,
    INDEX_ENTRY,
    KEY,
    OP_KIND,
    QueueEntries,
    TransactionRun,
    index_hash,
    keys_of,
    property_of,
    transaction_kind,
)
from halfmoon.columns.messages import ALL, AT_ONCE, DURABLE, NO_ANSWER, Group
from halfmoon.columns.record import (
    BORN_V6,
    ENTRY,
    ENTRY_BYTES,
    FILLER_SIZE,
    HEAD,
    HEADS,
    MAGIC,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_V6,
    Head,
    Parts,
    parts_at,
    parts_of,
)
from halfmoon.columns.states import STATE, UNIT

__all__ = [
    "ALL",
    "AT_ONCE",
    "BATCH_MAX",
    "BORN_V6",
    "COMMIT_KIND",
    "DURABLE",
    "ENTRY",
    "ENTRY_BYTES",
    "FILLER_SIZE",
    "HALF_KIND",
    "HEAD",
    "HEADS",
    "INDEX_ENTRY",
    "ITEM_BYTES_MIN",
    "KEY",
    "MAGIC",
    "MAGIC_V2",
    "NATIVE",
    "NO_ANSWER",
    "OP_KIND",
    "RECORD_BYTES_MIN",
    "STATE",
    "STORE_V6",
    "UNIT",
    "BulkFilter",
    "CompletionFields",
    "Completions",
    "Decided",
    "Draft",
    "Frame",
    "Group",
    "HalfMessageCache",
    "Head",
    "Messages",
    "Parts",
    "PullHeader",
    "QueueEntries",
    "Reader",
    "Signer",
    "TransactionRun",
    "Verifier",
    "batch_drafts",
    "batch_items",
    "checked_records",
    "copied_records",
    "crc32",
    "crc_sum",
    "decided_rows",
    "done_answers",
    "encode_batch",
    "encode_properties",
    "gather",
    "head_json",
    "index_entries",
    "index_hash",
    "keys_of",
    "parts_at",
    "parts_of",
    "prepared_rows",
    "property_of",
    "pull_head",
    "pull_header_json",
    "put_numbers",
    "record_keys",
    "record_rows",
    "request_frame",
    "row_columns",
    "runs_of",
    "send_answers",
    "split_frames",
    "stored_properties",
    "tag_hash",
    "tag_matches",
    "transaction_kind",
    "whole_records",
]


def _native() -> Any:
    """Return the compiled functions, or None where they are not there, not wanted, or of another interface."""
    if environ.get("HALFMOON_NATIVE") == "0":
        return None
    try:
        import halfmoon_native
    except ImportError:
        return None
    if halfmoon_native.INTERFACE != INTERFACE:
        logging.getLogger("halfmoon").warning(
            "halfmoon-native has interface %s, and this version of Halfmoon needs %s: it is left aside, and Python does its work",
            halfmoon_native.INTERFACE, INTERFACE,
        )  # fmt: skip
        return None
    return halfmoon_native


_found = _native()
NATIVE: str | None = None if _found is None else _found.VERSION
"""Version of ``halfmoon-native`` that is used; None: what it does is done in Python."""

if TYPE_CHECKING or _found is None:
    from halfmoon.columns.answers import done_answers, pull_head, send_answers
    from halfmoon.columns.batch import batch_drafts, batch_items, encode_batch
    from halfmoon.columns.completions import Completions, HalfMessageCache
    from halfmoon.columns.filtering import BulkFilter, tag_matches
    from halfmoon.columns.frames import head_json, request_frame, split_frames
    from halfmoon.columns.keys import checked_records, copied_records, index_entries, put_numbers, record_keys
    from halfmoon.columns.messages import Messages, crc32, crc_sum
    from halfmoon.columns.properties import encode_properties, stored_properties, tag_hash
    from halfmoon.columns.reading import Reader
    from halfmoon.columns.record import gather, record_rows, row_columns, whole_records
    from halfmoon.columns.signing import Signer, Verifier
    from halfmoon.columns.states import decided_rows, prepared_rows, runs_of
else:
    Messages, Reader, BulkFilter = _found.Messages, _found.Reader, _found.BulkFilter
    Signer, Verifier = _found.Signer, _found.Verifier
    Completions, HalfMessageCache = _found.Completions, _found.HalfMessageCache
    decided_rows, prepared_rows, runs_of = _found.decided_rows, _found.prepared_rows, _found.runs_of
    row_columns, tag_matches = _found.row_columns, _found.tag_matches
    batch_drafts, batch_items, crc32, split_frames = _found.batch_drafts, _found.batch_items, _found.crc32, _found.split_frames
    crc_sum, done_answers, pull_head = _found.crc_sum, _found.done_answers, _found.pull_head
    gather, record_rows = _found.gather, _found.record_rows
    head_json = _found.head_json
    encode_batch, encode_properties, request_frame = _found.encode_batch, _found.encode_properties, _found.request_frame
    stored_properties, tag_hash = _found.stored_properties, _found.tag_hash
    index_entries, record_keys, whole_records = _found.index_entries, _found.record_keys, _found.whole_records
    put_numbers, send_answers = _found.put_numbers, _found.send_answers
    checked_records, copied_records = _found.checked_records, _found.copied_records
