"""`Standby`: a slave's copy of a master: the log and the tables, so that a broker can start on its directory. It serves nobody.

A `halfmoon.ports.Core` with one outgoing connection, and an operation beside it. Before each connection the operation asks the
master who it is and how far its log reaches, and compares the last record of both: a log that is not a part of the master's is
never appended to. The tables (topics, groups, progress of groups and delays) are copied every ``slave_sync_ms``.
Follows SlaveSynchronize and BrokerController (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from halfmoon.broker.admin.configuration import PATH as SETTINGS
from halfmoon.broker.admin.trimming import PATH as TRIMS
from halfmoon.broker.consumers.assignment import PATH as MODES
from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.consumers.locks import PATH as LOCKS
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.copies.asking import answer, queue_ends
from halfmoon.broker.copies.copied_timer import CopiedTimer
from halfmoon.broker.copies.copies import EPOCHS
from halfmoon.broker.copies.following import Following
from halfmoon.broker.copies.states import States
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.delay.progress import PATH as DELAYS
from halfmoon.broker.delay.progress import TIMER_PATH as TIMER
from halfmoon.broker.names import HALF_TOPIC, TRANSACTIONS_GROUP
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.topics import PATH as TOPICS
from halfmoon.broker.uptime import PATH as UPTIME
from halfmoon.effects import CoreEffect, Op, Start, Work, sleep, steady
from halfmoon.errors import BrokerError, HalfmoonError, PeerError
from halfmoon.instant import Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.model import split_address, split_addresses
from halfmoon.ports import Disk
from halfmoon.settings import agreed, properties_text
from halfmoon.settings.properties import parse_properties
from halfmoon.store.epochs import Common, EpochRow, Epochs, common_end, parse
from halfmoon.store.journal import Row
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.store.transactions.slave_index import SlaveIndex
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
from halfmoon.wire.copying import FILE, NOBODY, WHOLE_LOG, Hello, State
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerHaStatus, GetBrokerRuntimeInfo
from halfmoon.wire.headers.delay import GetAllDelayOffset
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import GetAllConsumerOffset
from halfmoon.wire.headers.pull import ViewMessageById
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.headers.topic import GetAllTopicConfig
from halfmoon.wire.ids import pack_host
from halfmoon.wire.signature import Credentials

log = logging.getLogger("halfmoon.broker")

LOOK_MS = 1_000
"""Pause between two looks at the connection."""
TABLES: Mapping[str, tuple[type[Any], type[Any]]] = {
    TOPICS: (GetAllTopicConfig, TopicConfigTable),
    GROUPS: (GetAllSubscriptiongroupConfig, SubscriptionGroupTable),
    OFFSETS: (GetAllConsumerOffset, ConsumerOffsetTable),
    DELAYS: (GetAllDelayOffset, DelayOffsetTable),
}
"""The request for each table, by the path of its file, and the class of its body."""
COPIED_TABLES = frozenset({*TABLES, SETTINGS, TRIMS, TIMER, MODES, UPTIME, LOCKS})
"""Every table that a broker saves."""
NO_MASTER = "the pair has no master"
"""Problem of a follower before there is a master: nothing to log."""
RESYNC = "start it with --resync, which keeps this copy aside and copies everything again"
"""Remedy for a copy that cannot go on."""


class NotCopied(HalfmoonError):
    """The master's log cannot be copied to this directory; the text says why and what to do."""


class Outdated(NotCopied):
    """A copy cannot go on, and the master has everything that counts: an empty one could."""


class Master(NamedTuple):
    """A master as it describes itself."""

    address: str
    slave_port: str
    """Address where slaves copy its log."""
    min_offset: int
    end_offset: int
    is_ours: bool
    """It is a broker of Halfmoon, which sends everything that a slave needs."""
    epochs: tuple[EpochRow, ...]


class Standby:
    """The copy of one master, the broker ``settings.name``. ``problem`` says why nothing is copied now; None: it is.

    ``account`` signs for it at the master's port for slaves.
    """

    def __init__(
        self, settings: BrokerSettings, store_settings: StoreSettings, disk: Disk, epochs: Epochs, now: Instant,
        account: Credentials | None = None,
    ) -> None:  # fmt: skip
        self.settings, self._store_settings, self._disk, self.epochs = settings, store_settings, disk, epochs
        host, levels = pack_host(f"{settings.address}:{settings.port or 1}"), Levels(settings.delay_levels)
        self.store = Store.open(disk, store_settings, host, now, tag_code=levels.tag_code, is_slave=True)
        self.transactions = SlaveIndex(disk, self.store, store_settings, lambda: _settled_below(disk.read(OFFSETS)), now.steady)
        self.timer = CopiedTimer(self.store, self._save)
        self.following = Following(settings, self.store, now, self._save_state, account)
        self.problem: str | None = "the master was not asked yet"
        self.pair_master: str | None = None
        """Address of the master of a pair, empty while there is none; None: it is no pair, and the name servers know the master."""
        self.is_spare = False
        """It is a third member of a pair."""
        self.cut_at: int | None = None
        """Offset at which this log must be cut before it can follow the master; None: it need not be."""
        self.outdated: str | None = None
        """Why this copy cannot go on, and another would have to begin; None: it can, or a person has to decide."""
        self.remedy = RESYNC
        """Text that says what to do about that, or what is done."""
        self.end_offset = -1
        """Where the log of the master ended when it was last asked; -1: never."""
        self.on_stored: Callable[[], None] = self.store.drop_arrivals
        """Called when messages may have become visible; takes out the arrivals."""
        self.on_table: Callable[[str, bytes], None] = lambda path, data: None
        """Called with each table of the master's that differs from the last one, and with the path of its file."""
        self._saved: dict[str, bytes] = {}
        self._unsaved: dict[str, tuple[bytes, tuple[Callable[[Exception | None], None], ...]]] = {}
        """Tables that wait until another one is saved, with who wants to know."""
        self._is_saving = False
        self._now = now.steady
        self._save_error: str | None = None
        self._starts: list[CoreEffect] = []
        self._stopping = False
        self.next_operation: Callable[[], Op[bool]] | None = None
        """Operation that takes the place of the next look at the master. It returns whether the slave goes on after it."""
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
        self._now = now.steady
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
        dues = self.store.due(), self.following.due(now), self.transactions.due(now.steady)
        return min(filter(None, dues), default=None)

    def tick(self, now: Instant) -> None:
        """Deadlines and periodic work."""
        self._warnings.tick(now.steady)
        self.store.tick(now)
        self.transactions.tick(now.steady)
        self.following.tick(now)

    def effects(self) -> list[CoreEffect]:
        """Take out reports, syncs, tables to save, operations to start."""
        self.on_stored()
        starts, self._starts = self._starts, []
        return [*self.following.effects(), *self.store.work(), *self.transactions.work(), *starts]

    def stop(self, now: Instant) -> list[Op[Any]]:
        """Begin a clean stop."""
        self._stopping = True
        self.store.stop(now)
        self.transactions.stop(now)
        return []

    def unready(self) -> str | None:
        """Return why nothing is copied now; None: it is."""
        problem = self.problem or self.following.refusal
        return self.store.failure or problem or (None if self.following.is_connected else "not connected to the master")

    def lost_at_stop(self) -> str | None:
        """Return, after a stop, why what was copied may not be on the disk; None: it is."""
        return None if self.store.failure is None else f"the last messages: {self.store.failure}"

    def close(self, now: Instant) -> None:
        """Give the directory back. Waits for the device."""
        self.transactions.close(now)
        self.store.close(now)

    # ------------------------------------------------------------ the master

    def keep(self) -> Op[None]:
        """Look at the master before each connection, and copy its tables, until the stop."""
        copied_at: int | None = None
        while not self._stopping:
            if (operation := self.next_operation) is not None:
                self.next_operation = None
                if not (yield from operation()):
                    return
            at = yield from steady()
            try:
                if not self.following.is_connected or copied_at is None or at - copied_at >= self.settings.slave_sync_ms:
                    master = yield from self.ask()
                    if not master.is_ours:
                        yield from self.copy_tables(master.address)
                        yield from self.timer.ask(master.address)
                    copied_at, self.problem, self.outdated, self.end_offset = at, None, None, master.end_offset
                    self.following.master = self.settings.master_slave_port or master.slave_port
            except HalfmoonError as exc:
                if self.problem != str(exc):
                    self._warnings.warning("the master's log is not copied: broker=%s reason=%s", self.settings.name, exc)
                self.problem = str(exc)
                self.outdated = self.problem if isinstance(exc, Outdated) else None
                if not self.following.is_connected:
                    self.following.master = None
            yield from sleep(LOOK_MS)

    def ask(self) -> Op[Master]:
        """Return the master, after a comparison of both logs unless one is copied now. Raises HalfmoonError."""
        address = yield from self.address()
        texts = from_json(KVTable, (yield from answer(address, GetBrokerRuntimeInfo())).body).table
        text = bytes((yield from answer(address, GetBrokerConfig())).body).decode(errors="replace")
        config = {key: value for _, key, value in parse_properties(text)}
        master = _described(address, texts, config)
        if (name := config.get("brokerName")) != self.settings.name:
            raise NotCopied(f"{address} is broker {name}, not {self.settings.name}")
        if config.get("brokerId", "0") != "0":
            raise NotCopied(f"{address} is not the master")
        size = self._store_settings.commit_log_file_bytes
        if (theirs := config.get("mappedFileSizeCommitLog")) != str(size):
            raise NotCopied(
                f"the log files of the master have {theirs} bytes: set mappedFileSizeCommitLog={theirs}, here it is {size}"
            )
        if not self.following.is_connected:
            self._check_agreed(config)
            yield from self.compare(master)
            if master.is_ours and self.pair_master is not None:
                own = f"{self.settings.address}:{self.settings.port}"
                yield from answer(address, GetBrokerHaStatus(member=self.epochs.member, member_addr=own))
            self._greet(master)
        return master

    def _check_agreed(self, theirs: Mapping[str, str]) -> None:
        """Raise NotCopied where the members of a pair differ in a setting that both must have the same."""
        if self.pair_master is None:
            return
        text = properties_text(self.settings, self._store_settings)
        mine = {key: value for _, key, value in parse_properties(text)}
        for key in (*agreed(BrokerSettings), *agreed(StoreSettings)):
            if theirs.get(key) != mine[key]:
                raise NotCopied(
                    f"both members of a pair must have the same {key}: the master has {theirs.get(key)}, here it is {mine[key]}"
                )

    def _greet(self, master: Master) -> None:
        """Take the epochs of a master of ours, and say from now on who follows it. Raises NotCopied."""
        if not master.is_ours:
            self.following.hello = None
            return
        try:
            self.epochs.adopt(master.epochs)
        except OSError as exc:
            raise NotCopied(f"the epochs of the master cannot be saved: {exc}") from exc
        epoch = master.epochs[-1].epoch if master.epochs else 0
        member = NOBODY if self.pair_master is None else bytes.fromhex(self.epochs.member)
        self.following.hello = Hello(member, epoch, WHOLE_LOG)

    def address(self) -> Op[str]:
        """Return the address of the master, from the first name server that knows it. Raises HalfmoonError."""
        if self.pair_master == "":
            raise NotCopied(NO_MASTER)
        if self.pair_master is not None:
            return self.pair_master
        reason: Exception = NotCopied("no name server is given: add --nameserver")
        for name_server in split_addresses(self.settings.nameserver):
            try:
                info = from_json(ClusterInfo, (yield from answer(name_server, GetBrokerClusterInfo())).body)
            except HalfmoonError as exc:
                reason = exc
                continue
            data = info.broker_addr_table.get(self.settings.name)
            if data is not None and 0 in data.broker_addrs:
                return data.broker_addrs[0]
            reason = NotCopied(f"name server {name_server} knows no master called {self.settings.name}")
        raise reason

    def compare(self, master: Master) -> Op[None]:
        """Check that this log is a part of the master's, or empty. Raises HalfmoonError."""
        store, end = self.store, self.store.end_offset
        if end == store.min_offset:
            yield from self._copy_queue_ends(master)
            if end < master.min_offset:
                store.copying().begin(master.min_offset)
            return
        if end < master.min_offset:
            reason = f"this log ends at {end}, but the oldest file of the master begins at {master.min_offset}"
            raise self._cannot_go_on(master, reason)
        if self._must_cut(master):
            reason = f"this log ends at {end}, and has in common with the master's only what lies before {self.cut_at}"
            raise NotCopied(reason) if self.pair_master is not None else self._cannot_go_on(master, reason)
        if end > master.end_offset:
            raise NotCopied(
                f"this log ends at {end}, behind the end of the master's at {master.end_offset}: the master lost messages that are"
                " here, or is another broker; empty the directory, or start a master on it"
            )
        place = self._last_record()
        mine = store.record(place)
        try:
            theirs = (yield from answer(master.address, ViewMessageById(offset=place))).body
        except BrokerError:  # a master shows nothing that is not kept yet, and no message of a deleted topic
            if common_end(self.epochs.rows, end, master.epochs, master.end_offset).end >= end:
                return
            if self.pair_master is not None or not master.is_ours or not self.epochs.rows:
                raise
            reason = f"the master's log has another history than this one, and no record at {place}"
            raise self._cannot_go_on(master, reason) from None
        if mine is None or bytes(mine) != bytes(theirs):
            reason = f"the records at {place} differ: this is not a copy of the master's log"
            is_for_a_person = mine is None or self.pair_master is not None
            raise NotCopied(f"{reason}; empty the directory") if is_for_a_person else self._cannot_go_on(master, reason)

    def _cannot_go_on(self, master: Master, reason: str) -> NotCopied:
        """Return the refusal of a copy that cannot go on.

        It may start over, unless the master does not know the last epoch here, and has none that came after it, or went on itself
        from before the end of this log: then messages may be here alone.
        """
        mine, theirs, end = self.epochs.rows, master.epochs, self.store.end_offset
        common = common_end(mine, end, theirs, master.end_offset)
        after = _row_after(common, theirs)
        lost_its_end = common.row is not None and common.end < end and after is not None and after.member == common.row.member
        if lost_its_end or (mine and theirs and mine[-1] not in theirs and mine[-1].epoch >= theirs[-1].epoch):
            return NotCopied(f"{reason}, and may have messages that the master lost: start a master on it, or empty the directory")
        return Outdated(f"{reason}: {self.remedy}")

    def _copy_queue_ends(self, master: Master) -> Op[None]:
        """Note where the master's queues end: the log says nothing of those whose messages expired. Raises HalfmoonError."""
        try:
            ends, refused = yield from queue_ends(master.address, everything=not master.is_ours)
            if refused:
                self._warnings.warning("where queues without messages end at the master is not known: topics=%s", " ".join(refused))
            self.store.raise_floors(ends)
        except OSError as exc:
            raise NotCopied(f"the ends of the master's queues cannot be saved: {exc}") from exc

    def _must_cut(self, master: Master) -> bool:
        """Return whether another master went on before the end of this log: what lies behind was never promised.

        Not so if the same master lost its end: then its messages are here alone. Raises NotCopied for a master of an earlier epoch.
        """
        mine, end = self.epochs.rows, self.store.end_offset
        if not master.is_ours or not mine:
            return False
        common = common_end(mine, end, master.epochs, master.end_offset)
        if common.row is None or common.end >= end:
            return False
        after = _row_after(common, master.epochs)
        if after is None or (after.member == common.row.member and self.pair_master is None):
            return False
        if (last := mine[-1].epoch) >= (theirs := master.epochs[-1].epoch):
            raise NotCopied(
                f"this log has epoch {last} of {_shown(mine[-1])}, and the master is that of epoch {theirs} of"
                f" {_shown(master.epochs[-1])}: the lease had an older record, or one of them ran without it. Each log may have"
                " acknowledged messages that the other lacks: a person decides"
            )
        self.cut_at = common.end
        return True

    def _last_record(self) -> int:
        """Return the offset of the last record in a log that is not empty."""
        log_, end = self.store.log, self.store.end_offset
        start = max(log_.first, log_.segments.base(max(0, end - 1)) - log_.file_bytes)
        while not log_.view(start, 8):
            start += log_.file_bytes
        return max(place for place, _ in log_.scan(start, end, known_to=end))

    # ------------------------------------------------------------ tables

    @property
    def is_saved(self) -> bool:
        """Return whether the tables that were last copied are saved. Raises NotCopied: one cannot be; it is tried again."""
        if self._save_error is not None:
            raise NotCopied(self._save_error)
        return not (self._is_saving or self._unsaved or self._starts)

    def copy_tables(self, address: str) -> Op[None]:
        """Save the master's tables that changed since they were last saved. Raises HalfmoonError."""
        self._save_error = None
        for path, (header, body) in TABLES.items():
            data = to_json(from_json(body, (yield from answer(address, header())).body, bounds=None))
            if path == OFFSETS:
                self._settle(data)
            if self._saved.get(path) != data:
                self._save(path, data)

    def _settle(self, offsets: bytes) -> None:
        """Have the index know what the master settled. Raises NotCopied."""
        try:
            self.transactions.settle_below(_settled_below(offsets))
        except OSError as exc:
            raise NotCopied(f"it cannot be saved which half messages the master settled: {exc}") from exc

    def _save_state(self, state: State, saved: Callable[[State, Exception | None], None]) -> None:
        """Save a state that the master sent; what is no table of a broker, and no row that is copied, is left out."""
        if state.kind in States.COPIED:
            try:
                self.store.journal.write(Row(state.kind, state.name, state.value))
                saved(state, None)
            except OSError as exc:
                saved(state, exc)
            return
        path = state.name.decode(errors="replace")
        if state.kind != FILE or path not in COPIED_TABLES:
            self._warnings.warning("a state of the master is not copied: kind=%d name=%r", state.kind, state.name[:80])
        elif state.value is not None:
            try:
                table = from_json(TABLES[path][1], state.value, bounds=None) if path in TABLES else None
            except PeerError as exc:
                saved(state, exc)
                return
            if isinstance(table, TopicConfigTable):
                self._drop_deleted(table)
            self._save(path, state.value, lambda error: saved(state, error))
            return
        saved(state, None)

    def _save(self, path: str, data: bytes, then: Callable[[Exception | None], None] = lambda error: None) -> None:
        """Save a table. One save at a time, and of a table that changed again meanwhile the newest."""
        _, others = self._unsaved.get(path, (b"", ()))
        self._unsaved[path] = data, (*others, then)
        if not self._is_saving:
            self._next_save()

    def _next_save(self) -> None:
        path = next(iter(self._unsaved))
        data, callbacks = self._unsaved.pop(path)
        self._is_saving = True

        self.on_table(path, data)

        def done(result: Exception | None, now: Instant) -> None:
            self._is_saving = False
            error = result if isinstance(result, Exception) else None
            if error is not None:
                self._save_error = f"a table of the master cannot be saved: path={path} error={error}"
                self._warnings.warning("%s", self._save_error)
            else:
                self._saved[path] = data
            for then in callbacks:
                then(error)
            if self._unsaved:
                self._next_save()

        self._starts.append(Work(lambda: self._disk.save(path, data), done, False, f"save {path}"))

    def _drop_deleted(self, table: TopicConfigTable) -> None:
        """Delete the queues of topics that the master did not have any more when its log was as long as this one."""
        for topic in self.store.topics():
            if topic not in table.topic_config_table:
                self.store.delete_topic(topic, self._now)


def _settled_below(offsets: bytes | None) -> int:
    """Return the half queue offset below which a master settled everything, by its table of offsets; 0: nobody knows."""
    try:
        table = from_json(ConsumerOffsetTable, offsets or b"{}", bounds=None).offset_table
    except PeerError:
        return 0
    return table.get(f"{HALF_TOPIC}@{TRANSACTIONS_GROUP}", {}).get(0, 0)


def _row_after(common: Common, theirs: Sequence[EpochRow]) -> EpochRow | None:
    """Return the epoch with which the master went on after the last one in common; None: it did not, or none is."""
    return None if common.row is None else next((row for row in theirs if row.epoch > common.row.epoch), None)


def _shown(row: EpochRow) -> str:
    return f"member {row.member[:8]}, from offset {row.start} on"


def _described(address: str, texts: Mapping[str, str], config: Mapping[str, str]) -> Master:
    """Return a master by its runtime information and its settings. Raises NotCopied for others."""
    try:
        host, port = split_address(address)
        slaves = f"{config.get('brokerIP2') or host}:{int(config.get('haListenPort') or 0) or port + 1}"
        offsets = max(0, int(texts["commitLogMinOffset"])), int(texts["commitLogMaxOffset"])  # -1: it has no file yet
    except (KeyError, ValueError) as exc:
        raise NotCopied(f"{address} does not describe itself as RocketMQ's brokers do: {exc}") from None
    epochs = texts.get(EPOCHS)
    try:
        return Master(address, slaves, *offsets, epochs is not None, parse(epochs or ""))
    except PeerError as exc:
        raise NotCopied(f"{address} does not describe itself as Halfmoon's brokers do: {exc}") from None
