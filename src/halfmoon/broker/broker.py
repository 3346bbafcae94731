"""The broker core: takes the turns of the loop, gives each request to its service, and collects what is to be done.

`Broker` implements `ports.Core`. Sends are read and stored a turn at a time (`broker.send.gate`), everything else goes
through one table of handlers. Never waits, never looks at a clock, opens no file by itself.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any

from halfmoon.broker.admin import SAVED, Admin
from halfmoon.broker.batches.batches import Batches
from halfmoon.broker.consumers.clients import Clients
from halfmoon.broker.consumers.groups import Groups
from halfmoon.broker.consumers.locks import Locks
from halfmoon.broker.consumers.membership import Membership
from halfmoon.broker.consumers.offsets import Offsets
from halfmoon.broker.consumers.progress import Progress
from halfmoon.broker.consumers.redelivery import Redelivery
from halfmoon.broker.consumers.reset import Resets
from halfmoon.broker.context import Context
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.pull.deleted_topics import StaleOffsets
from halfmoon.broker.pull.hold import EXPIRED_A_TICK, Hold, Holds
from halfmoon.broker.pull.pulls import LAST_MS, Pulls, Waiting
from halfmoon.broker.pull.query import Queries
from halfmoon.broker.pull.ranges import RangeReads
from halfmoon.broker.registration import Registration, Told
from halfmoon.broker.relay import Relay
from halfmoon.broker.request import Handler, Reply, Request, refusal_of, reply_to
from halfmoon.broker.send.gate import Gate
from halfmoon.broker.send.pending_replies import Durable, refused
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.send.waiting_for_queue import Firsts
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.stats import Stats
from halfmoon.broker.tables import Tables
from halfmoon.broker.topics import Topics
from halfmoon.broker.transactions.transactions import Transactions
from halfmoon.effects import CoreEffect, Op, Start, Work
from halfmoon.errors import BadHeader, ResponseCode, ServiceNotAvailable
from halfmoon.hot import NATIVE, Completions, Frame, pull_header_json
from halfmoon.ports import Disk
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.wire.command import decode, encode
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from halfmoon.wire.ids import pack_host
from halfmoon.wire.peer import Peer, Peers
from halfmoon.wire.table import request_type

log = logging.getLogger("halfmoon.broker")

PULL_JSON = b'{"code":%d,' % request_type(PullMessage).code
CREATE_TOPIC = request_type(UpdateAndCreateTopic).code
NOT_SUPPORTED = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
EXPIRE_SCAN_MS = 10_000
"""How often silent clients are looked for. Follows ClientHousekeepingService."""


class Broker:
    """One broker: a store, its services, and the connections to them."""

    def __init__(self, settings: BrokerSettings, store_settings: StoreSettings, disk: Disk, random: Random, now: int) -> None:
        host = pack_host(f"{settings.address}:{settings.port}")
        self.settings = settings
        levels = Levels(settings.delay_levels)
        self.store = Store.open(disk, store_settings, host, now, tag_code=levels.tag_code)
        self.tables = Tables(disk)
        self.topics = Topics(settings, self.tables, now)
        self.groups = Groups(settings, self.tables, now)
        self.offsets = Offsets(self.tables, self.groups.saved)
        self.clients = Clients()
        self.stats = Stats(settings.cluster, now)
        self.peers = Peers(idle_ms=settings.client_expiry_ms)
        self.feed = self.peers.feed
        self.durable = Durable(self.store, self.peers, now)
        self.stale = StaleOffsets(self.peers)
        self.topics.on_made_anew = self.stale.made_anew
        self.context = context = Context(
            settings, self.store, disk, self.tables, self.topics, self.groups, self.offsets, self.clients, self.stats, self.peers,
            self.durable, Firsts(self.store, self.durable), self.stale, host, random, now,
        )  # fmt: skip
        self._starts: list[CoreEffect] = []
        self._rest: tuple[list[tuple[Peer, bytes, Frame]], list[tuple[Peer, bytes, Frame]]] = [], []
        """Requests of this turn, and pulls, that wait until its senders are answered."""
        self._completions: list[Completions] = []
        """Its decisions, which wait for the same."""
        self.holds = Holds(settings.holds_max)
        self.sends = Sends(context)
        self.transactions = Transactions(context, self.sends)
        self.delays = Delays(context, levels, self.sends)
        self.redelivery = Redelivery(context, self.sends, self.delays)
        transactions = self.transactions
        self.gate = Gate(context, self.sends, transactions.halves, transactions.repeats, self.delays, self.redelivery)
        self.pulls = Pulls(context, self.holds)
        self._notes_arrivals = self.pulls.filters.bitmaps is not None
        self._sync_flush = self.store.sync_flush
        self.membership = Membership(context, self.pulls)
        self.locks = Locks(settings, self.topics, self.membership.tell)
        self.progress = Progress(context)
        self.resets = Resets(context)
        self.relay = Relay(context)
        self.admin = Admin(context, self._topic_deleted, self._texts)
        self.queries = Queries(context)
        address, ha_address = f"{settings.address}:{settings.port}", f"{settings.address}:{settings.port + 1}"
        self.registration = Registration(settings, address, ha_address, self.topics.table, self._told, self.topics.text)
        self.batches = Batches(context, self.sends, self.delays, self.registration.name_servers, self._start)
        self._handlers = self._table()
        self._stopping = False
        self._next_save_ms = now + settings.save_offsets_ms
        self._next_expire_ms = now + EXPIRE_SCAN_MS
        self.topics.adopt(self.store.topics(), self.store.queue_ids, now)
        self.offsets.drop_unknown(set(self.topics.names()))
        self.offsets.clamp((t, q, self.store.queue_max(t, q)) for t in self.store.topics() for q in self.store.queue_ids(t))

    def _table(self) -> dict[int, Handler]:
        """Return what answers which request code, as the services declare it."""
        services = (
            self.gate, self.transactions, self.delays, self.redelivery, self.pulls, RangeReads(self.context, self.pulls),
            self.membership, self.locks, self.progress, self.resets, self.relay, self.admin, self.queries, self.batches,
        )  # fmt: skip
        declared = {header: handler for service in services for header, handler in service.handlers().items()}
        for header, paths in SAVED.items():
            declared[header] = self._saved(declared[header], *paths)
        return {request_type(header).code: handler for header, handler in declared.items()}

    # ------------------------------------------------------------ the core's verbs

    def start(self, now: int) -> None:
        """Begin: register with the name servers, and again whenever topics change."""
        self.topics.on_change = lambda _topic: self.registration.changed()
        if self.registration.name_servers:
            self._starts.append(Start(self.registration.keep(), "registration"))

    def connected(self, peer: int, remote: str, now: int) -> None:
        """A connection was accepted."""
        self.peers.connected(peer, remote, now)

    def stepped(self, by_ms: int) -> None:
        """The clock was set: what lasts so long lasts so long, and nobody was silent by it."""
        self._next_save_ms += by_ms
        self._next_expire_ms += by_ms
        for each in (
            self.store, self.peers, self.clients, self.pulls, self.durable, self.relay, self.locks, self.stats, self.transactions,
            self.delays, self.batches,
        ):  # fmt: skip
            each.stepped(by_ms)

    def commit(self, now: int) -> bool:
        """Handle everything fed: sends by group, then all else in order, then pulls; then what became visible wakes others.

        Senders are answered before all else is handled: a lone producer goes on while its last decision is carried out. Not where a
        connection brought what is no frame: it is closed with the answers, and what stood before that is answered as well.
        """
        self.durable.now = now
        plain, pulls = self._rest
        for peer, data, frames in self.peers.take(now, self.gate.read):
            for frame in frames:
                if frame[0] == 0 and data.startswith(PULL_JSON, frame[1]):
                    pulls.append((peer, data, frame))
                else:
                    plain.append((peer, data, frame))
        self.gate.turn(now)
        if (completions := self.gate.reader.completions()) is not None:
            self._completions.append(completions)
        if self.peers.touched and not self.peers.wrong and (self._completions or plain or pulls):
            return True
        self._rest = [], []
        if plain or pulls or self.holds.count or self._notes_arrivals:
            self.pulls.turn(now)
        while self._completions:
            self.transactions.decisions.settle(self._completions.pop(0), now)
        if self.batches.doubt.answers:
            self.batches.turn(now)
        for peer, data, frame in plain:
            self._plain(peer, data, frame, now)
        for peer, data, frame in pulls:
            self._hot_pull(peer, data, frame, now)
        if self._sync_flush:
            self.store.flush(len(self.durable))
        self._settle(now)
        return False

    def lost(self, peer: int, now: int) -> None:
        """A connection is gone: its groups, waiting pulls and relayed requests go with it."""
        known = self.peers.get(peer)
        by_us = known is not None and known.closing
        self.peers.lost(peer)
        self.holds.lost(peer)
        self.relay.lost(peer)
        self.stale.lost(peer)
        self.membership.lost(peer)
        self.locks.lost(peer, by_us=by_us)

    def due(self) -> int | None:
        """When `tick` wants to be called next."""
        due = min(self.stats.due(), self._next_save_ms, self._next_expire_ms, self.transactions.due())
        for wanted in (
            self.holds.due(), self.durable.due(), self.store.due(), self.peers.due(), self.relay.due(), self.locks.due(),
            self.delays.due(), self.batches.due(),
        ):  # fmt: skip
            if wanted is not None and wanted < due:
                due = wanted
        return due

    def tick(self, now: int) -> None:
        """Deadlines and periodic work."""
        self.durable.now = now
        self.pulls.turn(now)
        self.store.tick(now)
        self._settle(now)
        for hold in self.holds.expired(now, EXPIRED_A_TICK):
            self._go_on(hold)
        self.durable.tick(now)
        self.relay.tick(now)
        self.locks.tick(now)
        self.peers.tick(now)
        self.stats.tick(now)
        self.transactions.tick(now)
        if self.delays.tick(now) | self.batches.tick(now):
            self.store.flush(len(self.durable))
            self._settle(now)
        if now >= self._next_expire_ms:
            self._next_expire_ms = now + EXPIRE_SCAN_MS
            self.membership.expire(now - self.settings.client_expiry_ms)
            self.locks.expire(now)
        if now >= self._next_save_ms:
            self._next_save_ms = now + self.settings.save_offsets_ms
            self._starts += self.tables.save_changed(everything_changed=True)

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be done: answers, syncs, saved tables, operations."""
        if self.membership.changed:
            self.membership.notify()
        found = self.peers.effects()
        if works := self.store.work():
            found += map(self._settled, works)
        if works := self.transactions.work():
            found += works
        if self.tables.touched or self._stopping:
            found += self.tables.save_changed(everything_changed=self._stopping)
        if self._starts:
            found += self._starts
            self._starts = []
        return found

    def stop(self, now: int) -> list[Op[Any]]:
        """Begin a clean stop: no more writes, everything saved and synced; waiting pulls are answered; name servers are told."""
        self._stopping = True
        self.pulls.turn(LAST_MS)
        for hold in self.holds.expired(LAST_MS):
            self._go_on(hold)
        self.transactions.stop(now)
        self.store.stop(now)
        self.tables.hurry()
        self._starts += self.tables.save_changed(everything_changed=True)
        return [self.registration.leave()] if self.registration.name_servers else []

    def lost_at_stop(self) -> str | None:
        """Return, after a stop, what is not on the disk though it was acknowledged; None: everything is."""
        lost = [f"{path}: {reason}" for path, reason in sorted(self.tables.failed.items())]
        lost += [f"the last messages: {self.store.failure}"] if self.store.failure is not None else []
        return "; ".join(lost) or None

    def close(self, now: int) -> None:
        """Give the directory back, once `stop` and what it left are done. Waits for the device."""
        try:
            self.transactions.close(now)
            self.delays.close()
        finally:
            self.store.close(now)

    # ------------------------------------------------------------ turns

    def _start(self, operation: Op[None], name: str) -> None:
        self._starts.append(Start(operation, name))

    def _texts(self, now: int) -> dict[str, str]:
        """What runtime information (28) says besides: of transactions, the compiled twin, and what is wrong, when something is."""
        faults = [self.store.refusal, self.store.health.short]
        faults += [f"{path} is not saved: {reason}" for path, reason in sorted(self.tables.failed.items())]
        told = {"brokerFaults": "; ".join(dict.fromkeys(filter(None, faults)))} if any(faults) else {}
        return {"nativeVersion": NATIVE or "", **self.transactions.pending.texts(now), **self.batches.listing.texts(), **told}

    def _settle(self, now: int) -> None:
        """Let others see what became durable or visible: answers to waiting sends, pulls that waited for messages."""
        if self.durable.waiting:
            self.durable.reached(now)
        arrivals, holds = self.store.arrivals(), self.holds
        for arrival in arrivals if holds.count or self._notes_arrivals else ():
            topic, queue_id, max_offset, _ = arrival
            self.pulls.filters.arrived(self.store, arrival)
            if holds.of_queue(topic, queue_id):
                for hold in holds.arrived(topic, queue_id, max_offset, arrival.tag_codes):
                    self._go_on(hold)

    def _settled(self, work: Work[Any]) -> Work[Any]:
        """The same work; once it is done, what it made durable is seen to in the same turn."""
        done = work.done

        def done_and_settled(result: Any, now: int) -> None:
            done(result, now)
            self.store.flush(len(self.durable))
            self._settle(now)

        return Work(work.run, done_and_settled, work.inline, work.name)

    def _hot_pull(self, peer: Peer, data: bytes, frame: Frame, now: int) -> None:
        _, start, body, _ = frame
        found = pull_header_json(data[start:body])
        if found is None or found[1] & 3:
            self._plain(peer, data, frame, now)
            return
        opaque, _, header = found
        try:
            self.pulls.pull(peer, opaque, 0, header, now)
        except Exception as exc:
            refusal = _refusal(exc, "a pull", peer)
            self.peers.answer(peer, encode(reply_to(opaque, 0, refusal)))

    def _go_on(self, hold: Hold) -> None:
        try:
            self.pulls.go_on(hold)
        except Exception as exc:
            waiting: Waiting = hold.pull
            refusal = _refusal(exc, "a pull that waited", waiting.peer)
            self.peers.answer(waiting.peer, encode(reply_to(waiting.opaque, waiting.serialization, refusal)))

    def _plain(self, peer: Peer, data: bytes, frame: Frame, now: int) -> None:
        serialization, start, body, end = frame
        if peer.closing:
            return
        try:
            command = decode(data[start:body], data[body:end], serialization)
        except BadHeader as exc:
            self.peers.close(peer, str(exc))
            return
        if command.is_response:
            self.relay.answered(peer.number, command)
            return
        request = Request(command, peer, now)
        handler = self._handlers.get(command.code)
        if handler is None:
            self.durable.tell(request, Reply(NOT_SUPPORTED, f" request type {command.code} not supported"))
            return
        reply = self._handled(handler, request)
        if reply is not None:
            self.durable.tell(request, reply)

    def _handled(self, handler: Handler, request: Request) -> Reply | None:
        try:
            return handler(request)
        except Exception as exc:
            return _refusal(exc, f"request {request.command.code}", request.peer)

    def _told(self, answer: Told) -> None:
        self.topics.set_ordered(set(answer.order_topics))

    def _saved(self, handler: Handler, *paths: str) -> Handler:
        """The same handler for what changes tables: it is refused while one cannot be saved, and answered when all are.

        What an operator was told is done is done after a kill, too.
        """

        def handle(request: Request) -> None:
            self.tables.check(*paths)
            reply = handler(request) or Reply()

            def told(reason: str | None, now: int) -> None:
                if reason is not None:
                    undone = f"service not available now: it is done, and may come undone: not saved: {reason}"
                    self.durable.tell(request, refused(ServiceNotAvailable(undone)))
                elif request.command.code == CREATE_TOPIC and self.registration.name_servers:
                    self._starts.append(Start(self._reply_when_known(request, reply), "announce a topic"))
                else:
                    self.durable.tell(request, reply)

            self.tables.when_saved(paths, told, request.now)

        return handle

    def _reply_when_known(self, request: Request, reply: Reply) -> Op[None]:
        """Answer once the name servers know a topic, so that who asked may use it at once."""
        yield from self.registration.register()
        self.durable.tell(request, reply)

    def _topic_deleted(self, topic: str) -> None:
        self.pulls.filters.forget(topic)
        self.stale.deleted(topic)
        for hold in self.holds.of_topic(topic):
            self._go_on(hold)


def _refusal(exc: Exception, what: str, peer: Peer) -> Reply:
    """Return what a failed request is answered."""
    refused = refusal_of(exc, f"{what} of {peer.remote}")
    return Reply(refused.code, refused.remark)
