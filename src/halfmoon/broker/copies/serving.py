"""`Serving`: the core of a slave's port for clients. Answers reads, from the log and the tables that its `Standby` copies.

The class of a request says whether a slave answers it (``changes``); what it does not is refused with 14. So is what is about
messages, at a member of a pair that has not compared its log with the master's: the next master may not have the end of it, and
clients that have not heard of that master ask here as before. Nothing is saved here
but accounts, which each broker has of its own: tables are replaced by the master's as they come, and what members report of their
progress stays in memory until then.
Follows BrokerController with brokerRole=SLAVE (RocketMQ 4.9.8).
Differs: the original refuses topics and groups with 1 and decisions with 11, and lets its settings be changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from halfmoon.broker.access.access import access_of
from halfmoon.broker.access.administration import Administration
from halfmoon.broker.access.files import RuleFiles
from halfmoon.broker.access.places import topic_at
from halfmoon.broker.admin.admin import AdminService
from halfmoon.broker.admin.configuration import Configuration
from halfmoon.broker.admin.figures import Figures
from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.consumers.membership import Membership
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.consumers.progress import Progress
from halfmoon.broker.context import Context
from halfmoon.broker.copies.accounts import DIFFER, AccountsCheck
from halfmoon.broker.copies.copies import PAIR, SPARE
from halfmoon.broker.copies.lag import CopyLag
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.copies.takeover import Takeover
from halfmoon.broker.pull.hold import Holds
from halfmoon.broker.pull.pulls import Pulls
from halfmoon.broker.pull.query import Queries
from halfmoon.broker.pull.ranges import RangeReads
from halfmoon.broker.registration import Registration
from halfmoon.broker.relay import Relay
from halfmoon.broker.request import Handler, Reply, Request, refusal_of
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.service import Services
from halfmoon.broker.settings import BrokerSettings, with_timeout
from halfmoon.broker.topics import PATH as TOPICS
from halfmoon.effects import CoreEffect, Op, Start
from halfmoon.errors import AccessRefused, BadHeader, BrokerError, RequestNotSupported, ServiceNotAvailable, SystemBusy
from halfmoon.hot import NATIVE
from halfmoon.instant import Instant, Steady
from halfmoon.ports import Disk
from halfmoon.wire.bodies import ConsumerOffsetTable, SubscriptionGroupTable, TopicConfigTable, from_json
from halfmoon.wire.command import Command, decode
from halfmoon.wire.ids import pack_host
from halfmoon.wire.peer import ANSWERED_BYTES_A_TURN, OVERLOAD, Asked, RequestBacklog
from halfmoon.wire.table import REQUESTS, not_supported, request_text

log = logging.getLogger("halfmoon.broker")


class Serving:
    """The port of one slave, as a `halfmoon.ports.Core` on the event loop of its `Standby`, whose store it reads.

    ``wake`` has its loop run a turn, and is set by the program. Raises as `halfmoon.broker.broker.Broker` does.
    """

    def __init__(
        self, standby: Standby, settings: BrokerSettings, disk: Disk, random: Random, now: Instant,
        rule_files: RuleFiles | None = None,
    ) -> None:  # fmt: skip
        self.standby, self.store = standby, standby.store
        self.settings = settings = with_timeout(settings, in_pair=standby.pair_master is not None)
        address = f"{settings.address}:{settings.port}"
        self.access = access_of(settings, rule_files or RuleFiles(disk, self.store.settings.data), now)
        self.context = context = Context.open(settings, self.store, disk, pack_host(address), random, now, self.access)
        self.peers, self.feed, self._pending_replies = context.peers, context.peers.feed, context.pending_replies
        self.topics, self.groups, self.offsets, self.stats = context.topics, context.groups, context.offsets, context.stats
        self.wake: Callable[[], None] = _nothing
        self._holds, self._backlog = Holds(settings.holds_max), RequestBacklog()
        self.pulls, self._relay, self.lag = Pulls(context, self._holds), Relay(context), CopyLag(standby, now)
        self.takeover = Takeover(standby)
        self.membership = Membership(context, self.pulls.filters.check)
        self.registration = Registration(settings, address, self.topics.table, text=self.topics.text)
        self.accounts_check = None if self.access is None else AccountsCheck(standby, self.access)
        self.services = Services()
        self.admin = AdminService(context, Configuration(context), self.services, self._runtime_texts)
        self.services.register(
            self.pulls, RangeReads(context, self.pulls), Queries(context), self._relay, self.stats, self.access,
            Administration(self.access, settings, context.pending_replies), self.membership,
            Progress(context, lambda _topic: None), self.admin, self.registration, Figures(context), self.lag, self.takeover,
            self.accounts_check,
        )  # fmt: skip
        self._handlers = {code: handler for code, handler in self.services.handlers() if not REQUESTS[code].changes}
        self._starts: list[CoreEffect] = []
        self._of_master = frozenset(self.topics.names())
        """The topics of the master's last table."""
        standby.on_stored, standby.on_table = self._stored, self._copied

    def codes(self) -> frozenset[int]:
        """Return the codes of the requests that it answers."""
        return frozenset(self._handlers)

    # ------------------------------------------------------------ what the slave copies

    def _stored(self) -> None:
        """Have held pulls resumed in a turn of this core."""
        if self._holds.count:
            self.wake()
        else:
            self.store.drop_arrivals()

    def _copied(self, path: str, data: bytes) -> None:
        """Show a table of the master's from now on."""
        if path == TOPICS:
            self._show_topics(from_json(TopicConfigTable, data, bounds=None))
        elif path == GROUPS:
            self.groups.copy(from_json(SubscriptionGroupTable, data, bounds=None))
        elif path == OFFSETS:
            self.offsets.copy(from_json(ConsumerOffsetTable, data, bounds=None))
        self.wake()

    def _show_topics(self, table: TopicConfigTable) -> None:
        before, self._of_master = self._of_master, frozenset(table.topic_config_table)
        gone = before - self._of_master
        self.topics.copy(table, gone)
        for topic in gone:
            self.services.call("topic_deleted", topic)

    # ------------------------------------------------------------ the core's verbs

    def start(self, now: Instant) -> None:
        """Start to register with the name servers."""
        self.topics.on_change = lambda _topic: self.registration.changed()
        if self.access is not None:
            self.access.on_change, self.access.topic_at = self._rules_changed, partial(topic_at, self.store)
        if self.accounts_check is not None:
            self._starts.append(Start(self.accounts_check.keep(), "accounts"))
        if self.registration.name_servers:
            self._starts.append(Start(self.registration.keep(), "registration"))

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Note an accepted connection."""
        self.peers.connected(peer, remote, now.steady)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in the certificate of a connection."""
        self.peers.certified(peer, names)

    def commit(self, now: Instant) -> bool:
        """Answer what was fed since the last call, of each connection a share, then held pulls; return whether more is left."""
        self._begin_turn(now)
        backlog, waits = self._backlog, []
        for asked in backlog.turn(self.peers.take(now.steady)):
            if asked[0].out_bytes < ANSWERED_BYTES_A_TURN:
                self._handle_guarded(asked, now)
            else:
                waits.append(asked)
        excess, backlog.excess = backlog.excess, []
        backlog.put_back(waits)
        for asked in excess:
            self._handle_guarded(asked, now, SystemBusy(OVERLOAD))
        for peer, by_us in backlog.emptied():
            self._forget(peer.number, by_us=by_us)
        if self._holds.count:
            self.pulls.arrived()
        return backlog.is_due

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Note that a connection does not read its replies, or does again."""
        if (known := self.peers.get(peer)) is not None:
            self._backlog.set_slow(known, is_slow=is_slow)

    def unanswered(self, peer: int) -> bool:
        """Return whether requests of a connection wait for their turn."""
        return (known := self.peers.get(peer)) is not None and known in self._backlog

    def lost(self, peer: int, now: Instant) -> None:
        """Forget a lost connection, once its one-way requests are carried out."""
        known = self.peers.get(peer)
        if known is None or not self._backlog.lost(known):
            self._forget(peer, by_us=known is not None and known.closing)

    def due(self, now: Instant) -> Steady | None:
        """When `tick` wants to be called next."""
        return min((due for due in (self.peers.due(), *self.services.dues(now)) if due is not None), default=None)

    def tick(self, now: Instant) -> None:
        """Deadlines and periodic work."""
        self._begin_turn(now)
        self.peers.tick(now.steady)
        for tick in self.services.ticks:
            tick(now)

    def effects(self) -> list[CoreEffect]:
        """Take out replies, and operations to start."""
        works = [effect for work in self.services.works for effect in work()]
        starts, self._starts = self._starts, []
        return [*self.peers.effects(self._backlog), *works, *starts]

    def stop(self, now: Instant) -> list[Op[Any]]:
        """Begin a clean stop: answer held pulls, and leave the name servers, unless a master will be here at once."""
        self.services.call("stop", now)
        return [self.registration.leave()] if self.registration.name_servers and not self.takeover.is_done else []

    # ------------------------------------------------------------ requests

    def _begin_turn(self, now: Instant) -> None:
        self._pending_replies.now, self.offsets.now = now, now.steady
        if self.access is not None:
            self.access.turn(now.date)
        self.pulls.turn(now)

    def _handle_guarded(self, asked: Asked, now: Instant, refusal: BrokerError | None = None) -> None:
        try:
            self._handle(asked, now, refusal)
        except Exception as exc:  # our own mistake: the other requests of this turn do not feel it
            log.error("a request of %s failed", asked[0].remote, exc_info=exc)
            self.peers.close(asked[0], "what it asked failed")

    def _handle(self, asked: Asked, now: Instant, refusal: BrokerError | None) -> None:
        """Answer a request by its handler, or with a refusal."""
        peer, data, (serialization, start, body, end) = asked
        try:
            command = decode(data[start:body], data[body:end], serialization)
        except BadHeader as exc:
            self.peers.stop_reading(peer, str(exc))
            return
        if command.is_response:
            self._relay.answered(peer.number, command)
            return
        if peer.closing and not command.is_oneway:
            return
        request = Request(command, peer, now)
        try:
            reply = self._reply(request, refusal)
        except Exception as exc:
            reply = refused(refusal_of(exc, f"request {request_text(command.code)} of {peer.remote}"))
        if reply is not None:
            self._pending_replies.reply_now(request, reply)

    def _reply(self, request: Request, refusal: BrokerError | None) -> Reply | None:
        """Return the reply to a request; None: its handler replies. Raises BrokerError."""
        if refusal is not None:
            raise refusal
        if self.access is not None:
            try:
                request.account = self.access.check(request.command, request.peer)
            except AccessRefused:
                request.account = self.access.bound(request.peer)  # whose it is for sure, for the audit
                raise
        return self._handler(request.command)(request)

    def _handler(self, command: Command) -> Handler:
        """Return the handler of a request. Raises RequestNotSupported; ServiceNotAvailable for one that its master answers."""
        if (handler := self._handlers.get(command.code)) is not None:
            if self._may_be_cut and REQUESTS[command.code].is_of_messages:
                raise ServiceNotAvailable("service not available now: this log may have to be cut, its master was not asked yet")
            return handler
        known = REQUESTS.get(command.code)
        if known is not None and known.changes:
            name = f"{self.settings.name}/{self.settings.broker_id}"
            raise ServiceNotAvailable(
                f"service not available now: {name} is a slave, ask its master for {request_text(known.code)}"
            )
        raise RequestNotSupported(not_supported(command.code))

    @property
    def _may_be_cut(self) -> bool:
        """Return whether the master may lack the end of this log: a member may have been the master before it started here."""
        return self.standby.pair_master is not None and self.standby.end_offset < 0

    def _forget(self, peer: int, *, by_us: bool) -> None:
        self.peers.lost(peer)
        self.services.call("lost", peer, by_us=by_us)

    def _rules_changed(self, rebound: list[int], revoked: list[int]) -> None:
        """Close connections whose certificate is another account's, and end memberships and held pulls that are allowed no more."""
        for peer in filter(None, map(self.peers.get, rebound)):
            self.peers.close(peer, "the account of its certificate changed")
        for number in revoked:
            self.membership.lost(number, by_us=False)
        self.pulls.rules_changed()

    def _runtime_texts(self) -> dict[str, str]:
        """Return what the slave itself adds to the runtime information (28)."""
        texts = {"nativeVersion": NATIVE or "", "requestsRefused": str(sum(self.peers.refusals.values()))}
        if (master := self.standby.pair_master) is not None:
            epoch = max((row.epoch for row in self.standby.epochs.rows), default=0)
            texts[PAIR] = f"follower of {master or 'no master'}, epoch {epoch}{f'; {SPARE}' if self.standby.is_spare else ''}"
        faults = [] if (reason := self.standby.unready()) is None else [f"the master's log is not copied: {reason}"]
        if (fault := self.standby.transactions.fault) is not None:
            faults.append(f"{fault} (a broker that starts here reads the log for it)")
        if self.accounts_check is not None and self.accounts_check.differs:
            faults.append(DIFFER)
        if faults:
            texts["brokerFaults"] = "; ".join(faults)
        return texts


def _nothing() -> None:
    """Wake nobody."""
