"""Keys of records, their hashes, and the entries of a key index file.

Also checks that records are whole, and returns the entries that queues must have of them. Keeps nothing but hashes of tags.

An index file's table of slots holds the number of the newest entry of each slot, i32, 0: none; an entry is
``| key hash i32 | physical offset i64 | seconds since the file's first i32 | previous entry of the slot i32 |``, big endian. The
hash is that of ``topic#key`` in UTF-8. What `record_keys` finds is packed, ``| hash i32 | physical offset i64 | store ms i64 |`` a
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Final

from halfmoon.columns.messages import crc32
from halfmoon.columns.record import ENTRY, HEADS, MAGIC, MAGIC_V2, Head, parts_at
from halfmoon.errors import BadMessage
from halfmoon.model import java_hash

INDEX_ENTRY: Final = Struct(">iqii")
KEY: Final = Struct(">iqq")
HALF_KIND, OP_KIND, COMMIT_KIND = 0, 1, 2
"""Kinds of records that change the state of a transaction."""
_NUMBER = Struct(">i")
_SECONDS_MAX = 2**31 - 1
_HEAD = Struct(">ii28xi16xq20xi")
"""Size, magic, sysFlag, store time and body length of a record with IPv4 hosts."""
_HOSTS, _TRANSACTION, _PREPARED, _COMMIT, _ROLLBACK = 0x30, 0xC, 4, 8, 0xC
_MAGICS = MAGIC, MAGIC_V2
_DIGITS_END = 20
_UNIQUE = b"UNIQ_KEY\x01"


def record_keys(data: bytes | memoryview, at: int, first: int, records_max: int) -> tuple[int, int, bytes]:
    """Return what the records are found by that lie one behind another from ``at`` on; ``data`` begins at the offset ``first``.

    The result is (how many records, where the next would begin, packed keys). It ends before what is no record whose parts take as
    many bytes as it says, and at ``records_max``. Records that take a transaction back have no keys. CRCs are not looked at.
    """
    texts: list[bytes] = []
    offsets: list[int] = []
    times: list[int] = []
    known: dict[bytes, bytes] = {}
    count, limit = 0, len(data)
    try:
        while count < records_max:
            size, magic, flag, store_ms, body_bytes = _HEAD.unpack_from(data, at)
            text_at = at + 88 + body_bytes
            if flag & _HOSTS:
                head = HEADS[flag & _HOSTS]
                facts = head.unpack_from(data, at)
                text_at, store_ms = at + head.size + facts[14], facts[10]
            if at + size > limit or not at < text_at < at + size:
                break
            text = bytes(data[text_at : at + size])  # topic's length, topic, length of the properties, properties
            wide = 1 if magic == MAGIC else 2
            begin = wide + (text[0] if wide == 1 else text[0] << 8 | text[1]) + 2
            if len(text) != begin + (text[begin - 2] << 8 | text[begin - 1]) or magic not in _MAGICS:
                break
            if flag & _ROLLBACK != _ROLLBACK:
                record_texts = _texts(text, wide, begin, known)
                texts += record_texts
                offsets += [first + at] * len(record_texts)
                times += [store_ms] * len(record_texts)
            at += size
            count += 1
    except (struct_error, IndexError):
        pass
    return count, at, b"".join(map(KEY.pack, map(index_hash, texts), offsets, times))


def _texts(text: bytes, wide: int, begin: int, known: dict[bytes, bytes]) -> list[bytes]:
    """Return ``topic#key`` of each key. ``known`` maps how texts begin up to a unique key, which is most often all there is."""
    key_at = begin + len(_UNIQUE)
    topic, key_end = known.get(text[:key_at]), text.find(b"\x02", key_at)
    if topic is not None and key_end > key_at and text.find(b"KEYS\x01", key_end) < 0:
        return [topic + text[key_at:key_end]]
    topic = text[wide : begin - 2] + b"#"
    if text.startswith(_UNIQUE, begin):
        known[text[:key_at]] = topic
    return [topic + key for key in keys_of(text[begin:])]


def keys_of(properties: bytes) -> list[bytes]:
    """Return what a message is found by: UNIQ_KEY first, then each of KEYS."""
    keys_found = []
    if b"UNIQ_KEY\x01" in properties and (unique := property_of(properties, b"UNIQ_KEY")):
        keys_found.append(unique)
    if b"KEYS\x01" in properties and (keys := property_of(properties, b"KEYS")):
        keys_found += keys.split()
    return keys_found


def property_of(properties: bytes, name: bytes) -> bytes | None:
    """Return one property's value out of the stored text ``name 0x01 value 0x02 …``, without decoding the others."""
    mark = name + b"\x01"
    if properties.startswith(mark):
        at = len(mark)
    else:
        at = properties.find(b"\x02" + mark)
        if at < 0:
            return None
        at += len(mark) + 1
    end = properties.find(b"\x02", at)
    return properties[at:] if end < 0 else properties[at:end]


def index_hash(text: bytes) -> int:
    """Return the hash that a key index file keeps: the absolute value of Java's hash, 0 for the one that has none.

    Follows IndexFile.indexKeyHashMethod (RocketMQ 4.9.8). `topic#key` in UTF-8.
    """
    value = abs(java_hash(text.decode("utf-8", "replace")))
    return 0 if value == 2**31 else value


def index_entries(
    slots: bytes | memoryview, slots_at: int, count: int, begin_ms: int, keys: bytes
) -> tuple[bytes, list[int], list[int], int]:
    """Return the entries of packed keys that are entered from number ``count`` on, and the changes of slots.

    These are the places in the file of the slots that change, rising, the newest entry of each, and how many of them had none.
    ``slots`` is the file's table, which begins at ``slots_at``; ``begin_ms`` is the store time of its first entry.
    """
    heads: dict[int, int] = {}
    entries = bytearray()
    number_of, table, fresh = _NUMBER.unpack_from, len(slots) // 4, 0
    for number, (key_hash, physical_offset, store_ms) in enumerate(KEY.iter_unpack(keys), count):
        slot = key_hash % table
        previous = heads.get(slot)
        if previous is None:
            (previous,) = number_of(slots, 4 * slot)
            if not 0 < previous < count:
                previous = 0
                fresh += 1
        seconds = min(max(0, store_ms - begin_ms) // 1000, _SECONDS_MAX)
        entries += INDEX_ENTRY.pack(key_hash, physical_offset, seconds, previous)
        heads[slot] = number
    changed = sorted(heads)
    return bytes(entries), [slots_at + 4 * slot for slot in changed], [heads[slot] for slot in changed], fresh


def put_numbers(into: memoryview, places: Sequence[int], numbers: Sequence[int]) -> None:
    """Copy big-endian 32-bit numbers in, each at its own place, a multiple of four. Raises IndexError for one that is none."""
    size = len(into) - 4
    for place, number in zip(places, numbers):
        if place & 3 or not 0 <= place <= size:
            raise IndexError(f"no number lies at {place}")
        _NUMBER.pack_into(into, place, number)


QueueEntries = tuple[str, int, int, bytes]
"""Topic, queue id, queue offset of the first entry, and the entries."""
TransactionRun = tuple[int, int, int, list[int], bytes]
"""Records of one kind that change states of transactions, without one of another kind between them.

These are the kind; when the first was stored, in seconds; hash of the producer group of half messages, else 0; a number of each;
where they lie, as entries of a queue with 0 for a tag. The number is the queue offset of a half message, the offset in the log of
the half message that was committed, or the half message that an op record names, -1 where its body is not one number. Half messages
of a run are of one producer group, were stored in one second, and follow each other in their queue."""


def checked_records(data: bytes, first: int, apart: Sequence[bytes]) -> tuple[int, list[QueueEntries], bytes]:
    """Return the length of the leading records that are whole and usual, and their entries for queues and key index.

    The entries are by queue, in the order in which the queues come; the keys are packed as `record_keys` does. ``data`` begins at
    the offset ``first`` of the log. A record is whole if its lengths, its checksum and its offset in the log are right, and its
    topic is text; usual if it belongs to no transaction and to none of the topics that are looked at ``apart``, and continues its
    queue.
    """
    queues: _Entered = {}
    at = count = 0
    try:
        while (record := _whole_at(data, at, first + at)) is not None:
            if record[0][7] & _TRANSACTION or not _enter(queues, data, record, apart):
                break
            at = record[3]
            count += 1
    except BadMessage:
        pass
    return at, _named(queues), record_keys(data, 0, first, count)[2]


def copied_records(
    data: bytes, span: tuple[int, int], first: int, apart: Sequence[bytes], topics: tuple[bytes, bytes], size_max: int
) -> tuple[int, tuple[int, int], list[QueueEntries], list[TransactionRun]]:  # fmt: skip
    """Return where the leading records end that a slave may append; offset in the log and store time of the last; entries; runs.

    The entries are of queues, the runs of records that change states of transactions. The records are those within ``span``, which
    begins at the offset ``first`` of the log, up to one that is not whole, as `checked_records` says, has more than ``size_max``
    bytes, is of a topic that is looked at ``apart``, or does not continue its queue. Prepared records and what rolls them back have
    no entry. Without a record, offset and time are 0. ``topics`` are those of half messages and of decisions.
    """
    queues: _Entered = {}
    runs: list[_Run] = []
    at, stop = span
    begin, last, data = at, (0, 0), data[:stop]
    try:
        while (record := _whole_at(data, at, first + at - begin)) is not None:
            head, topic_at, topic_bytes, end = record
            if head[0] > size_max:
                break
            if head[7] & _PREPARED:
                topic = data[topic_at : topic_at + topic_bytes]
                if topic in apart or not _is_text(topic):
                    break
            elif not _enter(queues, data, record, apart):
                break
            _enter_transaction(runs, data, record, topics)
            last, at = (head[6], head[10]), end
    except BadMessage:
        pass
    return at, last, _named(queues), [(*run[:4], b"".join(run[4])) for run in runs]


def _enter_transaction(runs: list[_Run], data: bytes, record: _Whole, topics: tuple[bytes, bytes]) -> None:
    """Add a record to the last run, or to a new one, if it changes the state of a transaction."""
    head, topic_at, topic_bytes, end = record
    properties, store_s, group = data[topic_at + topic_bytes + 2 : end], head[10] // 1000 & 0xFFFFFFFF, 0
    kind = transaction_kind(head[7], head[3], data[topic_at : topic_at + topic_bytes], properties, topics)
    if kind is None:
        return
    if kind == COMMIT_KIND:
        number = head[13]
    elif kind == HALF_KIND:
        number, group = head[5], _code_of(property_of(properties, b"PGROUP") or b"")
    else:
        body_at = topic_at - head[14] - (1 if head[1] == MAGIC else 2)
        number = number_of(data[body_at : body_at + head[14]])
    continues = bool(runs) and runs[-1][0] == kind
    if continues and kind == HALF_KIND:
        continues = runs[-1][1:3] == (store_s, group) and runs[-1][3][-1] + 1 == number
    if not continues:
        runs.append((kind, store_s, group, [], []))
    runs[-1][3].append(number)
    runs[-1][4].append(ENTRY.pack(head[6], head[0], 0))


def transaction_kind(
    sys_flag: int, queue_id: int, topic: bytes, properties: bytes, topics: tuple[bytes, bytes]
) -> int | None:  # fmt: skip
    """Return which change of a transaction's state a record is; None: none. ``topics`` are those of half messages and of decisions.

    Both have one queue.
    """
    if bits := sys_flag & _TRANSACTION:
        return COMMIT_KIND if bits == _COMMIT else None
    if queue_id or topic not in topics:
        return None
    if topic == topics[0]:
        return HALF_KIND
    return OP_KIND if property_of(properties, b"TAGS") == b"d" else None


def number_of(body: bytes) -> int:
    """Return the number that the body of an op record is; -1 for another, and for one that is too large."""
    number = int(body) if len(body) < _DIGITS_END and body.isdigit() else -1
    return number if number < 1 << 63 else -1


_Run = tuple[int, int, int, list[int], list[bytes]]
"""A `TransactionRun` whose entries are not joined yet."""
_Whole = tuple[Head, int, int, int]
"""Head of a record, where its topic begins, how long that is, and where the record ends."""
_Entered = dict[tuple[bytes, int], tuple[int, list[bytes]]]
"""Offset of the first entry and the entries, by queue."""


def _whole_at(data: bytes, at: int, expected: int) -> _Whole | None:
    """Return a record that has its checksum and its offset in the log; None: it has not. Raises BadMessage for a wrong length."""
    head, body_at, topic_at, topic_bytes, end = parts_at(data, at)
    _, _, crc, queue_id, _, queue_offset, place, _, _, _, store_ms, _, _, _, body_bytes = head
    if place != expected or queue_id < 0 or queue_offset < 0 or store_ms <= 0:
        return None
    is_whole = crc32(data[body_at : body_at + body_bytes]) & 0x7FFFFFFF == crc
    return (head, topic_at, topic_bytes, end) if is_whole else None


def _enter(queues: _Entered, data: bytes, record: _Whole, apart: Sequence[bytes]) -> bool:
    """Add the entry of a record; False: its topic is looked at apart or no text, or it does not continue its queue."""
    head, topic_at, topic_bytes, end = record
    key = data[topic_at : topic_at + topic_bytes], head[3]
    queue = queues.get(key)
    if queue is None:
        if key[0] in apart or not _is_text(key[0]):
            return False
        queue = queues[key] = head[5], []
    elif head[5] != queue[0] + len(queue[1]):
        return False
    queue[1].append(ENTRY.pack(head[6], head[0], _tag_code(data, topic_at + topic_bytes + 2, end)))
    return True


def _named(queues: _Entered) -> list[QueueEntries]:
    return [(str(topic, "utf-8"), queue_id, offset, b"".join(of)) for (topic, queue_id), (offset, of) in queues.items()]


@lru_cache(4096)
def _code_of(tag: bytes) -> int:
    return java_hash(tag.decode("utf-8", "replace"))


def _tag_code(data: bytes, begin: int, end: int) -> int:
    """Return the hash of the tag in the properties between two places, 0 without one."""
    mark = data.find(b"TAGS\x01", begin, end)
    if mark < 0:
        return 0
    if mark != begin and data[mark - 1] != 2:  # the end of another name
        return _code_of(property_of(data[begin:end], b"TAGS") or b"")
    tag_end = data.find(b"\x02", mark, end)
    return _code_of(data[mark + 5 : end if tag_end < 0 else tag_end])


def _is_text(topic: bytes) -> bool:
    try:
        return bool(str(topic, "utf-8"))
    except UnicodeDecodeError:
        return False
