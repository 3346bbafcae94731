"""The core of a name server: frames in, answers out, brokers that fell silent forgotten. Implements `ports.Core`.

Joins the connections (`wire.peer`), the tables (`routes`, `kv`) and the answers (`handlers`). Never waits: tables are saved as
`Work`, and an answer that promises a durable change goes out when its save is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from halfmoon.effects import CoreEffect, Work
from halfmoon.errors import BadHeader, BrokerError, PeerError, StoreError, SystemBusy
from halfmoon.instant import BEGINNING, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.nameserver import kv
from halfmoon.nameserver.handlers import CHANGES_PATH, Handlers, NameServerReply, NameServerRequest, refusal
from halfmoon.nameserver.kv import KeyValues
from halfmoon.nameserver.registrars import Registrars
from halfmoon.nameserver.routes import Routes
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.ports import Disk
from halfmoon.wire.command import Command, decode, encode, reply_command
from halfmoon.wire.peer import ANSWERED_BYTES_A_TURN, OVERLOAD, Asked, Peer, Peers, RequestBacklog
from halfmoon.wire.table import REQUESTS, not_supported, request_text, shortened

log = logging.getLogger("halfmoon.nameserver")
audit = logging.getLogger("halfmoon.audit")

FIRST_SCAN_MS = 5_000
"""When silent brokers are first looked for. Follows NamesrvController (4.9.8)."""

LOCK = "lock"
"""The lock file of its directory."""

REMARK_LENGTH_MAX = 2_000
"""Longest remark of an answer: it may repeat what the peer sent."""


class NameServer:
    """One name server. ``disk`` is its directory; without one, nothing outlives a restart. ``now`` is when it begins.

    Raises:
        StoreLocked: another one has the directory.
        StoreError: a saved file does not read, and neither does the one saved before it.
    """

    def __init__(self, settings: NameServerSettings, disk: Disk | None = None, *, now: Instant = BEGINNING) -> None:
        self.routes = Routes(expiry_ms=settings.broker_expiry_ms, brokers_max=settings.brokers_max, topics_max=settings.topics_max)
        self.values = KeyValues(
            entries_max=settings.kv_entries_max, value_bytes_max=settings.kv_value_bytes_max, bytes_max=settings.kv_bytes_max
        )
        self.handlers = Handlers(settings, self.routes, self.values)
        self.handlers.answer_later = self._answer_later
        self.registrars = Registrars(settings)
        self.peers = Peers()
        self._backlog = RequestBacklog()
        self._refusals = RateLimitedLog(audit, now.steady)
        self._saves = _Saves(disk, self.handlers.dump)
        self.start(now)
        self._stopping = False
        self._lock = disk.lock(LOCK) if disk is not None else None
        if disk is not None:
            try:
                _load(disk, kv.PATH, self.values.load)
                _load(disk, CHANGES_PATH, self._load_changes)
            except StoreError:
                self._release()
                raise

    @property
    def settings(self) -> NameServerSettings:
        """The settings as they are now; some can be changed by a request."""
        return self.handlers.settings

    def _load_changes(self, data: bytes) -> None:
        try:
            self.handlers.change(data.decode())
        except BrokerError as exc:
            raise ValueError(exc.remark) from None

    def codes(self) -> frozenset[int]:
        """Return the codes of the requests that it answers."""
        return frozenset(self.handlers.table)

    # ------------------------------------------------------------ the runtime's calls

    def start(self, now: Instant) -> None:
        """Begin."""
        self.handlers.started_at = now.steady
        self._scan_at = now.steady + FIRST_SCAN_MS

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Note an accepted connection."""
        self.peers.connected(peer, remote, now.steady)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in the certificate of a connection."""
        self.peers.certified(peer, names)

    def feed(self, peer: int, data: bytes) -> None:
        """Bytes arrived."""
        self.peers.feed(peer, data)

    def commit(self, now: Instant) -> bool:
        """Answer what was fed since the last call, of each connection a share; return whether more is left."""
        self._refusals.tick(now.steady)
        waits = []
        for asked in self._backlog.turn(self.peers.take(now.steady)):
            if asked[0].out_bytes < ANSWERED_BYTES_A_TURN:
                self._handle_guarded(asked, self._handle, now)
            else:
                waits.append(asked)
        excess, self._backlog.excess = self._backlog.excess, []
        self._backlog.put_back(waits)
        for asked in excess:
            self._handle_guarded(asked, self._refuse_excess, now)
        for peer, _ in self._backlog.emptied():
            self._forget(peer.number)
        return self._backlog.is_due

    def _handle_guarded(self, asked: Asked, handle: Callable[[Peer, Command, Instant], None], now: Instant) -> None:
        try:
            self._handle_frame(asked, handle, now)
        except Exception as exc:  # our own mistake: the other requests of this turn do not feel it
            log.error("a request of %s failed", asked[0].remote, exc_info=exc)
            self.peers.close(asked[0], "what it asked failed")

    def _handle_frame(self, asked: Asked, handle: Callable[[Peer, Command, Instant], None], now: Instant) -> None:
        peer, data, (serialization, head, body, end) = asked
        try:
            command = decode(data[head:body], data[body:end], serialization)
        except BadHeader as exc:
            self.peers.stop_reading(peer, str(exc))
            return
        if not command.is_response and (command.is_oneway or not peer.closing):
            handle(peer, command, now)

    def _refuse_excess(self, peer: Peer, command: Command, now: Instant) -> None:
        self._refuse(peer, command, SystemBusy(OVERLOAD))

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Note that a connection does not read its answers, or does again."""
        if (known := self.peers.get(peer)) is not None:
            self._backlog.set_slow(known, is_slow=is_slow)

    def unanswered(self, peer: int) -> bool:
        """Return whether requests of a connection wait for their turn."""
        return (known := self.peers.get(peer)) is not None and known in self._backlog

    def lost(self, peer: int, now: Instant) -> None:
        """Forget a lost connection, once its one-way requests are carried out."""
        if (known := self.peers.get(peer)) is None or not self._backlog.lost(known):
            self._forget(peer)

    def _forget(self, peer: int) -> None:
        """Forget a connection, and the brokers that registered over it."""
        self.peers.lost(peer)
        self.handlers.large_registrations.lost(peer)
        for address in self.routes.lost(peer):
            log.warning("broker lost its connection: address=%s", address)

    def due(self, now: Instant) -> Steady | None:
        """When to look for silent connections and brokers."""
        idle = self.peers.due()
        if not self.routes.live_count:
            return idle
        return self._scan_at if idle is None else min(idle, self._scan_at)

    def tick(self, now: Instant) -> None:
        """Close silent connections, forget silent brokers."""
        self.peers.tick(now.steady)
        if now.steady < self._scan_at:
            return
        self._scan_at = now.steady + self.settings.scan_ms
        for address, number in self.routes.expire(now.steady):
            log.warning("broker fell silent: address=%s", address)
            peer = self.peers.get(number)
            if peer is not None:
                self.peers.close(peer, f"broker {address} did not register in time")

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be done."""
        works = [*self.handlers.large_registrations.works(), *self._saves.works()]
        if self._stopping and self._saves.idle:
            self._release()
        return [*self.peers.effects(self._backlog), *works]

    def stop(self, now: Instant) -> list[Any]:
        """Nothing is left to drive: saves that are under way are the runtime's to await; after the last the directory is free."""
        self._stopping = True
        return []

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ------------------------------------------------------------ requests

    def _handle(self, peer: Peer, command: Command, now: Instant) -> None:
        handler = self.handlers.table.get(command.code)
        if handler is None:
            self._answer(peer, command, 3, not_supported(command.code))
            return
        try:
            self.registrars.check(command, peer, now)
            reply = handler(NameServerRequest(command, peer.number, now))
        except Exception as exc:
            self._refuse(peer, command, exc)
            return
        if reply is None:  # answered later
            return
        if reply.saved is None:
            self._answer(peer, command, 0, None, reply)
        else:
            self._saves.ask(reply.saved, partial(self._saved, peer, command, reply))

    def _refuse(self, peer: Peer, command: Command, exc: Exception) -> None:
        if not isinstance(exc, BrokerError | PeerError):  # our own mistake: this request fails, the connection goes on
            log.error("request failed: request=%s", request_text(command.code), exc_info=exc)
        self._answer(peer, command, *refusal(exc))

    def _answer_later(self, request: NameServerRequest, outcome: NameServerReply | Exception) -> None:
        peer = self.peers.get(request.peer)
        if peer is None:
            return
        if isinstance(outcome, NameServerReply):
            self._answer(peer, request.command, 0, None, outcome)
        else:
            self._refuse(peer, request.command, outcome)

    def _saved(self, peer: Peer, command: Command, reply: NameServerReply, error: Exception | None) -> None:
        if error is None:
            self._answer(peer, command, 0, None, reply)
        else:
            self._answer(peer, command, 1, f"changed in memory, but not saved: {error}")

    def _answer(self, peer: Peer, command: Command, code: int, remark: str | None, reply: NameServerReply | None = None) -> None:
        line = REQUESTS.get(command.code)
        if line is not None and line.operated:
            self._tell(peer, line.asked(command.fields, command.body), code, remark or "")
        if command.is_oneway or self.peers.get(peer.number) is not peer:
            return
        header, body = (reply.header, reply.body) if reply is not None else (None, b"")
        text = remark[:REMARK_LENGTH_MAX] if remark is not None else None
        answer = encode(reply_command(command, code, text, header, body))
        peer.out_bytes += len(answer)
        self.peers.answer(peer, answer)
        if code:
            self.peers.refused(code)

    def _tell(self, peer: Peer, asked: str, code: int, remark: str) -> None:
        """Log an administrative request and what came of it; refusals at a bounded rate. Name servers know no accounts."""
        if code == 0:
            audit.info("%s from %s: done", asked, peer.remote)
        else:
            self._refusals.warning("%s from %s: refused (%d): %s", asked, peer.remote, code, shortened(remark))


# ---------------------------------------------------------------- files


class _Saves:
    """Small files saved whole: one save of a file at a time, and who asked waits for the save that has their change."""

    def __init__(self, disk: Disk | None, dump: Callable[[str], bytes]) -> None:
        self._disk, self._dump = disk, dump
        self._waiting: dict[str, list[Callable[[Exception | None], None]]] = {}
        self._busy: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether no save is under way or asked for."""
        return not self._busy and not self._waiting

    def ask(self, path: str, then: Callable[[Exception | None], None]) -> None:
        """Have a file saved; ``then`` is told the error, or None."""
        if self._disk is None:
            then(None)
        else:
            self._waiting.setdefault(path, []).append(then)

    def works(self) -> list[Work[None]]:
        """Take out the saves that can begin now."""
        works: list[Work[None]] = []
        for path in [path for path in self._waiting if path not in self._busy]:
            assert self._disk is not None
            waiting = self._waiting.pop(path)
            self._busy.add(path)
            run = partial(self._disk.save, path, self._dump(path))
            works.append(Work(run, partial(self._done, path, waiting), name=f"save {path}"))
        return works

    def _done(self, path: str, waiting: list[Callable[[Exception | None], None]], result: Any, now: Instant) -> None:
        self._busy.discard(path)
        error = result if isinstance(result, Exception) else None
        if error is not None:
            log.error("a file was not saved: path=%s error=%s", path, error)
        for then in waiting:
            then(error)


def _load(disk: Disk, path: str, take: Callable[[bytes], None]) -> None:
    """Give a saved file to ``take``, or the one saved before it when it does not read. A missing file is none at all."""
    reasons = []
    for name in (path, f"{path}.bak"):
        data = disk.read(name)
        if data is None:
            continue
        try:
            take(data)
            return
        except ValueError as exc:  # what does not decode is one too
            reasons.append(f"{name}: {exc}")
    if reasons:
        raise StoreError(f"no saved file reads: {'; '.join(reasons)}")
