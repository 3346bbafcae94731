"""An event as a message, and back: which property holds what. Sends nothing.

| in the message          | of the event                                                        |
|-------------------------|---------------------------------------------------------------------|
| UNIQ_KEY and first key  | ``id``                                                              |
| second key              | ``key``                                                             |
| tag and ``EVENT_CODE``  | ``code``: brokers filter by the tag's hash, the property is exact   |
| ``EVENT_CONTENT_TYPE``  | ``content_type``                                                    |
| ``EVENT_VERSION``       | ``version`` of the payload's form                                   |
| ``EVENT_PUBLISHED_MS``  | ``published_ms``                                                    |
| ``EVENT_GROUP``         | ``group`` of the publisher                                          |
| ``EVENT_TYPE``          | the name of the payload's class, for people; nothing is built by it |
| other properties        | ``headers``                                                         |

A message of another program, without these properties, is an event too: its code is the tag, its payload JSON where it reads as
such, and bytes else.
"""

from __future__ import annotations

from typing import Any

from halfmoon.events.encoding.codec import BYTES, JSON, Codecs
from halfmoon.events.errors import PayloadRefused
from halfmoon.events.event import Event, check_code, check_name
from halfmoon.events.tracing import carry
from halfmoon.model import DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON, RESERVED_PROPERTIES, Message, StoredMessage

PREFIX = "EVENT_"
CODE, CONTENT_TYPE, VERSION = "EVENT_CODE", "EVENT_CONTENT_TYPE", "EVENT_VERSION"
PUBLISHED_MS, GROUP, TYPE = "EVENT_PUBLISHED_MS", "EVENT_GROUP", "EVENT_TYPE"

PROPERTIES_BYTES_MAX = 30_000
"""Bytes of all properties of an event. A record holds 32,767; the rest is room for what brokers add, such as why it comes again."""

TYPE_LENGTH_MAX = 200

RESERVED = RESERVED_PROPERTIES | {DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON}
"""Names that belong to the protocol or to Halfmoon: no header has one."""


def message_of(event: Event, codecs: Codecs, *, group: str, now_ms: int) -> Message:
    """Return the message that carries an event, its payload as bytes. Fills the event's group, time and content type.

    Raises PayloadRefused for a payload, key or header that cannot travel, NameRefused for a topic or code.
    """
    check_name("topic", event.topic)
    check_code(event.code)
    if not isinstance(event.key, str) or any(not character.isprintable() or character.isspace() for character in event.key):
        raise PayloadRefused(f"key {event.key!r:.80}: use a text without blanks and control characters")
    encoded = codecs.encode(event.payload, content_type=event.content_type, version=event.version)
    event.group, event.published_ms, event.content_type = group, now_ms, encoded.content_type
    properties = _checked(event.headers)
    properties |= {
        CODE: event.code,
        CONTENT_TYPE: encoded.content_type,
        VERSION: str(encoded.version),
        PUBLISHED_MS: str(now_ms),
        GROUP: group,
    }
    if encoded.type_name:
        properties[TYPE] = encoded.type_name[:TYPE_LENGTH_MAX]
    carry(properties)
    keys = [event.id, event.key] if event.key else [event.id]
    due_ms = event.deliver_at_ms or None
    message = Message(
        event.topic, encoded.body, tag=event.code, keys=keys, properties=properties, msg_id=event.id, deliver_at=due_ms
    )
    _check_size(properties, keys, event)
    return message


def event_of(stored: StoredMessage, codecs: Codecs, *, payload: Any = None) -> Event:
    """Return the event that a message carries; ``payload`` is the type to decode into, None for plain data.

    Raises PayloadRefused when it does not decode; `event_without_payload` gives the rest all the same.
    """
    event, properties = event_without_payload(stored), stored.properties
    if CONTENT_TYPE in properties:
        version = properties.get(VERSION, "1")
        if not version.isascii() or not version.isdigit() or len(version) > 9:
            raise PayloadRefused(f"{event}: {VERSION} is {version!r:.40}, not a number")
        event.version = int(version)
        event.payload = codecs.decode(
            event.content_type, event.version, stored.body, topic=event.topic, code=event.code, into=payload
        )
        return event
    event.content_type, event.payload = JSON, None
    try:
        event.payload = codecs.decode(JSON, codecs.newest(event.topic, event.code), stored.body, into=payload,
                                      topic=event.topic, code=event.code)  # fmt: skip
    except PayloadRefused:
        if payload is not None:
            raise
        event.content_type, event.payload = BYTES, stored.body
    return event


def event_without_payload(stored: StoredMessage) -> Event:
    """Return the event of a message without its payload. Never raises: a missing field is empty."""
    properties = stored.properties
    keys = stored.keys
    others = [key for key in keys if key != stored.msg_id]
    published = properties.get(PUBLISHED_MS, "")
    return Event(
        id=stored.msg_id,
        topic=topic_of(stored),
        code=properties.get(CODE) or stored.tag or "",
        headers={name: value for name, value in properties.items() if name not in RESERVED and not name.startswith(PREFIX)},
        key=others[0] if others else "",
        transactional=properties.get("TRAN_MSG") == "true" or None,
        content_type=properties.get(CONTENT_TYPE, ""),
        group=properties.get(GROUP) or properties.get("PGROUP", ""),
        published_ms=int(published) if published.isascii() and published.isdigit() and len(published) < 16 else stored.born_ms,
        local=False,
    )


def topic_of(stored: StoredMessage) -> str:
    """Return the topic it was published to; a message that comes again, or that a broker asks about, may lie in another."""
    if stored.topic.startswith("%RETRY%"):
        return stored.properties.get("RETRY_TOPIC", stored.topic)
    if stored.topic.startswith("RMQ_SYS_TRANS_"):
        return stored.properties.get("REAL_TOPIC", stored.topic)
    return stored.topic


def _checked(headers: object) -> dict[str, str]:
    if not isinstance(headers, dict):
        raise PayloadRefused(f"headers: a dict of texts is needed, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not name.strip():
            raise PayloadRefused(f"header {name!r:.80}: a name is a text that is not blank")
        if name in RESERVED:
            raise PayloadRefused(f"header {name!r}: the name belongs to the protocol; use another")
        if name.startswith(PREFIX):
            raise PayloadRefused(f"header {name!r:.80}: names that begin with {PREFIX} belong to events; use another")
        if not isinstance(value, str) or not value.strip():
            raise PayloadRefused(f"header {name!r:.80}: its value is {value!r:.40}; give a text that is not blank, or leave it out")
        if any(mark in text for mark in "\x01\x02" for text in (name, value)):
            raise PayloadRefused(f"header {name!r:.80}: it holds a separator of properties (0x01 or 0x02); encode it")
    return dict(headers)


def _check_size(properties: dict[str, str], keys: list[str], event: Event) -> None:
    """Bytes in UTF-8, a separator behind each name and value."""
    try:
        size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
        size += sum(len(key.encode()) + 1 for key in keys)
    except UnicodeEncodeError:
        raise PayloadRefused(f"{event}: a header has an unpaired surrogate, which UTF-8 cannot encode") from None
    if size > PROPERTIES_BYTES_MAX:
        raise PayloadRefused(f"{event}: headers and key take {size} bytes of {PROPERTIES_BYTES_MAX}; put them into the payload")
