"""Replaying dead letters: a copy, as it is or edited, goes back to the group that gave it up, or to any topic, once.

The copy carries a mark, the broker's id of its dead letter, which redeliveries keep. Before a replay the topic is searched for
the mark under the message's id: what was replayed there is not replayed again, whoever did it. Two replays at the same moment
may both go through.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.find import QUERY_TIMEOUT_MS
from halfmoon.client.core.admin.resend import NOT_COPIED, store_copy
from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    check_message,
    check_sendable,
    retry_topic,
    wrap,
)
from halfmoon.client.core.produce.outgoing import Outgoing, properties_text
from halfmoon.effects import Op, run
from halfmoon.errors import MessageIllegal, QueryNotFound, UsageError
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import (
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    KEYS,
    TAGS,
    UNIQ_KEY,
    DeadLetter,
    Message,
    Replayed,
    StoredMessage,
    check_tag,
)
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK, ZLIB
from halfmoon.wire.compression import compress
from halfmoon.wire.headers.pull import QueryMessage
from halfmoon.wire.record import decode_records

INDEX_STEP_MS = 1000
"""Indexes of keys know times to the second, and round down."""

COMPRESS_FROM_BYTES = 4096
COPIES_MAX, ROUNDS_MAX = 32, 64
"""Copies of a message that one query brings, the newest, and how many queries look for the mark among older ones."""

_NOT_EDITED = NOT_COPIED | {UNIQ_KEY, KEYS, TAGS, DEAD_LETTER_ID, DEAD_LETTER_TOPIC, "ORIGIN_MESSAGE_ID"}


class Edit(msgspec.Struct):
    """Changes made to the copies. ``properties``: by name, None takes one out; a tag of "" takes the tag out."""

    body: bytes | None = None
    tag: str | None = None
    keys: str | None = None
    properties: Mapping[str, str | None] = {}


def replay_dead_letter(
    admin: AdminCore,
    letter: DeadLetter,
    *,
    to: str | None = None,
    body: bytes | None = None,
    tag: str | None = None,
    keys: str | None = None,
    properties: Mapping[str, str | None] | None = None,
    again: bool = False,
    dry_run: bool = False,
) -> Op[Replayed]:
    """Send a copy of a dead letter to its group alone, or to the topic ``to``, unless one went there before.

    ``body``, ``tag``, ``keys`` and ``properties`` replace what the dead letter has; a property of None is taken out. ``again``
    sends another copy all the same; ``dry_run`` only says what would be done, with no id. The topic must exist at the broker
    that has the dead letter. Raises UsageError, MessageIllegal, BrokerError.
    """
    target = to or retry_topic(letter.group)
    edit = Edit(body, tag, keys, properties or {})
    copied, body = edited(letter, target, edit, admin.settings.namespace)
    check_sendable(wrap(target, admin.settings.namespace))
    if target.startswith((RETRY_PREFIX, DLQ_PREFIX)) and target != retry_topic(letter.group):
        raise UsageError(f"{target} belongs to one group: name a topic, or none for the group {letter.group} alone")
    check_message(Message(target, body), BODY_BYTES_MAX)
    earlier = yield from replays(admin, letter, target)
    if earlier and not again:
        return Replayed(letter, target, earlier[0].offset_msg_id, already=True)
    text = properties_text(copied)
    if dry_run:
        return Replayed(letter, target, "")
    sent = yield from _send(admin, letter, target, text, body)
    return Replayed(letter, target, sent)


def replays(admin: AdminCore, letter: DeadLetter, topic: str) -> Op[list[StoredMessage]]:
    """Return the messages of a topic that come from a dead letter, the oldest first; redeliveries of a copy are among them."""
    name, end_ms = wrap(topic, admin.settings.namespace), 2**62
    replayed: list[StoredMessage] = []
    for _ in range(ROUNDS_MAX):
        request = QueryMessage(
            topic=name, key=_unique(letter), max_num=COPIES_MAX, end_timestamp=end_ms, unique_key_query=True,
            begin_timestamp=letter.dead_lettered_ms - INDEX_STEP_MS,
        )  # fmt: skip
        try:
            reply = yield from ask(letter.address, request, b"", QUERY_TIMEOUT_MS)
        except QueryNotFound:
            break
        copies = sorted((copy for copy in decode_records(reply.body)), key=lambda copy: copy.store_ms)
        replayed += [copy for copy in copies if copy.topic == name and copy.properties.get(DEAD_LETTER_ID) == letter.offset_msg_id]
        if replayed or len(copies) < COPIES_MAX or copies[0].store_ms >= end_ms:
            break
        end_ms = copies[0].store_ms
    return replayed


def _unique(letter: DeadLetter) -> str:
    return letter.message.properties.get(UNIQ_KEY) or letter.offset_msg_id


def edited(letter: DeadLetter, target: str, edit: Edit, namespace: str = "") -> tuple[dict[str, str], bytes]:
    """Return properties and body of the copy for a topic. Raises MessageIllegal for properties that belong to the protocol."""
    properties = {name: value for name, value in letter.message.properties.items() if name not in NOT_COPIED}
    own = {name for name in edit.properties if name in _NOT_EDITED}
    if own:
        raise MessageIllegal(f"properties that belong to the protocol cannot be edited: {', '.join(sorted(own))}")
    if edit.tag:
        check_tag(edit.tag)
    for name, value in [*edit.properties.items(), (TAGS, edit.tag), (KEYS, edit.keys)]:
        if value:
            properties[name] = value
        elif value == "" or name in edit.properties:
            properties.pop(name, None)
    properties[UNIQ_KEY] = _unique(letter)
    properties.setdefault("ORIGIN_MESSAGE_ID", letter.offset_msg_id)
    properties[DEAD_LETTER_ID], properties[DEAD_LETTER_TOPIC] = letter.offset_msg_id, wrap(letter.message.topic, namespace)
    if target == retry_topic(letter.group):
        properties["RETRY_TOPIC"] = wrap(letter.topic or letter.message.topic, namespace)
    return properties, letter.message.as_stored()[0] if edit.body is None else edit.body


def _send(admin: AdminCore, letter: DeadLetter, topic: str, properties: str, body: bytes) -> Op[str]:
    stored, sys_flag = letter.message.as_stored()
    flags = sys_flag & (COMPRESSED | COMPRESSION_MASK) if sys_flag & COMPRESSED and body is stored else 0
    if not flags and len(body) >= COMPRESS_FROM_BYTES:
        small = yield from run(compress, body, ZLIB, 5)
        if len(small) < len(body):
            body, flags = small, COMPRESSED | ZLIB
    name, unique = wrap(topic, admin.settings.namespace), _unique(letter)
    outgoing = Outgoing(name, body, properties, unique, letter.message.flag, flags)
    broker_name = letter.message.broker_name or None
    return (yield from store_copy(outgoing, -1, letter.address, admin.settings.request_timeout_ms, broker_name))
