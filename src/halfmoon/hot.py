"""The native seam: the few functions that run once a message. Today they are Python, in `halfmoon._hot` and `halfmoon._hot_batch`:
the reference for any twin.

Bytes in, plain values out, no callbacks, nothing kept but bounded caches. Native code is earned by a profile, ships as a
distribution of its own, and is never needed for correctness.
"""

from __future__ import annotations

from halfmoon._hot import (
    PullHeader,
    SendHeader,
    cut,
    pull_header_json,
    send_answer,
    send_answer_form,
    send_header_json,
    send_header_rocketmq,
    stored_properties,
    tag_hash,
)
from halfmoon._hot_batch import batch_alike, batch_answer, batch_answer_form, batch_drafts, batch_items
from halfmoon._hot_end import EndHeader, end_header_json

__all__ = [
    "EndHeader",
    "PullHeader",
    "SendHeader",
    "batch_alike",
    "batch_answer",
    "batch_answer_form",
    "batch_drafts",
    "batch_items",
    "cut",
    "end_header_json",
    "pull_header_json",
    "send_answer",
    "send_answer_form",
    "send_header_json",
    "send_header_rocketmq",
    "stored_properties",
    "tag_hash",
]
