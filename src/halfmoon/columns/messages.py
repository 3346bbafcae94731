"""`Messages`: messages of one queue in the order they came, and who sent them. From them come the log's bytes and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from struct import error as struct_error
from zlib import crc32 as crc32

from halfmoon.columns.batch import Draft
from halfmoon.columns.record import BORN_V6, HEAD, HEADS, MAGIC, STORE_V6
from halfmoon.errors import MessageIllegal
from halfmoon.limits import PROPERTIES_BYTES_MAX, TOPIC_LENGTH_MAX

NO_ANSWER, AT_ONCE, DURABLE = 0, 1, 2
"""How a sender is answered: not at all, as soon as its messages are stored, once they are on the device (sync flush)."""
ALL = AT_ONCE | DURABLE

Sender = tuple[int, int, int, int, int]
"""connection, opaque, serialisation, how it is answered, how many messages it sent."""

_NOT_QUEUED = 0x4
"""The bit that PREPARED and ROLLBACK share."""
_TRANSACTION_MASK, _COMMIT = 0xC, 0x8
_BITS = {8: 0, 20: BORN_V6}, {8: 0, 20: STORE_V6}
"""IPv6 bits of sysFlag, by the lengths of the born host and of the store host."""
_ENTRIES_AT_ONCE = 512
"""Entries packed at once: bounds the layouts that are kept."""


def crc_sum(data: bytes | memoryview, offsets: bytes | memoryview, /) -> int:
    """Return the sum of the CRC-32 of stretches of bytes that lie one behind another, as in Arrow's columns of bytes.

    ``offsets`` are the bytes of 32-bit numbers, in this machine's order: where each stretch begins, and where the last one ends.
    Raises ValueError where they do not rise, or lead beyond the bytes.
    """
    view, places = memoryview(data).cast("B"), memoryview(offsets).cast("B").cast("i")
    if not all(0 <= begin <= end <= len(view) for begin, end in pairwise(places)):
        raise ValueError("the offsets do not rise, or lead beyond the bytes")
    return sum(crc32(view[begin:end]) for begin, end in pairwise(places))


class Messages:
    """The columns. ``places`` are the physical offsets of those that are encoded."""

    __slots__ = ("drafts", "places", "senders")

    def __init__(self, drafts: Iterable[Draft] = ()) -> None:
        self.drafts = list(drafts)
        self.senders: list[Sender] = []
        """Senders in order; empty for messages of the broker itself."""
        self.places: list[int] = []

    def __len__(self) -> int:
        return len(self.drafts)

    @classmethod
    def lying_at(cls, places: list[int]) -> Messages:
        """Return messages that are stored already, whose senders are to be answered."""
        messages = cls()
        messages.places = places
        return messages

    @classmethod
    def committed(cls, halves: Sequence[tuple[Messages, int]]) -> Messages:
        """Return what commits of half messages store: each as it is, with the commit bit and the place of its own record."""
        messages = cls()
        for half, place in halves:
            for body, properties, flag, sys_flag, born_ms, host, reconsume, _, code in half.drafts:
                sys_flag = sys_flag & ~_TRANSACTION_MASK | _COMMIT
                messages.drafts.append((body, properties, flag, sys_flag, born_ms, host, reconsume, place, code))
        return messages

    @classmethod
    def numbers(cls, bodies: Sequence[int], properties: bytes, born_ms: int, host: bytes, code: int) -> Messages:
        """Return messages whose bodies are numbers in decimal digits, and that share everything else."""
        return cls([(b"%d" % number, properties, 0, 0, born_ms, host, 0, 0, code) for number in bodies])

    def kept(self) -> list[Messages]:
        """Return each message by itself, to be kept for long: it holds no bytes of others."""
        return [Messages([draft]) for draft in self.drafts]

    def sent(self, peer: int, opaque: int, serialization: int, how: int, count: int) -> None:
        """Say who sent the next ``count`` messages, as one request."""
        self.senders.append((peer, opaque, serialization, how, count))

    def apart(self) -> list[Messages]:
        """Return the messages of each request by themselves, none of them encoded."""
        requests, at = [], 0
        for sender in self.senders:
            messages = Messages(self.drafts[at : at + sender[4]])
            messages.senders.append(sender)
            requests.append(messages)
            at += sender[4]
        return requests

    def answered(self, how: int) -> bool:
        """Whether some sender is answered so."""
        return any(sender[3] == how for sender in self.senders)

    @property
    def left(self) -> int:
        """How many are not encoded."""
        return len(self.drafts) - len(self.places)

    # ------------------------------------------------------------ records

    def encode(
        self, topic: str, queue_id: int, queue_offset: int, at: int, room: int, size_max: int, now: int, host: bytes
    ) -> tuple[bytes, bytes]:
        """Return records and queue entries of those that are left, as many as fit into ``room`` bytes; a request's are not parted.

        The first record lies at physical offset ``at`` and has ``queue_offset``; ``host`` is the store's. PREPARED and ROLLBACK
        records get queue offset 0, use none up and have no entry.

        Raises MessageIllegal when a record is longer than ``size_max``, or a number has no place in it; none is encoded then.
        """
        name, end, done = topic.encode(), at + room, len(self.places)
        chunks, flat, places = list[bytes](), list[int](), list[int]()
        drafts = self.drafts[done:] if done else self.drafts
        layout, known_host, bits, fixed = HEAD, None, 0, 0
        try:
            for body, properties, flag, sys_flag, born_ms, born_host, reconsume, prepared, code in drafts:
                if born_host is not known_host:  # the messages of one connection share it
                    bits, known_host = _host_bits(len(born_host), len(host)), born_host
                    layout = HEADS[bits]
                    fixed = layout.size + 3 + len(name)
                size = fixed + len(body) + len(properties)
                if size > size_max:
                    raise MessageIllegal(f"a record of {size} bytes is longer than {size_max}")
                if at + size > end:
                    break
                queued = not sys_flag & _NOT_QUEUED
                chunks += (
                    layout.pack(
                        size, MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset if queued else 0, at,
                        sys_flag & ~0x30 | bits, born_ms, born_host, now, host, reconsume, prepared, len(body),
                    ),
                    body, _tail(name, len(properties)), properties,
                )  # fmt: skip
                if queued:
                    flat += (at, size, code)
                    queue_offset += 1
                places.append(at)
                at += size
            if len(places) < len(drafts):  # the room ended
                self._keep_whole(chunks, flat, places)
            entries = _packed(flat)
        except struct_error:
            raise MessageIllegal("a number of the message is out of range") from None
        self.places += places
        return b"".join(chunks), entries

    def _keep_whole(self, chunks: list[bytes], flat: list[int], places: list[int]) -> None:
        """Take back the messages of a request that is not encoded to its end: it goes into the next file."""
        done = len(self.places)
        whole = self._whole(done + len(places)) - done
        if whole < len(places):
            end = places[whole]
            del chunks[4 * whole :], flat[3 * sum(place < end for place in flat[0::3]) :], places[whole:]

    def _whole(self, count: int) -> int:
        """Return how many of the first ``count`` messages belong to requests that lie among them whole."""
        if not self.senders:
            return count
        whole = 0
        for sender in self.senders:
            if whole + sender[4] > count:
                break
            whole += sender[4]
        return whole

    def sizes(self, topic: str, host: bytes) -> list[int]:
        """Return the size of each record, in bytes."""
        fixed = 75 + len(topic.encode()) + len(host)
        return [fixed + len(draft[0]) + len(draft[1]) + len(draft[5]) for draft in self.drafts]

    def together(self, sizes: list[int]) -> list[int]:
        """Return the sizes of those that are not parted: of each request, or of each message where nobody asked."""
        if not self.senders:
            return sizes
        request_sizes, at = [], 0
        for sender in self.senders:
            request_sizes.append(sum(sizes[at : at + sender[4]]))
            at += sender[4]
        return request_sizes


Group = tuple[str, int, str, Messages]
"""Topic, queue id, producer group and messages of one queue that came in one turn; half messages are those of one producer group,
which is "" for all others."""


def _host_bits(born_bytes: int, store_bytes: int) -> int:
    """Return the IPv6 bits of sysFlag for hosts of these lengths. Raises MessageIllegal."""
    if born_bytes not in (8, 20):
        raise MessageIllegal(f"a born host of {born_bytes} bytes")
    return _BITS[0][born_bytes] | _BITS[1][store_bytes]


@lru_cache(4096)
def _tail(topic: bytes, properties_bytes: int) -> bytes:
    """Return the bytes between body and properties."""
    if not 0 < len(topic) <= TOPIC_LENGTH_MAX:
        raise MessageIllegal(f"a topic of {len(topic)} bytes; 1 to {TOPIC_LENGTH_MAX} are possible")
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(f"properties of {properties_bytes} bytes; at most {PROPERTIES_BYTES_MAX} are possible")
    return b"%c%b%b" % (len(topic), topic, properties_bytes.to_bytes(2, "big"))


@lru_cache(_ENTRIES_AT_ONCE)
def _entries(count: int) -> Struct:
    return Struct(">" + "qiq" * count)


def _packed(flat: list[int]) -> bytes:
    """Return queue entries of physical offset, size and tag code, flat."""
    step = 3 * _ENTRIES_AT_ONCE
    if len(flat) <= step:
        return _entries(len(flat) // 3).pack(*flat)
    return b"".join(_entries(len(block) // 3).pack(*block) for block in (flat[at : at + step] for at in range(0, len(flat), step)))
