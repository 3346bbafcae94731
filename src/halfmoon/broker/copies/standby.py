"""`Standby`: a slave that serves nobody: it copies the log and the tables of a master, so that a broker can start on its directory.

A `halfmoon.ports.Core` with one outgoing connection, and an operation beside it. Before each connection the operation asks the
master who it is and how far its log reaches, and compares the last record of both: a log that is not a part of the master's is
never appended to. The tables (topics, groups, progress of groups and delays) are copied every ``slave_sync_ms``.
Follows SlaveSynchronize and BrokerController (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.copies.copies import GIVES_WHOLE_LOG
from halfmoon.broker.copies.following import Following
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.delay.progress import PATH as DELAYS
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.topics import PATH as TOPICS
from halfmoon.effects import Call, CoreEffect, Op, Start, Work, sleep, steady
from halfmoon.errors import HalfmoonError, broker_error
from halfmoon.instant import Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.model import split_address, split_addresses
from halfmoon.ports import Disk
from halfmoon.settings.properties import parse_properties
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.wire.bodies import (
    ClusterInfo,
    ConsumerOffsetTable,
    DelayOffsetTable,
    KVTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    from_json,
    to_json,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from halfmoon.wire.headers.delay import GetAllDelayOffset
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import GetAllConsumerOffset
from halfmoon.wire.headers.pull import ViewMessageById
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.headers.topic import GetAllTopicConfig
from halfmoon.wire.ids import pack_host

log = logging.getLogger("halfmoon.broker")

ASK_MS = 3_000
"""Timeout of a question to a name server or the master."""
LOOK_MS = 1_000
"""Pause between two looks at the connection."""
TABLES: Mapping[str, tuple[type[Any], type[Any]]] = {
    TOPICS: (GetAllTopicConfig, TopicConfigTable),
    GROUPS: (GetAllSubscriptiongroupConfig, SubscriptionGroupTable),
    OFFSETS: (GetAllConsumerOffset, ConsumerOffsetTable),
    DELAYS: (GetAllDelayOffset, DelayOffsetTable),
}
"""The request for each table, by the path of its file, and the class of its body."""


class NotCopied(HalfmoonError):
    """The master's log cannot be copied to this directory; the text says why and what to do."""


class Master(NamedTuple):
    """A master as it describes itself."""

    address: str
    slave_port: str
    """Address where slaves copy its log."""
    min_offset: int
    end_offset: int
    sends_whole_log: bool


class Standby:
    """The copy of one master, the broker ``settings.name``. ``problem`` says why nothing is copied now; None: it is."""

    def __init__(self, settings: BrokerSettings, store_settings: StoreSettings, disk: Disk, now: Instant) -> None:
        self.settings, self._store_settings, self._disk = settings, store_settings, disk
        host, levels = pack_host(f"{settings.address}:{settings.port or 1}"), Levels(settings.delay_levels)
        self.store = Store.open(disk, store_settings, host, now, tag_code=levels.tag_code, is_slave=True)
        self.following = Following(settings, self.store, now)
        self.problem: str | None = "the master was not asked yet"
        self.end_offset = -1
        """Where the log of the master ended when it was last asked; -1: never."""
        self._saved: dict[str, bytes] = {}
        self._starts: list[CoreEffect] = []
        self._stopping = False
        self._warnings = RateLimitedLog(log, now.steady)

    # ------------------------------------------------------------ the core's verbs

    def start(self, now: Instant) -> None:
        """Begin to look for the master."""
        self._starts.append(Start(self.keep(), "copies"))

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Begin to copy."""
        self.following.connected(peer, remote, now)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Ignore the names in a certificate."""

    def feed(self, peer: int, data: bytes) -> None:
        """Append what the master sent."""
        self.following.feed(peer, data)

    def commit(self, now: Instant) -> bool:
        """Report what was appended, and start a sync for it in sync flush."""
        self.store.drop_arrivals()
        self.store.flush(1, now.steady)
        return self.following.commit(now)

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Ignore that reports are read slowly: they are few."""

    def unanswered(self, peer: int) -> bool:
        """Return False: a master is owed nothing."""
        return False

    def lost(self, peer: int, now: Instant) -> None:
        """Look at the master again before the next connection."""
        self.following.lost(peer, now)
        self.following.master = None

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called next."""
        return min(filter(None, (self.store.due(), self.following.due(now))), default=None)

    def tick(self, now: Instant) -> None:
        """Deadlines and periodic work."""
        self._warnings.tick(now.steady)
        self.store.tick(now)
        self.following.tick(now)

    def effects(self) -> list[CoreEffect]:
        """Take out reports, syncs, tables to save, operations to start."""
        starts, self._starts = self._starts, []
        return [*self.following.effects(), *self.store.work(), *starts]

    def stop(self, now: Instant) -> list[Op[Any]]:
        """Begin a clean stop."""
        self._stopping = True
        self.store.stop(now)
        return []

    def unready(self) -> str | None:
        """Return why nothing is copied now; None: it is."""
        copies = self.problem is None and self.following.is_connected
        return self.store.failure or (None if copies else self.problem or "not connected to the master")

    def lost_at_stop(self) -> str | None:
        """Return, after a stop, why what was copied may not be on the disk; None: it is."""
        return None if self.store.failure is None else f"the last messages: {self.store.failure}"

    def close(self, now: Instant) -> None:
        """Give the directory back. Waits for the device."""
        self.store.close(now)

    # ------------------------------------------------------------ the master

    def keep(self) -> Op[None]:
        """Look at the master before each connection, and copy its tables, until the stop."""
        copied_at: int | None = None
        while not self._stopping:
            at = yield from steady()
            try:
                if not self.following.is_connected or copied_at is None or at - copied_at >= self.settings.slave_sync_ms:
                    master = yield from self._ask()
                    yield from self._copy_tables(master.address)
                    copied_at, self.problem, self.end_offset = at, None, master.end_offset
                    self.following.master = self.settings.master_slave_port or master.slave_port
            except HalfmoonError as exc:
                if self.problem != str(exc):
                    self._warnings.warning("the master's log is not copied: broker=%s reason=%s", self.settings.name, exc)
                self.problem = str(exc)
                if not self.following.is_connected:
                    self.following.master = None
            yield from sleep(LOOK_MS)

    def _ask(self) -> Op[Master]:
        """Return the master, after a comparison of both logs unless one is copied now. Raises HalfmoonError."""
        address = yield from self._address()
        texts = from_json(KVTable, (yield from _call(address, GetBrokerRuntimeInfo())).body).table
        text = bytes((yield from _call(address, GetBrokerConfig())).body).decode(errors="replace")
        config = {key: value for _, key, value in parse_properties(text)}
        master = _described(address, texts, config)
        if (name := config.get("brokerName")) != self.settings.name:
            raise NotCopied(f"{address} is broker {name}, not {self.settings.name}")
        size = self._store_settings.commit_log_file_bytes
        if (theirs := config.get("mappedFileSizeCommitLog")) != str(size):
            raise NotCopied(
                f"the log files of the master have {theirs} bytes: set mappedFileSizeCommitLog={theirs}, here it is {size}"
            )
        if not self.following.is_connected:
            yield from self._compare(master)
        return master

    def _address(self) -> Op[str]:
        """Return the address of the master, from the first name server that knows it. Raises HalfmoonError."""
        reason: Exception = NotCopied("no name server is given: add --nameserver")
        for name_server in split_addresses(self.settings.nameserver):
            try:
                info = from_json(ClusterInfo, (yield from _call(name_server, GetBrokerClusterInfo())).body)
            except HalfmoonError as exc:
                reason = exc
                continue
            data = info.broker_addr_table.get(self.settings.name)
            if data is not None and 0 in data.broker_addrs:
                return data.broker_addrs[0]
            reason = NotCopied(f"name server {name_server} knows no master called {self.settings.name}")
        raise reason

    def _compare(self, master: Master) -> Op[None]:
        """Check that this log is a part of the master's, or empty. Raises HalfmoonError."""
        store, end = self.store, self.store.end_offset
        if end == store.min_offset:
            if end < master.min_offset:
                store.copying().begin(master.min_offset)
            self.following.wants_whole_log = master.sends_whole_log
            return
        if end < master.min_offset:
            raise NotCopied(
                f"this log ends at {end}, but the oldest file of the master begins at {master.min_offset}: empty the directory"
            )
        if end > master.end_offset:
            raise NotCopied(
                f"this log ends at {end}, behind the end of the master's at {master.end_offset}: the master lost messages that are"
                " here, or is another broker; empty the directory, or start a master on it"
            )
        place = self._last_record()
        mine = store.record(place)
        theirs = (yield from _call(master.address, ViewMessageById(offset=place))).body
        if mine is None or bytes(mine) != bytes(theirs):
            raise NotCopied(f"the records at {place} differ: this is not a copy of the master's log; empty the directory")

    def _last_record(self) -> int:
        """Return the offset of the last record in a log that is not empty."""
        log_, end = self.store.log, self.store.end_offset
        start = max(log_.first, log_.segments.base(max(0, end - 1)) - log_.file_bytes)
        while not log_.view(start, 8):
            start += log_.file_bytes
        return max(place for place, _ in log_.scan(start, end, known_to=end))

    # ------------------------------------------------------------ tables

    def _copy_tables(self, address: str) -> Op[None]:
        """Save the master's tables that changed since they were last saved. Raises HalfmoonError."""
        for path, (header, body) in TABLES.items():
            data = to_json(from_json(body, (yield from _call(address, header())).body, bounds=None))
            if self._saved.get(path) != data:
                self._starts.append(self._save(path, data))

    def _save(self, path: str, data: bytes) -> Work[None]:
        def done(result: Exception | None, now: Instant) -> None:
            if isinstance(result, Exception):
                self._warnings.warning("a table of the master cannot be saved: path=%s error=%s", path, result)
            else:
                self._saved[path] = data

        return Work(lambda: self._disk.save(path, data), done, False, f"save {path}")


def _call(address: str, header: Any) -> Op[Command]:
    """Ask, and return the reply. Raises NetworkError, BrokerError."""
    reply: Command = yield Call(address, header, b"", ASK_MS)
    if reply.code != 0:
        raise broker_error(reply.code, reply.remark, address)
    return reply


def _described(address: str, texts: Mapping[str, str], config: Mapping[str, str]) -> Master:
    """Return a master by its runtime information and its settings. Raises NotCopied for others."""
    try:
        host, port = split_address(address)
        slaves = f"{config.get('brokerIP2') or host}:{int(config.get('haListenPort') or 0) or port + 1}"
        offsets = max(0, int(texts["commitLogMinOffset"])), int(texts["commitLogMaxOffset"])  # -1: it has no file yet
    except (KeyError, ValueError) as exc:
        raise NotCopied(f"{address} does not describe itself as RocketMQ's brokers do: {exc}") from None
    return Master(address, slaves, *offsets, texts.get(GIVES_WHOLE_LOG) == "true")
