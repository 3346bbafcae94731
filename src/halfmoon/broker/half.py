"""Half messages: sends with ``TRAN_MSG=true``, stored under a topic that nobody consumes until their transaction is decided.

A half message is an ordinary record in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC`` that remembers in REAL_TOPIC and REAL_QID where it
belongs; its queue offset there is its place in the transaction index. Ordinary half messages of a turn are stored together,
unusual ones one at a time by the plain road. Decides nothing about transactions (see `halfmoon.broker.decisions`).

Follows TransactionalMessageBridge.parseHalfMessageInner (RocketMQ 4.9.8).
Differs: a delay on a half message is cleared, as the original's own producer does; there it would park the half message, and no
check would ever see it. A half message without a producer group is refused, for nobody could be asked about it. REAL_TOPIC,
REAL_QID and counts of checks that a sender made up are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from halfmoon.broker.acks import Sender, Stored
from halfmoon.broker.names import HALF_TOPIC, check_group
from halfmoon.broker.recent import HalfMessage, Recent
from halfmoon.broker.request import Request, refusal_of
from halfmoon.broker.send import Sends
from halfmoon.errors import BrokerError, MessageIllegal, MessageRefused, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import tag_hash
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.parts import Parts
from halfmoon.store.store import Draft
from halfmoon.store.transactions import TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.flags import BORN_HOST_V6, TRANSACTION_MASK
from halfmoon.wire.headers.send import SendMessage, SendMessageV2

log = logging.getLogger("halfmoon.broker.transactions")

PRODUCER_GROUP, REAL_TOPIC, REAL_QUEUE, CHECK_TIMES = "PGROUP", "REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
OURS = frozenset({
    REAL_TOPIC, REAL_QUEUE, CHECK_TIMES, "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_GIVEN_UP_REASON", "TRANSACTION_CHECK_HISTORY",
    "CLUSTER",
})  # fmt: skip
"""Properties of a half message that only the broker gives."""
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})

_UNUSUAL = (b"DELAY", b"TIMER_", b"REAL_", b"CLUSTER", b"INNER_", b"CHECK_", b"TRAN_P", b"TRANSACTION_")
_OF_GROUPS = b"%|-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SUFFIXES_MAX = 4096
_UNIQUE = b"UNIQ_KEY\x01"
_Shape = tuple[int, bool, str]
"""Tag code, whether the sender waits for the sync, producer group."""
_UNREAD = object()
_shapes: dict[bytes, Any] = {}
_SHAPES_MAX, _SHAPE_BYTES_MAX = 4096, 512


Prepared = tuple[bytes, int, bool, str]
"""Properties of a half message ready to be stored, tag code, whether the sender waits for the sync, producer group.

A plain tuple, as `_Half` is, because one is built a message."""
_Half = tuple[Draft, str, str, int, Sender | None, bool]
"""draft, producer group, topic, queue id, sender, whether it waits"""
_queue_id = itemgetter(3)


class Halves:
    """The service that stores half messages. ``immunity_seen``: some half message asked for a minimum age of its own."""

    def __init__(self, sends: Sends, index: TransactionIndex, warn: Callable[..., None]) -> None:
        self._sends, self._index, self._warn = sends, index, warn
        self.recent = Recent()
        self._taken: list[_Half] = []
        self._suffixes: dict[tuple[str, int], bytes] = {}
        self._cluster_pair = sends.cluster_pair
        self.stored = 0
        self.immunity_seen = index.pending_count > 0

    # ------------------------------------------------------------ a turn

    def take(
        self, sender: Sender, topic: str, queue_id: int, text: bytes, body: bytes, user_flag: int, sys_flag: int, born_ms: int,
        reconsume: int,
    ) -> bool:  # fmt: skip
        """Take one send of this turn when it is an ordinary half message; its queue is known to take sends."""
        prepared = prepare_quickly(text, self._suffixes.get((topic, queue_id)) or self._suffix(topic, queue_id))
        if prepared is None:
            return False
        properties, code, wait, group = prepared
        host = sender[0].host
        sys_flag = sys_flag & ~TRANSACTION_MASK | (BORN_HOST_V6 if len(host) > 8 else 0)
        draft = (body, properties, user_flag, sys_flag, born_ms, host, reconsume, 0, code)
        self._taken.append((draft, group, topic, queue_id, sender, wait))
        return True

    def send(self, request: Request, header: SendMessage | SendMessageV2, queue_id: int) -> None:
        """Store one half message by the plain road. Raises MessageRefused (13)."""
        properties, code, wait, group = self.prepare((header.properties or "").encode(), header.topic, queue_id)
        command, host = request.command, request.peer.host
        sender = None if command.is_oneway else (request.peer, command.opaque, command.serialization)
        sys_flag = header.sys_flag & ~TRANSACTION_MASK | (BORN_HOST_V6 if len(host) > 8 else 0)
        draft = (
            bytes(command.body), properties, header.flag, sys_flag, header.born_timestamp, host,
            header.reconsume_times or 0, 0, code,
        )  # fmt: skip
        self._taken.append((draft, group, header.topic, queue_id, sender, wait))
        self.store(request.now)

    def store(self, now: int) -> None:
        """Append everything taken and have it answered."""
        if not self._taken:
            return
        taken, self._taken = self._taken, []
        taken.sort(key=_queue_id)  # so that one answer's shape serves neighbours
        try:
            self._store_together(taken, now)
        except Exception as exc:  # these sends fail, others do not feel it
            self._sends.refuse([half[4] for half in taken], refusal_of(exc, f"{len(taken)} half messages"))

    def _store_together(self, halves: list[_Half], now: int) -> None:
        try:
            self._sends.check_open(now)
            index, places, end = self.append([half[0] for half in halves], [half[1] for half in halves], now)
        except MessageRefused as exc:
            if len(halves) == 1:
                self._sends.refuse([halves[0][4]], exc)
                return
            for half in halves:  # one of them cannot be stored, and so none was: find out which
                self._store_together([half], now)
            return
        except BrokerError as exc:
            self._sends.refuse([half[4] for half in halves], exc)
            return
        add, at = self.recent.add, index
        for (draft, group, topic, queue_id, _, _), place in zip(halves, places):
            add(at, HalfMessage(place, group, topic, queue_id, draft))
            at += 1
        begin = 0
        for queue_id, run in groupby(halves, _queue_id):
            senders = [(half[4], half[5]) for half in run]
            self._acknowledge(senders, queue_id, index + begin, places[begin : begin + len(senders)], end, now)
            begin += len(senders)

    def _acknowledge(
        self, senders: list[tuple[Sender | None, bool]], queue_id: int, index: int, places: list[int], end: int, now: int
    ) -> None:
        """Answer neighbours of one queue: together, unless somebody among them wants no answer or does not wait for the sync."""
        waiting = [sender for sender, wait in senders if sender is not None and wait]
        if len(waiting) == len(senders):
            self._sends.acknowledge(Stored(waiting, queue_id, index, places, end), now, wait=True)
            return
        for number, (sender, wait) in enumerate(senders):
            if sender is not None:
                stored = Stored([sender], queue_id, index + number, places[number : number + 1], end)
                self._sends.acknowledge(stored, now, wait=wait)

    def append(self, drafts: list[Draft], groups: list[str], now: int) -> tuple[int, list[int], int]:
        """Append half messages and enter them into the index; return first queue offset, physical offsets and the end.

        Raises what `Sends.append` does.
        """
        try:
            self._index.make_room(len(drafts), 0)
        except StoreNotWritable as exc:
            raise ServiceNotAvailable(f"service not available now: {exc}") from exc
        appended = self._sends.append(HALF_TOPIC, 0, drafts, now)
        places, store_s = appended.physical_offsets, now // 1000
        hashes = {group: tag_hash(group.encode()) for group in set(groups)}
        self._index.prepared(
            appended.queue_offset,
            [(place, size, store_s, hashes[group]) for place, size, group in zip(places, appended.sizes, groups)],
        )
        self.stored += len(drafts)
        return appended.queue_offset, places, appended.end_offset

    # ------------------------------------------------------------ properties

    def prepare(self, text: bytes, topic: str, queue_id: int) -> Prepared:
        """Return the properties that a half message is stored with. Raises MessageRefused (13)."""
        found = wire_properties.decode(text)
        group = found.get(PRODUCER_GROUP, "")
        if not group:
            raise MessageRefused(f"a half message names its producer group in {PRODUCER_GROUP}: nobody could be asked about it")
        try:
            check_group(group)
        except BrokerError as exc:
            raise MessageRefused(f"no producer can be of the group that {PRODUCER_GROUP} names: {exc.remark}") from exc
        if delays := sorted(DELAYS & found.keys()):
            self._warn("a half message to %s asks for a delay (%s), which is cleared", topic, ", ".join(delays))
        if IMMUNITY in found:
            self.immunity_seen = True
        wait = found.get("WAIT", "true").lower() == "true"
        kept = {name: value for name, value in found.items() if name not in OURS and name not in DELAYS}
        tag = found.get("TAGS", "")
        try:
            stored = wire_properties.encode(kept) + self._suffix(topic, queue_id)
        except MessageIllegal as exc:
            raise MessageRefused(f"the message is illegal: {exc}") from exc
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(f"the message is illegal: its properties take {len(stored)} bytes, over {PROPERTIES_BYTES_MAX}")
        return stored, tag_hash(tag.encode()) if tag else 0, wait, group

    def _suffix(self, topic: str, queue_id: int) -> bytes:
        suffix = self._suffixes.get((topic, queue_id))
        if suffix is None:
            if len(self._suffixes) >= _SUFFIXES_MAX:
                self._suffixes.clear()
            suffix = self._cluster_pair + wire_properties.encode({REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)})
            self._suffixes[topic, queue_id] = suffix
        return suffix


def prepare_quickly(text: bytes, suffix: bytes) -> Prepared | None:
    """Prepare the properties of an ordinary half message as `Halves.prepare` does; None for any other and for anything unusual.

    The messages of one producer differ in UNIQ_KEY alone: what is around its value is looked up as a *shape* that was read once.
    """
    if not text.isascii() or len(text) + len(suffix) >= PROPERTIES_BYTES_MAX:
        return None
    at = text.find(_UNIQUE)
    begin = at + len(_UNIQUE)
    end = text.find(b"\x02", begin)
    if end < 0:
        end = len(text)
    if at < 0 or (at and text[at - 1] != 2) or end == begin or text.find(b"\x01", begin, end) >= 0:
        shape = _read_shape(text)
    else:
        key = text[:begin] + text[end:]
        shape = _shapes.get(key, _UNREAD)
        if shape is _UNREAD:
            shape = _read_shape(text[:begin] + b"x" + text[end:])
            if len(key) <= _SHAPE_BYTES_MAX:
                if len(_shapes) >= _SHAPES_MAX:
                    _shapes.clear()
                _shapes[key] = shape
    if shape is None:
        return None
    code, wait, group = shape
    return text + suffix if text[-1] == 2 else text + b"\x02" + suffix, code, wait, group


def _read_shape(text: bytes) -> _Shape | None:
    """Return tag code, whether the sender waits, and the group of ordinary properties; None for any others."""
    if _value(text, b"\x02TRAN_MSG\x01") != b"true":
        return None
    for name in _UNUSUAL:
        if name in text:
            return None
    group = _value(text, b"\x02PGROUP\x01")
    if not group or len(group) > 255 or group.translate(None, _OF_GROUPS):
        return None
    if text.count(b"\x01") != text.count(b"\x02") + (text[-1] != 2):  # a pair with two values, or with none
        return None
    tag = _value(text, b"\x02TAGS\x01")
    if tag == b"":
        return None
    wait = _value(text, b"\x02WAIT\x01")
    return tag_hash(tag) if tag else 0, not wait or wait.lower() == b"true", group.decode()


def checks_written(parts: Parts) -> int:
    """Return how many checks the record itself counts: another broker copied it at each."""
    text = wire_properties.value_of(parts.properties, CHECK_TIMES.encode()) if CHECK_TIMES.encode() in parts.properties else None
    return int(text) if text is not None and text.isdigit() and len(text) < 6 else 0


def with_pairs(properties: bytes, pairs: Mapping[str, str]) -> bytes:
    """Return stored properties with these pairs in place of those of the same names; what does not fit is left out, first the last.

    All others stay as they are, byte for byte, whatever they hold.
    """
    stored = without(properties, frozenset(name.encode() for name in pairs))
    for name, value in pairs.items():
        pair = b"%s\x01%s\x02" % (name.encode(), value.encode())
        if value and len(stored) + len(pair) <= PROPERTIES_BYTES_MAX:
            stored += pair
    return stored


def without(properties: bytes, names: frozenset[bytes]) -> bytes:
    """Return stored properties without the pairs of these names, ended by a separator where there is room for it."""
    kept = b"".join([pair + b"\x02" for pair in properties.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in names])
    return kept if len(kept) <= PROPERTIES_BYTES_MAX else kept[:-1]


def _value(text: bytes, mark: bytes) -> bytes | None:
    """Return the value behind ``0x02 name 0x01``, the last of that name; None when it is missing."""
    at = text.rfind(mark)
    if at < 0:
        if not text.startswith(mark[1:]):
            return None
        at = -1
    begin = at + len(mark)
    end = text.find(b"\x02", begin)
    return text[begin:] if end < 0 else text[begin:end]
