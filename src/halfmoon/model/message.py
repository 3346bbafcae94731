"""Message to send: its fields, the check of their types, and the properties as which they travel. Sends nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from halfmoon.errors import MessageIllegal
from halfmoon.model.old_names import mark_old_names, old_name

KEYS, TAGS, WAIT, DELAY, UNIQ_KEY = "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY"
RECONSUME_REASON, SKIPPED = "RECONSUME_REASON", "skipped by an operator"
"""Halfmoon's own: the reason why a redelivered message could not be consumed, as the client reported last; that of a skip."""
DEAD_LETTER_ID, DEAD_LETTER_TOPIC = "DEAD_LETTER_ID", "DEAD_LETTER_TOPIC"
"""Halfmoon's own, of a replayed message: the broker's id of its dead letter, and the topic in which that lies."""
REPEAT = "INNER_REPEAT"
"""Halfmoon's own, of a message sent again under its ``msg_id``: the number of the attempt. It is taken off before it is stored."""
TIMER_DELAY_MS, TIMER_DELIVER_MS = "TIMER_DELAY_MS", "TIMER_DELIVER_MS"
_ID = re.compile(r"[0-9A-Za-z_.:-]{1,64}")
_ATTEMPT_MAX = 1_000_000
DELAY_S_MAX = 3_456_000
"""40 days, the furthest that a broker takes."""
RESERVED_PROPERTIES = frozenset({
    "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "PCLIENT",
    "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
    "MSG_REGION", "TRACE_ON", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
    "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "EXTEND_UNIQ_INFO", "POP_CK",
    "POP_CK_OFFSET", "1ST_POP_TIME", "DUP_INFO", "__CRC32#", REPEAT,
})  # fmt: skip
"""Property names that belong to the protocol. Follows MessageConst.STRING_HASH_SET (4.9.8), with names of 5.x and two of ours."""
_SEPARATOR = re.compile("[\x01\x02]")


class HintingStruct(msgspec.StructMeta):
    """Type of a struct whose constructor names the right argument in place of a wrong one. A call costs 0.4 µs more."""

    if not TYPE_CHECKING:  # to a type checker its arguments would be any

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                for wrong in kwargs.keys() - set(cls.__struct_fields__):
                    near = difflib.get_close_matches(wrong, cls.__struct_fields__, 1)
                    told = old_name(cls.__name__, wrong) or (f"did you mean {near[0]!r}?" if near else "")
                    told = told or f"it has {', '.join(cls.__struct_fields__)}"
                    raise TypeError(f"{cls.__name__} has no argument {wrong!r}: {told}") from None
                raise


class Message(msgspec.Struct, metaclass=HintingStruct):
    """A message to send.

    ``tag`` is one tag that consumers may subscribe to (`check_tag`); ``keys`` are searchable texts without blanks, or one text
    that holds several, separated by blanks; ``properties`` are the user's own name and value texts; ``flag`` is a number that
    travels untouched; ``wait_store`` asks to wait for the broker's sync where the broker is set so. ``transaction_id`` is set on
    the message that a local transaction is given; sending does not look at it.

    Delivery later, at most one of: ``delay_level``, 1 to 18 (every broker); ``delay``, seconds or a timedelta; ``deliver_at``, ms
    since the epoch or an aware datetime (Halfmoon's brokers, and 5.x ones with its timer on; others deliver at once).

    ``msg_id`` is the sender's own id for it (UNIQ_KEY): one of `TransactionProducer.new_id`, or 1 to 64 letters, digits and
    ``_.:-``; None: the producer makes one. ``attempt`` counts how often the caller has sent this id to the topic, from 1. From 2
    on a Halfmoon broker that has it answers as it did the first time and stores nothing; one that stored it as a half message
    and rolled that back refuses. Apache brokers store it again.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] | list[str] | str = ()
    properties: dict[str, str] = {}
    flag: int = 0
    wait_store: bool = True
    delay_level: int = 0
    transaction_id: str | None = None
    delay: float | timedelta | None = None
    deliver_at: datetime | int | None = None
    msg_id: str | None = None
    attempt: int = 1

    def check_types(self) -> None:
        """Raise MessageIllegal for a field whose value has a wrong type. Keys and properties are looked into when they travel."""
        for name, (kinds, wanted) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise MessageIllegal(_wrong(name, value, wanted))
        if len(FITTING) < _FITTING_MAX:
            FITTING.add(tuple(map(type, msgspec.structs.astuple(self))))

    @property
    def is_delayed(self) -> bool:
        """Whether the message asks for delayed delivery."""
        return self.delay_level > 0 or self.delay is not None or self.deliver_at is not None

    def _time_properties(self) -> dict[str, str]:
        """Return the properties that ask for a point in time. Raises MessageIllegal for two wishes, or an impossible one."""
        if (self.delay_level > 0) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise MessageIllegal("a message has one of delay_level, delay and deliver_at")
        if self.delay is not None:
            seconds = self.delay.total_seconds() if isinstance(self.delay, timedelta) else float(self.delay)
            if not 0 <= seconds <= DELAY_S_MAX:
                raise MessageIllegal(f"delay is 0 to {DELAY_S_MAX} seconds, not {self.delay}")
            return {TIMER_DELAY_MS: str(round(seconds * 1000))}
        if isinstance(self.deliver_at, datetime):
            if self.deliver_at.tzinfo is None:
                raise MessageIllegal("deliver_at: a datetime without time zone says no point in time")
            return {TIMER_DELIVER_MS: str(max(0, round(self.deliver_at.timestamp() * 1000)))}
        if self.deliver_at is not None:
            if not 0 <= self.deliver_at < 10**15:
                raise MessageIllegal(f"deliver_at is milliseconds since the epoch, not {self.deliver_at}")
            return {TIMER_DELIVER_MS: str(self.deliver_at)}
        return {}

    def _id_properties(self) -> dict[str, str]:
        """Return the sender's own id, and whether it comes again. Raises MessageIllegal for texts and counts that cannot be."""
        if not isinstance(self.msg_id, str) or not _ID.fullmatch(self.msg_id):
            what = f"msg_id {self.msg_id!r:.80}: use new_id(), or 1 to 64 letters, digits, '_', '.', ':' or '-'"
            raise MessageIllegal(what if self.msg_id is not None else "a message that is sent again needs the msg_id of before")
        if not 1 <= self.attempt <= _ATTEMPT_MAX:
            raise MessageIllegal(f"attempt is 1 to {_ATTEMPT_MAX}, not {self.attempt}")
        return {UNIQ_KEY: self.msg_id} if self.attempt == 1 else {UNIQ_KEY: self.msg_id, REPEAT: str(self.attempt)}

    def wire_properties(self) -> dict[str, str]:
        """Return all properties as they travel, the protocol's own included, in a new dict.

        Raises:
            MessageIllegal: a user property has a reserved or blank name, a blank value, or a separator inside; nothing finds the
                tag, or one of several keys.
        """
        if self.properties:
            self._check_names()
        properties = dict(self.properties)
        keys = self._joined_keys()
        if keys:
            properties[KEYS] = keys
        if self.tag:
            check_tag(self.tag)
            properties[TAGS] = self.tag
        if self.flag:
            self._check_flag()
        if self.delay_level:
            properties[DELAY] = self._level()
        if self.delay is not None or self.deliver_at is not None:
            properties.update(self._time_properties())
        properties[WAIT] = "true" if self.wait_store else "false"
        if self.msg_id is not None or self.attempt != 1:
            properties.update(self._id_properties())
        # the protocol's own have no separator in them: where the user gave none, only two texts are to be looked at
        texts = "".join([*properties, *properties.values()]) if self.properties else keys + (self.tag or "")
        if "\x01" in texts or "\x02" in texts:
            name = next(name for name, value in properties.items() if _SEPARATOR.search(name + value))
            raise MessageIllegal(f"property {name!r} contains a separator (0x01 or 0x02)")
        return properties

    def _check_names(self) -> None:
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                place = f"properties[{name!r:.60}]" if isinstance(name, str) else "properties, a name in which"
                raise MessageIllegal(_wrong(place, value if isinstance(name, str) else name, "a text"))
            if name in RESERVED_PROPERTIES:
                raise MessageIllegal(f"The Property<{name}> is used by system, input another please")
            if not name.strip() or not value.strip():
                raise MessageIllegal("The name or value of property can not be null or blank string!")

    def _level(self) -> str:
        if self.delay_level < 0:
            raise MessageIllegal(f"delay_level is 1 to 18, or 0 for none, not {self.delay_level}")
        return str(self.delay_level)

    def _check_flag(self) -> None:
        if not -(2**31) <= self.flag < 2**31:
            raise MessageIllegal(f"flag is a number of 32 bits, not {self.flag}")

    def _joined_keys(self) -> str:
        if isinstance(self.keys, str):
            return self.keys
        try:
            joined = " ".join(self.keys)
        except TypeError:
            wrong = next(key for key in self.keys if not isinstance(key, str))
            raise MessageIllegal(_wrong("keys, an element of which", wrong, "a text")) from None
        if joined.split() != [*self.keys]:
            self._refuse_blanks()
        return joined

    def _refuse_blanks(self) -> None:
        for key in self.keys:
            if (parts := key.split()) != [key] and key:
                raise MessageIllegal(
                    f"key {key!r:.80} has a blank, by which brokers tell keys apart, so that nobody finds it: use "
                    f"{'-'.join(parts)!r:.80}, or a user property for texts"
                )


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "topic": ((str,), "a text"),
    "body": ((bytes, bytearray, memoryview), "bytes"),
    "tag": ((str, NoneType), "a text or None"),
    "keys": ((tuple, list, set, frozenset, str), "a list of texts"),
    "properties": ((Mapping,), "a dict of texts"),
    "flag": ((int,), "a whole number"),
    "wait_store": ((bool,), "True or False"),
    "delay_level": ((int,), "a whole number"),
    "transaction_id": ((str, NoneType), "a text or None"),
    "delay": ((Real, timedelta, NoneType), "seconds, a timedelta or None"),
    "deliver_at": ((Integral, datetime, NoneType), "whole milliseconds since the epoch, a datetime or None"),
    "msg_id": ((str, NoneType), "a text or None"),
    "attempt": ((int,), "a whole number"),
}
"""By field of a message: the types that it may have, and their description."""

FITTING: set[tuple[type, ...]] = set()
"""Types of the fields of messages that fitted, as most messages of a program have them: what has them need not be checked again."""

_FITTING_MAX = 1_000


def _wrong(place: str, value: object, wanted: str) -> str:
    return f"{place} is {value!r:.60} ({type(value).__name__}): give {wanted}"


def check_tag(tag: str) -> None:
    """Raise MessageIllegal for a tag that no list of tags asks for, because it would be read as another tag, several, or all."""
    if tag == "*" or "||" in tag or tag.strip() != tag:
        plain = "-".join(part.strip() for part in tag.split("||") if part.strip(" *"))
        instead = f"use {plain!r:.80}, or " if plain else "use "
        raise MessageIllegal(
            f"tag {tag!r:.80} cannot be subscribed to: a list of tags is joined by '||', '*' is all, and blanks around a tag are "
            f"cut off: {instead}a user property, which SQL92 finds"
        )


mark_old_names(Message)
