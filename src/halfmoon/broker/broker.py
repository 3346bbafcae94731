"""The broker core: takes the turns of the event loop, passes each request to its service, and collects the effects.

`Broker` implements `ports.Core`. Sends are read and stored a turn at a time (`broker.send.gate`); all other requests go through one
table of handlers. Never waits, never reads a clock, opens no file by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from halfmoon.broker.access.access import access_of
from halfmoon.broker.access.administration import Administration
from halfmoon.broker.access.files import RuleFiles
from halfmoon.broker.access.places import topic_at
from halfmoon.broker.access.reading import CheckedReading
from halfmoon.broker.admin.admin import AdminService
from halfmoon.broker.admin.cleaning import Cleaning
from halfmoon.broker.admin.configuration import Configuration
from halfmoon.broker.admin.figures import Figures
from halfmoon.broker.admin.trimming import Trimming
from halfmoon.broker.batches.batches import Batches
from halfmoon.broker.consumers.assignment import Assignment
from halfmoon.broker.consumers.locks import Locks
from halfmoon.broker.consumers.membership import Membership
from halfmoon.broker.consumers.progress import Progress
from halfmoon.broker.consumers.redelivery import Redelivery
from halfmoon.broker.consumers.reset import Resets
from halfmoon.broker.context import Context
from halfmoon.broker.copies.copies import Copies
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.delay.levels import Levels
from halfmoon.broker.pairs.lease import Lease
from halfmoon.broker.pull.hold import Holds
from halfmoon.broker.pull.pulls import Pulls
from halfmoon.broker.pull.query import Queries
from halfmoon.broker.pull.ranges import RangeReads
from halfmoon.broker.registration import Registration, RegistrationReply
from halfmoon.broker.relay import Relay
from halfmoon.broker.request import Handler, Reply, Request, refusal_of
from halfmoon.broker.saving import after_save
from halfmoon.broker.send.gate import Gate
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.send.reply_messages import ReplyMessages
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.send.sorting import sort, split, takers
from halfmoon.broker.service import Services
from halfmoon.broker.settings import BrokerSettings, with_timeout
from halfmoon.broker.transactions.transactions import Transactions
from halfmoon.effects import CoreEffect, Op, Start, Work
from halfmoon.errors import AccessRefused, BadHeader, ResponseCode, SystemBusy
from halfmoon.hot import NATIVE, Completions, Frame
from halfmoon.instant import Instant, Steady
from halfmoon.logs import CountedLog
from halfmoon.ports import Disk
from halfmoon.store.log.kept import EVERYTHING
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.wire.command import Command, decode
from halfmoon.wire.ids import pack_host
from halfmoon.wire.peer import ANSWERED_BYTES_A_TURN, OVERLOAD, Asked, Peer, RequestBacklog
from halfmoon.wire.table import REQUESTS, not_supported, request_text

log = logging.getLogger("halfmoon.broker")

NOT_SUPPORTED = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
NOT_ONLINE = int(ResponseCode.CONSUMER_NOT_ONLINE)
"""Response code for a group without members. It is no fault, so it counts in metrics alone."""


class Broker:
    """One broker: a store, its services, and the connections to them. ``rule_files``: where the accounts are, if not in its disk.

    ``lease``: it is the master of a pair.

    Raises StoreError; with access control SettingError or OSError for accounts that cannot be read.
    """

    def __init__(
        self, settings: BrokerSettings, store_settings: StoreSettings, disk: Disk, random: Random, now: Instant,
        rule_files: RuleFiles | None = None, lease: Lease | None = None,
    ) -> None:  # fmt: skip
        settings, store_settings = with_timeout(settings, in_pair=lease is not None), replace(store_settings)  # `Configuration`
        address = f"{settings.address}:{settings.port}"
        host, levels = pack_host(address), Levels(settings.delay_levels)
        self.settings = settings
        self.access = access_of(settings, rule_files or RuleFiles(disk, store_settings.data), now)
        copied = None if lease is None else EVERYTHING
        self.store = Store.open(disk, store_settings, host, now, tag_code=levels.tag_code, copied_offset=copied)
        self.context = context = Context.open(settings, self.store, disk, host, random, now, self.access)
        self.copies, self.configuration = Copies(context, now, lease), Configuration(context)
        self.tables, self.topics, self.groups, self.offsets = context.tables, context.topics, context.groups, context.offsets
        self.clients, self.stats, self.peers = context.clients, context.stats, context.peers
        self.pending_replies, self.stale_offsets = context.pending_replies, context.stale_offsets
        self.feed = self.peers.feed
        self.holds, self.sends = Holds(settings.holds_max), Sends(context)
        self.transactions = transactions = Transactions(context, self.sends)
        self.delays = Delays(context, levels, self.sends)
        self.redelivery = Redelivery(context, self.sends, self.delays)
        self.gate = Gate(context, self.sends, transactions.half_messages, transactions.duplicates, self.delays, self.redelivery)
        self._read = self.gate.read if self.access is None else CheckedReading(self.access, self.gate.read).read
        self.pulls = Pulls(context, self.holds)
        self.membership = Membership(context, self.pulls.filters.check)
        self.locks = Locks(context, self.membership.tell)
        self.progress = Progress(context, self.delays.redeliveries.count)
        self.resets, self.relay, self.queries, self.services = Resets(context), Relay(context), Queries(context), Services()
        self.admin = AdminService(context, self.configuration, self.services, self._runtime_texts)
        self.cleaning = Cleaning(context, self.admin.forget_topic)
        self.registration = Registration(settings, address, self.topics.table, self._registered, self.topics.text)
        self.assignment = Assignment(context, self.registration.name_servers, self._start)
        self.administration = Administration(self.access, settings, context.pending_replies)
        self.batches = Batches(context, self.sends, self.delays, self.registration.name_servers, self._start)
        self._handlers, self._handled_last = self._register()
        self._gathering = takers(self.gate, self.transactions.decisions)
        self.backlog, self._dropped = RequestBacklog(), CountedLog(log, "requests were not carried out", now.steady)
        self._deferred: tuple[list[Asked], list[Asked]] = [], []
        """Requests of this turn, and pulls, that wait until its senders are answered."""
        self._completions: list[Completions] = []
        """Decisions of this turn, which wait for the same."""
        self._starts: list[CoreEffect] = []
        self._holds_back, self._stopping, self._next_save_at = self.store.holds_back, False, now.steady + settings.save_offsets_ms
        context.recover(now)
        self.copies.epochs.started()

    def _register(self) -> tuple[dict[int, Handler], frozenset[int]]:
        """Register the parts; return the handler of each request code, and the codes of requests that are handled last."""
        self.services.register(
            self.gate, self.pulls, RangeReads(self.context, self.pulls), self.queries, self.pending_replies, self.relay, self.locks,
            self.stats, self.transactions, self.delays, self.redelivery, self.batches, self.access, self.administration,
            self.membership, self.progress, self.resets, self.assignment, self.admin, self.cleaning, self.configuration,
            self.registration, ReplyMessages(self.context, self.gate, self.sends, self.relay), Figures(self.context),
            Trimming(self.context), self.copies,
        )  # fmt: skip
        handlers = dict(self.services.handlers())
        last = frozenset(code for code, handler in handlers.items() if hasattr(handler, "handled_last"))
        return {
            code: after_save(handler, self.tables, self.pending_replies, self._announce) for code, handler in handlers.items()
        }, last

    def codes(self) -> frozenset[int]:
        """Return the codes of the requests that it answers."""
        return frozenset(self._handlers)

    # ------------------------------------------------------------ the core's verbs

    def start(self, now: Instant) -> None:
        """Start to register with the name servers, and do so again whenever topics change."""
        if self.copies.pair is not None:
            self.registration.epoch = self.copies.pair.epoch
        self.topics.on_change = lambda _topic: self.registration.changed()
        self.configuration.on_change = self._settings_changed
        if self.access is not None:
            self.access.on_change, self.access.topic_at = self._rules_changed, partial(topic_at, self.store)
            self.access.gathered = {code: REQUESTS[code].published_field for code in self._gathering}
        if self.registration.name_servers:
            self._starts.append(Start(self.registration.keep(), "registration"))

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Note an accepted connection."""
        self.peers.connected(peer, remote, now.steady)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in the certificate of a connection."""
        self.peers.certified(peer, names)

    def commit(self, now: Instant) -> bool:
        """Handle everything that was fed: sends by group, then other requests in order, then pulls. True: call it again soon.

        Senders are answered before the rest is handled (True), so that a lone producer goes on while its last decision is carried
        out. Not if a connection brought bytes that are no frame: it is closed with the replies, so all requests before them must
        be answered first. Who brought more requests than its share of a turn has the others wait (`RequestBacklog`).
        """
        self.pending_replies.now, self.offsets.now = now, now.steady
        if self.access is not None:
            self.access.turn(now.date)
        cut = self.peers.take(now.steady, self._read_in_order if self.backlog.waiting or self.backlog.slow else self._read)
        requests, pulls = self._deferred
        if cut or self.backlog.is_due:
            gathered, cut = split(cut, self._gathering, self.backlog, requests)
            gathered += sort(self.backlog.turn(cut), self._gathering, self._handled_last, requests, pulls)
            self._handle_each(gathered, partial(self._handle_frame, handlers=self._gathering), now)
            if taken := self.transactions.decisions.taken():
                self._completions.append(taken)
        self.gate.turn(now.date)
        if (completions := self.gate.reader.completions()) is not None:
            self._completions.append(completions)
        if self.peers.touched and not self.peers.wrong and (self._completions or requests or pulls):
            return True
        self._deferred = [], []
        self._handle(requests, pulls, now)
        if self._holds_back:
            self.store.flush(len(self.pending_replies), now.steady)
        self._release(now)
        return self.backlog.is_due

    def _read_in_order(self, peer: Peer, data: bytes) -> tuple[list[Frame], int, int, str | None]:
        return self.backlog.read(peer, data, self._read)

    def _handle(self, requests: list[Asked], pulls: list[Asked], now: Instant) -> None:
        """Handle what a turn brought besides sends. Decisions come first, pulls last: they read what the turn made visible."""
        try:
            if requests or pulls or self.holds.count:
                self.pulls.turn(now)
            self._settle(now)
            if self.batches.recovery.answers:
                self.batches.turn(now)
        except Exception:  # our own mistake: what connections asked in this turn is handled all the same
            log.exception("what comes before the requests of a turn failed")
        if self.backlog.excess:
            self._refuse_excess(now)
        if requests:
            self._handle_each(requests, self._handle_frame, now)
        if pulls:
            self._handle_each(pulls, self._handle_pull, now)
        for peer, by_us in self.backlog.emptied():
            self._forget(peer.number, by_us=by_us)

    def _settle(self, now: Instant) -> None:
        while self._completions:
            try:
                self.transactions.decisions.settle(self._completions.pop(0), now.date)
            except Exception:  # our own mistake: no others are affected, and these stay pending
                log.exception("decisions of a turn failed")

    def _handle_each(self, requests: list[Asked], handle: Callable[[Peer, bytes, Frame, Instant], None], now: Instant) -> None:
        """Handle requests; those of connections that are to be sent enough already wait."""
        waits = []
        for asked in requests:
            peer, data, frame = asked
            if peer.out_bytes >= ANSWERED_BYTES_A_TURN:
                waits.append(asked)
                continue
            try:
                handle(peer, data, frame, now)
            except Exception as exc:  # our own mistake: the other requests of this turn do not feel it
                log.error("a request of %s failed", peer.remote, exc_info=exc)
                self.peers.close(peer, "what it asked failed")
        if waits:
            self.backlog.put_back(waits)

    def _refuse_excess(self, now: Instant) -> None:
        """Refuse what is too much to wait, as RocketMQ does when a queue of its threads is full."""
        excess, self.backlog.excess = self.backlog.excess, []
        for peer, data, frame in excess:
            self._handle_frame(peer, data, frame, now, refusal=refused(SystemBusy(OVERLOAD)))

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Note that a connection does not read its replies, or does again."""
        if (known := self.peers.get(peer)) is not None:
            self.backlog.set_slow(known, is_slow=is_slow)

    def unanswered(self, peer: int) -> bool:
        """Whether requests of a connection wait for their turn."""
        return (known := self.peers.get(peer)) is not None and known in self.backlog

    def lost(self, peer: int, now: Instant) -> None:
        """Forget a lost connection, once its one-way requests are carried out."""
        if self.access is not None:
            self._settle(now)  # as long as it is known who decided
        known = self.peers.get(peer)
        if known is None or not self.backlog.lost(known):
            self._forget(peer, by_us=known is not None and known.closing)

    def _forget(self, peer: int, *, by_us: bool) -> None:
        self.peers.lost(peer)
        self.services.call("lost", peer, by_us=by_us)

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called next."""
        due = self._next_save_at
        for wanted in (self.store.due(), self.peers.due(), *self.services.dues(now)):
            if wanted is not None and wanted < due:
                due = wanted
        return due

    def tick(self, now: Instant) -> None:
        """Deadlines and periodic work."""
        self.pending_replies.now, self.offsets.now = now, now.steady
        self.pulls.turn(now)
        self.store.tick(now)
        self.peers.tick(now.steady)
        self._dropped.tick(now.steady)
        self._release(now)
        end = self.store.end_offset
        for tick in self.services.ticks:
            tick(now)
        if self.store.end_offset > end:
            self.store.flush(len(self.pending_replies), now.steady)
            self._release(now)
        if now.steady >= self._next_save_at:
            self._next_save_at = now.steady + self.settings.save_offsets_ms
            self._starts += self.tables.save_changed(everything_changed=True)

    def effects(self) -> list[CoreEffect]:
        """Take out the effects: replies, syncs, tables to save, operations to start."""
        works: list[CoreEffect] = [*map(self._then_release, self.store.work())]
        for work in self.services.works:
            if taken := work():
                works += taken
        if self.copies.feeding.slaves:
            self.copies.feeding.stored(self.pending_replies.now.steady)
        effects = self.peers.effects(self.backlog)
        effects += works
        if self.tables.touched or self._stopping:
            effects += self.tables.save_changed(everything_changed=self._stopping)
        if self._starts:
            effects += self._starts
            self._starts = []
        return effects

    def stop(self, now: Instant) -> list[Op[Any]]:
        """Begin a clean stop: no more writes, everything saved and synced, held pulls answered, name servers informed."""
        self._stopping = True
        self.services.call("stop", now)
        self.store.stop(now)
        self.tables.hurry()
        self._starts += self.tables.save_changed(everything_changed=True)
        return [self.registration.leave()] if self.registration.name_servers else []

    def lost_at_stop(self) -> str | None:
        """Return, after a stop, what was acknowledged and is not on the disk; None: everything is."""
        lost = [f"{path}: {reason}" for path, reason in sorted(self.tables.failed.items())]
        lost += [f"the last messages: {self.store.failure}"] if self.store.failure is not None else []
        return "; ".join(lost) or None

    def close(self, now: Instant) -> None:
        """Release the directory, once `stop` and its works are done. Waits for the device."""
        try:
            self.services.call("close", now)
        finally:
            self.store.close(now)

    # ------------------------------------------------------------ turns

    def _start(self, operation: Op[None], name: str) -> None:
        self._starts.append(Start(operation, name))

    def _runtime_texts(self) -> dict[str, str]:
        """Return what the broker itself adds to the runtime information (28): the compiled twin, refusals, and faults if any."""
        faults = [self.store.refusal, self.store.health.short, self.delays.redeliveries.fault, self.copies.fault]
        faults += [f"{path} is not saved: {reason}" for path, reason in sorted(self.tables.failed.items())]
        refused = sum(count for code, count in self.peers.refusals.items() if code != NOT_ONLINE)
        texts = {"nativeVersion": NATIVE or "", "requestsRefused": str(refused)}
        if any(faults):
            texts["brokerFaults"] = "; ".join(dict.fromkeys(filter(None, faults)))
        return texts

    def _release(self, now: Instant) -> None:
        """Send the replies that waited for the device, and resume the pulls that waited for messages."""
        if self.access is not None:
            self.access.turn(now.date)
        if self.pending_replies.waiting:
            self.pending_replies.release(now)
        if self.holds.count:
            self.pulls.arrived()
        else:
            self.store.drop_arrivals()

    def _then_release(self, work: Work[Any]) -> Work[Any]:
        """Return the same work, followed by `_release` in the turn in which it is done."""
        done = work.done

        def done_and_released(result: Any, now: Instant) -> None:
            done(result, now)
            self.store.flush(len(self.pending_replies), now.steady)
            self._release(now)

        return Work(work.run, done_and_released, work.inline, work.name)

    def _handle_pull(self, peer: Peer, data: bytes, frame: Frame, now: Instant) -> None:
        if not self.pulls.read(peer, data, frame, now):
            self._handle_frame(peer, data, frame, now)

    def _rules_changed(self, rebound: list[int], revoked: list[int]) -> None:
        """Close connections whose certificate is another account's, and end memberships and held pulls that are allowed no more."""
        for peer in filter(None, map(self.peers.get, rebound)):
            self.peers.close(peer, "the account of its certificate changed")
        for number in revoked:
            self.membership.lost(number, by_us=False)
        self.pulls.rules_changed()
        self.copies.feeding.rules_changed()

    def _handle_frame(
        self, peer: Peer, data: bytes, frame: Frame, now: Instant, refusal: Reply | None = None,
        handlers: Mapping[int, Handler] | None = None,
    ) -> None:  # fmt: skip
        """Answer a request by its handler, which may be one of ``handlers``, or with a refusal."""
        if (command := self._decoded(peer, data, frame)) is None:
            return
        request = Request(command, peer, now)
        if refusal is not None:
            if command.is_oneway:
                self._count_dropped(command, "one-way, and too many wait")
            self.pending_replies.reply_now(request, refusal)
            return
        if self.access is not None:
            if handlers is not None and self.access.is_anothers(command, peer):
                self._carry_out_taken(now)
            if not self._may(request):
                return
        handler = (handlers or self._handlers).get(command.code) or self._handlers.get(command.code)
        if handler is None:
            self.pending_replies.reply_now(request, Reply(NOT_SUPPORTED, not_supported(command.code)))
            return
        try:
            reply = handler(request)
        except Exception as exc:
            reply = refused(refusal_of(exc, f"request {request_text(command.code)} of {peer.remote}"))
        if reply is not None:
            self.pending_replies.reply_now(request, reply)

    def _carry_out_taken(self, now: Instant) -> None:
        """Carry out the sends and decisions that were taken, which are judged by the account that their connection has proved."""
        self.gate.turn(now.date)
        self._completions += filter(None, (self.transactions.decisions.taken(), self.gate.reader.completions()))
        self._settle(now)

    def _decoded(self, peer: Peer, data: bytes, frame: Frame) -> Command | None:
        """Return the request in a frame; None: it is none, or is not carried out."""
        serialization, start, body, end = frame
        try:
            command = decode(data[start:body], data[body:end], serialization)
        except BadHeader as exc:
            self.peers.stop_reading(peer, str(exc))
            return None
        if command.is_response:
            self.relay.answered(peer.number, command)
            return None
        if peer.closing and not command.is_oneway:
            self._count_dropped(command, "its connection was gone")
            return None
        return command

    def _may(self, request: Request) -> bool:
        """Note the account of a request, or refuse it; return whether it may be handled."""
        access, command, peer = self.access, request.command, request.peer
        assert access is not None
        try:
            request.account = access.check(command, peer)
        except AccessRefused as exc:
            request.account = access.bound(peer)  # whose it is for sure, for the audit
            self.pending_replies.reply_now(request, refused(exc))
            return False
        return True

    def _count_dropped(self, command: Command, why: str) -> None:
        """Count what is not carried out and cannot be refused, by the name of its request."""
        known = REQUESTS.get(command.code)
        self._dropped.count(f"{'unknown requests' if known is None else known.name} ({why})")

    def _registered(self, reply: RegistrationReply) -> None:
        self.topics.set_ordered(set(reply.order_topics))

    def _announce(self, request: Request, reply: Reply) -> None:
        if self.registration.name_servers:
            self._start(self._reply_once_registered(request, reply), "announce a topic")
        else:
            self.pending_replies.reply_now(request, reply)

    def _reply_once_registered(self, request: Request, reply: Reply) -> Op[None]:
        """Reply once the name servers know a topic, so that the caller can use it at once."""
        yield from self.registration.register()
        self.pending_replies.reply_now(request, reply)

    def _settings_changed(self, now: Steady) -> None:
        """Bring forward work whose interval is shorter now."""
        self._next_save_at = min(self._next_save_at, now + self.settings.save_offsets_ms)
        self.store.settings_changed(now)
        self.store.maintenance.settings_changed(now)
        self.services.call("settings_changed", now)
