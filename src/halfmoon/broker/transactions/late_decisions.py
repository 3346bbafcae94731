"""Decisions about expired half messages: a commit is honoured, once, and a rollback is final.

Nothing in the transaction index changes: such a half message is settled there. What became of it says the log, by the message's id:

* its copy in ``TRANS_CHECK_MAX_TIME_TOPIC`` names its place: it expired;
* a half message of that id behind the copy: it was resumed, and what is decided about it now is decided about that one;
* a visible record that names its place: it was committed after all;
* an op record that names its place and its id: it was rolled back after all.

A commit writes one record, and so does a rollback: a crash leaves the one or nothing. With sync flush what is not durable yet is
found by nobody; so it is kept here until then. A message without an id cannot be found again, and is not honoured.

Differs: EndTransactionProcessor (RocketMQ 4.9.8) delivers whatever record an END_TRANSACTION names, as often as it is sent.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from halfmoon.broker.lookup import message_of, messages_with
from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.broker.transactions.half import CHECK_TIMES, PRODUCER_GROUP, REAL_TOPIC
from halfmoon.errors import SystemBusy
from halfmoon.hot import Draft, Parts, tag_hash
from halfmoon.model import UNIQ_KEY, StoredMessage
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_MASK
from halfmoon.wire.properties import without

REASON, HISTORY = "TRANSACTION_EXPIRED_REASON", "TRANSACTION_CHECK_HISTORY"
"""Properties of a copy, where there is room: why, and each check as ``seconds:answer:producer`` joined by blanks, oldest first."""

FRESH_MAX = 65_536
"""Facts that are kept because they are not durable yet; beyond them the broker is busy."""

_OF_COPIES = frozenset(name.encode() for name in (CHECK_TIMES, REASON, HISTORY))
_NO_INDEX = b"-1"
"""Body of the op record of a late rollback: its half message is settled already, and readers of op records pass over it."""
_OP_TAG = tag_hash(b"d")


class _Fresh(msgspec.Struct):
    """Recent fate of a half message. ``end``: the end of the log behind it."""

    end: int = 0
    copy: int = -1
    resumed: tuple[int, int] | None = None
    committed: bool | None = None


class ResumedCopy(NamedTuple):
    """The copy of an expired half message: the message's id and topic, and where the two records lie."""

    key: str
    topic: str
    place: int
    half_place: int


class LateDecisions:
    """Knows what became of expired half messages, by their place in the log. Writes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh: dict[int, _Fresh] = {}

    # ------------------------------------------------------------ what happens

    def check_room(self) -> None:
        """Raise SystemBusy when nothing more can be remembered until it is durable."""
        fresh, durable = self._fresh, self._store.kept_offset
        while fresh and (place := next(iter(fresh))) >= 0 and fresh[place].end <= durable:
            del fresh[place]
        if len(fresh) >= FRESH_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

    def copied(self, place: int, copy: int) -> None:
        """Note the stored copy of an expired half message."""
        self._note(place).copy = copy

    def resumed(self, place: int, index: int, new_place: int) -> None:
        """Note that an expired half message was resumed, as another one."""
        self._note(place).resumed = index, new_place

    def ended(self, place: int, *, committed: bool) -> None:
        """Note that an expired half message was decided."""
        self._note(place).committed = committed

    def _note(self, place: int) -> _Fresh:
        fresh = self._fresh.pop(place, None) or _Fresh()
        fresh.end = self._store.end_offset
        if self._store.holds_back:
            self._fresh[place] = fresh  # the last: they go in the order of their ends
        return fresh

    # ------------------------------------------------------------ what is so

    def copy_of(self, key: str, group: str, place: int) -> ResumedCopy | None:
        """Return the copy of the half message of a group at a place; None: it did not expire, or nobody can tell.

        ``key`` is the message's id as somebody says it; the record's own counts where it is still there.
        """
        half, fresh = self._half(place), self._fresh.get(place)
        if half is not None:
            key = half.properties.get(UNIQ_KEY, "")
            if key and fresh is not None and fresh.copy >= 0 and half.properties.get(PRODUCER_GROUP) == group:
                return ResumedCopy(key, half.properties.get(REAL_TOPIC, ""), fresh.copy, place)
        for copy in messages_with(self._store, EXPIRED_TOPIC, key):
            if copy.prepared_transaction_offset == place and copy.properties.get(PRODUCER_GROUP) == group:
                return copy_from(copy)
        return None

    def _half(self, place: int) -> StoredMessage | None:
        message = message_of(self._store.record(place)) if place >= 0 else None
        return message if message is not None and message.topic == HALF_TOPIC else None

    def successor(self, copy: ResumedCopy) -> tuple[int, int] | None:
        """Return half queue offset and place of the half message that a copy was resumed as, the newest; None: it was not."""
        fresh = self._fresh.get(copy.half_place)
        if fresh is not None and fresh.resumed is not None:
            return fresh.resumed
        for half in messages_with(self._store, HALF_TOPIC, copy.key):
            if half.physical_offset > copy.place:
                return half.queue_offset, half.physical_offset
        return None

    def committed(self, copy: ResumedCopy) -> bool | None:
        """Return whether the half message of a copy was committed (True) or rolled back (False) after all; None: neither."""
        fresh = self._fresh.get(copy.half_place)
        if fresh is not None and fresh.committed is not None:
            return fresh.committed
        for message in messages_with(self._store, copy.topic, copy.key, deleted=True):
            if message.prepared_transaction_offset == copy.half_place and message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                return True
        ops = messages_with(self._store, OP_TOPIC, copy.key)
        return False if any(message.prepared_transaction_offset == copy.half_place for message in ops) else None

    # ------------------------------------------------------------ what is to be stored

    def half_of(self, copy: ResumedCopy) -> Parts | None:
        """Return a half message as it was before it expired: its own record, or the copy's; None when neither can be read."""
        for place in (copy.half_place, copy.place):
            record = self._store.record(place)
            parts = None if record is None else whole_record(record)
            if parts is not None and parts.topic in (HALF_TOPIC, EXPIRED_TOPIC):
                return parts._replace(properties=without(parts.properties, _OF_COPIES), physical_offset=copy.half_place)
        return None


def copy_from(message: StoredMessage) -> ResumedCopy:
    """Return what a record of the topic of expired messages says."""
    topic = message.properties.get(REAL_TOPIC, "")
    return ResumedCopy(message.msg_id, topic, message.physical_offset, message.prepared_transaction_offset)


def rollback_op(copy: ResumedCopy, host: bytes, now: int) -> Draft:
    """Return the op record of a rollback that came after its half message expired."""
    properties = OP_PROPERTIES + b"\x02UNIQ_KEY\x01" + copy.key.encode()
    return _NO_INDEX, properties, 0, 0, now, host, 0, copy.half_place, _OP_TAG
