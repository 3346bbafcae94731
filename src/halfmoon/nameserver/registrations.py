"""Reading of what brokers register: at once if it is small, else in a thread, and taken in by chunks. Changes no routes.

A table of 50,000 topics is 9 MB of JSON, and half a megabyte deflated: reading it takes a fifth of a second, and others shall
not wait for that. One large registration is read at a time, in the order they came; the newest of a broker counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any
from zlib import crc32

import msgspec

from halfmoon.effects import Work
from halfmoon.errors import SystemBusy, SystemError_
from halfmoon.instant import Instant
from halfmoon.nameserver.routes import BrokerRegistration, Queues
from halfmoon.wire.bodies import DataVersion, TopicConfig, TopicConfigTable, decode_register_body, from_json
from halfmoon.wire.codes import VERSION_V3_0_11
from halfmoon.wire.command import Command
from halfmoon.wire.headers.route import RegisterBroker
from halfmoon.wire.json import REGISTRATION, REQUEST, Body

INLINE_BYTES_MAX = 64 * 1024
"""A JSON body up to here is read at once: some 370 topics. A deflated one never is, for it may hold a thousand times its size."""

WAITING_BYTES_MAX = 48 * 1024 * 1024
"""Bodies that wait to be read; beyond it a registration is refused with 2, and the broker tries again 30 s later."""

CHUNK_TOPICS = 5_000
"""Topics that are taken in at a time, some 5 ms."""

ZLIB = b"\x78"
"""First byte of a deflated body; no JSON begins so."""

Chunks = list[dict[str, Queues]]


def read(command: Command, sent: RegisterBroker) -> tuple[BrokerRegistration, Chunks]:
    """Return a registration with the first chunk of its topics, and the other chunks. May be called from any thread.

    Raises:
        SystemError_: the checksum does not match.
        BadBody: not a registration.

    Differs: a deflated body is known by its first byte too: a 5.3.3 broker deflates without saying so in the header.
    """
    if sent.body_crc32 and sent.body_crc32 != crc32(command.body) & 0x7FFFFFFF:
        raise SystemError_("crc32 not match")
    version, configs = _table(command, sent)
    topics = (
        (name, Queues(topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)) for name, topic in configs
    )
    chunks = []
    while chunk := dict(islice(topics, CHUNK_TOPICS)):
        chunks.append(chunk)
    ttl_ms = sent.heartbeat_timeout_millis
    registration = BrokerRegistration(
        sent.cluster_name, sent.broker_name, sent.broker_addr, sent.broker_id, sent.ha_server_addr, version,
        chunks[0] if chunks else {}, ttl_ms if ttl_ms is not None and ttl_ms > 0 else None, sent.enable_acting_master,
        sent.epoch or 0,
    )  # fmt: skip
    return registration, chunks[1:]


class _Wrapper(Body):
    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, msgspec.Raw] = {}  # noqa: RUF012 - msgspec gives each value its own


class _Body(Body):
    topic_config_serialize_wrapper: _Wrapper = msgspec.field(default_factory=_Wrapper)


def _table(command: Command, sent: RegisterBroker) -> tuple[DataVersion, Iterable[tuple[str, TopicConfig]]]:
    """Return the version and the topics.

    Topics of a large body are read one at a time, since one long call stops all other threads, the event loop too.
    """
    body = command.body
    if command.version < VERSION_V3_0_11 and body:
        table = from_json(TopicConfigTable, body, bounds=REGISTRATION)
    elif is_deflated(command, sent) or len(body) <= REGISTRATION.raw_bytes_max:
        table = decode_register_body(body, compressed=is_deflated(command, sent)).topic_config_serialize_wrapper
    else:
        wrapper = from_json(_Body, body, bounds=REGISTRATION).topic_config_serialize_wrapper
        return wrapper.data_version, (
            (name, from_json(TopicConfig, bytes(text), bounds=REQUEST)) for name, text in wrapper.topic_config_table.items()
        )
    return table.data_version, table.topic_config_table.items()


def is_deflated(command: Command, sent: RegisterBroker) -> bool:
    """Whether the body is a zlib stream."""
    return bool(sent.compressed) or bytes(command.body[:1]) == ZLIB


def is_large(command: Command, sent: RegisterBroker) -> bool:
    """Whether reading the body would keep others waiting."""
    return len(command.body) > INLINE_BYTES_MAX or (len(command.body) > 0 and is_deflated(command, sent))


class LargeRegistration(msgspec.Struct, eq=False):
    """One large registration on its way: ``answer`` gets the registration once all of it is taken in, or the error."""

    command: Command
    sent: RegisterBroker
    peer: int
    answer: Callable[[BrokerRegistration | Exception], None]

    @property
    def broker(self) -> tuple[str, str]:
        """Cluster and address, which tell brokers apart."""
        return self.sent.cluster_name, self.sent.broker_addr


class LargeRegistrations:
    """Large registrations under way.

    ``take`` is given each chunk of one and the time, and returns whether the others are wanted; ``more`` says that it is not
    the first.
    """

    waiting_bytes_max = WAITING_BYTES_MAX

    def __init__(self, take: Callable[[LargeRegistration, BrokerRegistration, bool, Instant], bool]) -> None:
        self._take = take
        self._waiting: deque[LargeRegistration] = deque()
        self._newest: dict[tuple[str, str], LargeRegistration] = {}
        self._bytes = 0
        self._busy = False
        self._works: list[Work[Any]] = []

    def add(self, large: LargeRegistration) -> None:
        """Have a registration read. Raises SystemBusy when too much waits already."""
        if self._bytes + len(large.command.body) > self.waiting_bytes_max:
            raise SystemBusy(f"registrations of more than {self.waiting_bytes_max} bytes wait to be read")
        self._bytes += len(large.command.body)
        self._waiting.append(large)
        self._newest[large.broker] = large
        self._next()

    def forget(self, cluster: str, address: str) -> None:
        """Drop a broker's registration under way, since it left or sent a newer one."""
        self._newest.pop((cluster, address), None)

    def lost(self, peer: int) -> None:
        """Drop the registrations under way of a lost connection."""
        for broker in [broker for broker, large in self._newest.items() if large.peer == peer]:
            del self._newest[broker]

    def works(self) -> list[Work[Any]]:
        """Take out what is to be done beside the loop."""
        works, self._works = self._works, []
        return works

    def _next(self) -> None:
        if not self._busy and self._waiting:
            self._busy = True
            large = self._waiting.popleft()
            run = partial(read, large.command, large.sent)
            self._works.append(Work(run, partial(self._was_read, large), name="read a registration"))

    def _was_read(self, large: LargeRegistration, outcome: tuple[BrokerRegistration, Chunks] | Exception, now: Instant) -> None:
        self._bytes -= len(large.command.body)
        large.command.body = b""
        if isinstance(outcome, Exception):
            self._end(large, outcome)
        else:
            self._take_chunk(large, outcome[0], iter(outcome[1]), False, now)

    def _take_chunk(
        self, large: LargeRegistration, sent: BrokerRegistration, chunks: Iterator[dict[str, Queues]], more: bool, now: Instant
    ) -> None:
        """Take in one chunk, and leave the next to a later turn of the loop."""
        if self._newest.get(large.broker) is not large:
            self._end(large, SystemError_("the broker left, or registered again, before this was taken in"))
            return
        try:
            wanted = self._take(large, sent, more, now)
        except Exception as exc:
            self._end(large, exc)
            return
        topics = next(chunks, None) if wanted else None
        if topics is None:
            self._end(large, sent)
            return
        rest = partial(self._take_chunk, large, sent._replace(topics=topics), chunks, True)
        self._works.append(Work(_hop, lambda _result, at: rest(at), name="take in a registration"))

    def _end(self, large: LargeRegistration, outcome: BrokerRegistration | Exception) -> None:
        if self._newest.get(large.broker) is large:
            del self._newest[large.broker]
        self._busy = False
        self._next()
        large.answer(outcome)


def _hop() -> None:
    """Do nothing: the way to a thread and back is what lets others have their turn."""
