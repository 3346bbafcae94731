"""`CommitLog`: all records of all topics, one behind the other. Appends, reads and walks; decides nothing about queues.

A record never crosses a file. One that does not fit closes the file with a blank tail (its length and a magic of its own), so
at least 8 bytes stay free at the end of a file that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from halfmoon.errors import CorruptRecord, MessageIllegal
from halfmoon.limits import PROPERTIES_BYTES_MAX, TOPIC_LENGTH_MAX
from halfmoon.ports import Disk
from halfmoon.store.alike import Alike, encode_alike
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, COMMIT_LOG, MAGIC
from halfmoon.store.long_batch import LongBatch, encode_long, sizes_of
from halfmoon.store.records import BLANK_TAIL, BORN_V6, STORE_V6, RecordFacts, check_at, crc32, is_torn, store_time_at
from halfmoon.store.resync import next_record
from halfmoon.store.segments import Segments

Draft = tuple[bytes, bytes, int, int, int, bytes, int, int, int]
"""(body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset, tag_hash)."""

Drafts = list[Draft] | Alike | LongBatch
"""Messages of one queue: one by one, or of one batch."""

_HEADS = {  # by (bytes of the born host, bytes of the store host); see halfmoon.store.records for the fields
    (born, store): Struct(f">iiiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)
}
assert _HEADS[8, 8].size == 88
_UNUSUAL = BORN_V6 | STORE_V6 | 0x4
"""sysFlag bits that leave the fast road: IPv6 hosts, and the bit that PREPARED and ROLLBACK share."""
_TOPICS_MAX, _TAILS_MAX = 256, 256


class Damaged(NamedTuple):
    """Bytes of the log that are no record, with something behind them that is."""

    physical_offset: int
    size_bytes: int
    reason: str


class Block(NamedTuple):
    """What one append came to."""

    physical_offsets: list[int]
    entries: list[int]
    """Physical offset, size and tag hash of each record that belongs into its queue, flat."""
    end_offset: int


class CommitLog:
    """The log. ``end`` is where the next record goes, ``first`` the lowest offset that is still there."""

    def __init__(self, disk: Disk, file_bytes: int, host: bytes, message_bytes_max: int) -> None:
        self.segments = Segments(disk, COMMIT_LOG, file_bytes)
        self.file_bytes = file_bytes
        self.host = host
        self.end = 0
        self.last_store_ms = 0
        self._size_max = min(message_bytes_max + 64 * 1024, file_bytes - BLANK_BYTES)
        self._limit = 0  # end of the current file, less the 8 bytes of a blank tail
        self._tails: dict[str, dict[int, bytes]] = {}

    @property
    def first(self) -> int:
        """Lowest physical offset that can be read."""
        return self.segments.first

    # ------------------------------------------------------------ append

    def append(self, topic: str, queue_id: int, queue_offset: int, drafts: Drafts, now: int, *, whole: bool) -> Block:
        """Write records of one queue, each with the next queue offset, in as few writes as there are files.

        PREPARED and ROLLBACK records get queue offset 0, use none up and have no entry. ``whole`` keeps all in one file.

        Raises:
            MessageIllegal: a draft is larger than a record may be; nothing was written.
            OSError: the disk is full; nothing was written.
        """
        start = self.end
        if not isinstance(drafts, list):
            if isinstance(drafts, Alike):
                found = self._encode_alike(topic, queue_id, queue_offset, drafts, start, now)
            else:
                found = self._encode_long(topic, queue_id, queue_offset, drafts, start, now)
            if found is not None and found[1].end_offset <= self._limit:
                self.segments.write(start, found[0])
                self.end, self.last_store_ms = found[1].end_offset, now
                return found[1]
            drafts = drafts.drafts()
        pieces, block = self._encode(topic, queue_id, queue_offset, drafts, start, now)
        if block.end_offset <= self._limit:
            self.segments.write(start, b"".join(pieces))
        else:
            try:
                block = self._append_over_files(topic, queue_id, queue_offset, drafts, now, whole, block)
            except OSError:  # no room for the next file
                self.segments.remove_after(start)
                self.segments.clear_from(start, thorough=False)
                self.set_end(start)
                raise
        self.end = block.end_offset
        self.last_store_ms = now
        return block

    def _encode(
        self, topic: str, queue_id: int, queue_offset: int, drafts: list[Draft], at: int, now: int
    ) -> tuple[list[bytes], Block]:
        """Return the pieces of the records as if everything fitted at a position."""
        pieces: list[bytes] = []
        entries: list[int] = []
        offsets: list[int] = []
        host, size_max = self.host, self._size_max
        start, first_offset = at, queue_offset
        known_host = b""
        if len(host) != 8:
            return self._encode_unusual(topic, queue_id, queue_offset, drafts, at, now)
        tails = self._tails.get(topic, {})
        pack = _HEADS[8, 8].pack
        fixed = 91 + len(topic.encode())
        try:
            for body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset, tag_hash in drafts:
                if born_host is not known_host:  # the messages of one connection share it
                    if len(born_host) != 8:
                        return self._encode_unusual(topic, queue_id, first_offset, drafts, start, now)
                    known_host = born_host
                if sys_flag & _UNUSUAL:
                    return self._encode_unusual(topic, queue_id, first_offset, drafts, start, now)
                body_bytes, properties_bytes = len(body), len(properties)
                size = fixed + body_bytes + properties_bytes
                if size > size_max:
                    raise MessageIllegal(f"a record of {size} bytes is longer than {size_max}")
                tail = tails.get(properties_bytes) or self._tail(topic, properties_bytes)
                pieces += (
                    pack(
                        size, MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, at, sys_flag, born_ms, born_host,
                        now, host, reconsume_times, prepared_offset, body_bytes,
                    ),
                    body, tail, properties,
                )  # fmt: skip
                entries += (at, size, tag_hash)
                offsets.append(at)
                at += size
                queue_offset += 1
        except struct_error as exc:
            raise MessageIllegal(f"a number of the message is out of range: {exc}") from None
        return pieces, Block(offsets, entries, at)

    def _encode_alike(
        self, topic: str, queue_id: int, queue_offset: int, batch: Alike, at: int, now: int
    ) -> tuple[bytes, Block] | None:
        """Return the records of a batch in one piece; None: they must be looked at one by one."""
        if len(self.host) != 8 or len(batch.born_host) != 8 or batch.sys_flag & _UNUSUAL:
            return None
        properties_bytes, count = batch.properties_bytes, len(batch)
        tail = self._tails.get(topic, {}).get(properties_bytes) or self._tail(topic, properties_bytes)
        size = 88 + len(batch.bodies[0]) + len(tail) + properties_bytes
        if size > self._size_max:
            return None
        try:
            data = encode_alike(batch, size, queue_id, queue_offset, at, now, self.host, tail)
        except struct_error:
            return None
        places = range(at, at + count * size, size)
        entries = [0, size, batch.tag_hash] * count
        entries[0::3] = places
        return data, Block(list(places), entries, at + count * size)

    def _encode_long(
        self, topic: str, queue_id: int, queue_offset: int, batch: LongBatch, at: int, now: int
    ) -> tuple[bytes, Block] | None:
        """The same for a long batch."""
        if len(self.host) != 8 or len(batch.born_host) != 8 or batch.sys_flag & _UNUSUAL:
            return None
        sizes = sizes_of(batch, len(topic.encode()))
        if sizes.max() > self._size_max:
            return None
        ends = sizes.cumsum() + at
        places, end = ends - sizes, int(ends[-1])
        known, lengths = self._tails.get(topic, {}), set(batch.properties_bytes.tolist())
        tails = {length: known.get(length) or self._tail(topic, length) for length in lengths}
        try:
            data = encode_long(batch, sizes, queue_id, queue_offset, places, now, self.host, tails)
        except struct_error:
            return None
        offsets: list[int] = places.tolist()
        entries = [0] * (3 * len(offsets))
        entries[0::3], entries[1::3], entries[2::3] = offsets, sizes.tolist(), batch.tag_hashes.tolist()
        return data, Block(offsets, entries, end)

    def _encode_unusual(
        self, topic: str, queue_id: int, queue_offset: int, drafts: list[Draft], at: int, now: int
    ) -> tuple[list[bytes], Block]:
        """The plain road of `_encode`: any hosts, any transaction bits."""
        pieces: list[bytes] = []
        entries: list[int] = []
        offsets: list[int] = []
        host = self.host
        for body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset, tag_hash in drafts:
            sys_flag = sys_flag & ~(BORN_V6 | STORE_V6) | (len(born_host) == 20) * BORN_V6 | (len(host) == 20) * STORE_V6
            if len(born_host) not in (8, 20):
                raise MessageIllegal(f"a born host of {len(born_host)} bytes")
            head = _HEADS[len(born_host), len(host)]
            size = head.size + 3 + len(topic.encode()) + len(body) + len(properties)
            if size > self._size_max:
                raise MessageIllegal(f"a record of {size} bytes is longer than {self._size_max}")
            queued = not sys_flag & 0x4
            try:
                pieces.append(
                    head.pack(
                        size, MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset if queued else 0, at, sys_flag,
                        born_ms, born_host, now, host, reconsume_times, prepared_offset, len(body),
                    )
                )  # fmt: skip
            except struct_error as exc:
                raise MessageIllegal(f"a number of the message is out of range: {exc}") from None
            pieces += (body, self._tail(topic, len(properties)), properties)
            if queued:
                entries += (at, size, tag_hash)
                queue_offset += 1
            offsets.append(at)
            at += size
        return pieces, Block(offsets, entries, at)

    def _tail(self, topic: str, properties_bytes: int) -> bytes:
        """Return the bytes between body and properties; the same for all messages of a topic with properties of one length."""
        name = topic.encode()
        if not 0 < len(name) <= TOPIC_LENGTH_MAX:
            raise MessageIllegal(f"a topic of {len(name)} bytes; 1 to {TOPIC_LENGTH_MAX} are possible")
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(f"properties of {properties_bytes} bytes; at most {PROPERTIES_BYTES_MAX} are possible")
        if topic not in self._tails and len(self._tails) >= _TOPICS_MAX:
            self._tails.clear()
        tails = self._tails.setdefault(topic, {})
        if len(tails) >= _TAILS_MAX:
            tails.clear()
        tail = tails[properties_bytes] = b"%c%b%b" % (len(name), name, properties_bytes.to_bytes(2, "big"))
        return tail

    def _append_over_files(
        self, topic: str, queue_id: int, queue_offset: int, drafts: list[Draft], now: int, whole: bool, block: Block
    ) -> Block:
        """Fill the current file with what fits, close it, and go on in the next."""
        if whole and block.end_offset - block.physical_offsets[0] > self.file_bytes - BLANK_BYTES:
            raise MessageIllegal(f"a batch of {block.end_offset - block.physical_offsets[0]} bytes does not fit one log file")
        ends = [*block.physical_offsets[1:], block.end_offset]
        sizes = [end - start for start, end in zip(block.physical_offsets, ends)]
        self._take_room([sum(sizes)] if whole else sizes)
        offsets: list[int] = []
        entries: list[int] = []
        rest, at = drafts, self.end
        while rest:
            pieces, block = self._encode(topic, queue_id, queue_offset, rest, at, now)
            limit = self._limit
            if block.end_offset <= limit:
                taken, end = len(rest), block.end_offset
            else:
                ends = [*block.physical_offsets[1:], block.end_offset]
                taken = 0 if whole else sum(end <= limit for end in ends)
                end = ends[taken - 1] if taken else at
            if taken:
                self.segments.write(at, b"".join(pieces[: 4 * taken]))
                kept = block.entries[: 3 * sum(position < end for position in block.entries[::3])]
                offsets += block.physical_offsets[:taken]
                entries += kept
                queue_offset += len(kept) // 3
                rest = rest[taken:]
            self.end = end
            if rest:
                self.roll()
                at = self.end
        return Block(offsets, entries, self.end)

    def _take_room(self, sizes: list[int]) -> None:
        """Make the files that records of these sizes go to and take their space, with zeros where zeros are.

        A disk that is full says so before any record is written: one that was written and made zero again may be on the device,
        and come back when the sync of the zeros fails.
        """
        segments, start, limit = self.segments, self.end, self._limit
        at = start
        for size in sizes:
            if at + size > limit:
                file_end = -(-at // self.file_bytes) * self.file_bytes
                room_end = min(at + BLANK_BYTES, file_end)
                if start < room_end:
                    segments.write(start, bytes(room_end - start))
                if segments.last is None or file_end >= segments.end:
                    segments.extend(file_end)
                start = at = file_end
                limit = at + self.file_bytes - BLANK_BYTES
            at += size
        segments.write(start, bytes(at - start))

    def roll(self) -> None:
        """Close the current file with a blank tail and go on at the start of the next, which is made if needed."""
        segments = self.segments
        if segments.last is not None and self.end < segments.end:
            left = segments.base(self.end) + self.file_bytes - self.end
            if left < self.file_bytes:
                if left >= BLANK_BYTES:
                    segments.write(self.end, BLANK.pack(left, BLANK_MAGIC))
                self.end += left
        if segments.last is None or self.end >= segments.end:
            segments.extend(self.end)
        self.set_end(self.end)

    def set_end(self, end: int) -> None:
        """Say where the next record goes."""
        self.end = end
        last = self.segments.last
        self._limit = 0 if last is None or end >= self.segments.end else self.segments.base(end) + self.file_bytes - BLANK_BYTES

    # ------------------------------------------------------------ read

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """Return bytes of one file, or None when they are not all inside the log."""
        if not self.first <= physical_offset <= physical_offset + size <= self.end:
            return None
        found = self.segments.view(physical_offset, size)
        return found if len(found) == size else None

    def record(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """Return a whole record's bytes, or None when no record can begin there. Only magic, place and size are checked."""
        head = self.view(physical_offset, 40)
        if head is None:
            return None
        stored = int.from_bytes(head[:4], "big")
        if head[4:8] != _MAGIC_BYTES or int.from_bytes(head[28:36], "big") != physical_offset or size not in (None, stored):
            return None
        return self.view(physical_offset, stored)

    def record_at(self, physical_offset: int) -> bool:
        """Whether a whole record lies at an offset of a file that is there, wherever the log ends."""
        base = self.segments.base(physical_offset)
        try:
            found = check_at(self.segments.view(base, self.file_bytes), physical_offset - base, physical_offset)
        except CorruptRecord:
            return False
        return isinstance(found, RecordFacts)

    def store_ms(self, physical_offset: int) -> int:
        """Return a record's store time. Raises CorruptRecord when there is no record."""
        head = self.view(physical_offset, 88)
        if head is None or head[4:8] != _MAGIC_BYTES:
            raise CorruptRecord(physical_offset, "an entry points at bytes that are not a record")
        return store_time_at(head)

    def scan(
        self, start: int, stop: int | None = None, *, doubtful: bool = False, known_to: int = 0, rising: bool = False
    ) -> Iterator[tuple[int, RecordFacts | Damaged]]:
        """Walk the records from a record's offset, each checked whole, to ``stop`` or to where no record is.

        What is no record is yielded as `Damaged` and stepped over: below ``known_to``, where records are known to have been, up to
        the next one that proves itself, wherever that is; behind it, where a loss may have left anything, only one record whose
        size is plausible, with a good record (or a blank tail, or ``stop``) right behind it. The walk ends at anything else.
        ``doubtful``: writes may have been cut short, and a record that shows it is a damaged one. ``rising``: bytes of an older
        life may lie behind the end, so what is stepped to was not stored before what was read last.
        """
        position, last_ms = start, 0
        segments = self.segments
        while position < segments.end and (stop is None or position < stop):
            base = segments.base(position)
            view = segments.view(base, self.file_bytes)
            written = self.file_bytes if stop is not None else segments.data_end(base)
            while position < base + self.file_bytes and (stop is None or position < stop):
                try:
                    if position - base >= written:
                        raise CorruptRecord(position, "nothing was written there")
                    found = check_at(view, position - base, position)
                    if doubtful and isinstance(found, RecordFacts) and is_torn(found):
                        raise CorruptRecord(position, "its topic or properties are cut short")
                except CorruptRecord as error:
                    end = self._behind_damage(view, base, position, stop, known_to, last_ms if rising else 0)
                    if end is None:
                        return
                    yield position, Damaged(position, end - position, error.reason)
                    position = end
                    continue
                if found is BLANK_TAIL:
                    position = base + self.file_bytes
                    break
                assert isinstance(found, RecordFacts)
                yield position, found
                position += found.size_bytes
                last_ms = found.store_ms

    def _behind_damage(
        self, view: memoryview, base: int, position: int, stop: int | None, known_to: int, least_ms: int
    ) -> int | None:
        """Return where to go on behind what is no record; None: nowhere."""
        size = self.damaged_size(view, position - base, position, stop)
        if size:
            return position + size
        if position >= known_to:
            return None
        found = next_record(self.segments, position + 1, self.segments.end if stop is None else stop, least_ms=least_ms)
        return stop if found is None else found

    def damaged_size(self, view: memoryview, at: int, position: int, stop: int | None) -> int:
        """Return the size of a damaged record that can be stepped over, else 0."""
        if len(view) - at < 91:
            return 0
        size = int.from_bytes(view[at : at + 4], "big")
        if not 91 <= size <= min(self._size_max, len(view) - at):
            return 0
        if stop is not None and position + size == stop:
            return size
        try:
            check_at(view, at + size, position + size)
        except CorruptRecord:
            return 0
        return size


_MAGIC_BYTES = MAGIC.to_bytes(4, "big", signed=True)
