"""Registration with name servers: at the start, periodically, when topics change, and the end of it when the broker stops.

One loop for each name server, so that a slow or dead one delays no other. Knows nothing of the broker but a function that returns
its topic table. Operations (`halfmoon.effects`): never waits by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.service import Service
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Call, Op, Signal, Tell, gather, sleep, steady, wait
from halfmoon.errors import BadHeader, BrokerError, HalfmoonError, NetworkError, broker_error
from halfmoon.instant import Instant, Steady
from halfmoon.metrics import Samples
from halfmoon.model import split_addresses
from halfmoon.wire.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfigTable,
    encode_register_body,
    from_json,
    to_json,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.route import RegisterBroker, RegisterBrokerReply, UnregisterBroker
from halfmoon.wire.headers.topic import QueryDataVersion, QueryDataVersionReply

log = logging.getLogger("halfmoon.broker")

RETRY_MS = 500
"""Pause after a failure or a lost connection: a name server that restarted knows no broker until it registers."""

ANNOUNCE_GAP_MS = 10
"""Shortest time between two announcements, and a millisecond more for each 100 topics: a burst of new topics costs a few tables,
not one each. It is short, because a consumer that asks for the route of a topic just created by a send, and gets none, asks again
only after 30 s."""

VERSION_TIMEOUT_MS = 3_000
"""Timeout of the request whether anything changed. Follows BrokerOuterAPI.needRegister."""

UNREGISTER_TIMEOUT_MS = 3_000
"""Timeout of unregistering; a name server forgets the broker anyway once the connection closes."""


class RegistrationReply(NamedTuple):
    """The reply of a name server to a registration. ``order_topics`` are topic → ``broker:queues;…``."""

    ha_address: str | None
    master_address: str | None
    order_topics: dict[str, str]


class Registration(Service):
    """The registration of one broker with all its name servers.

    ``address`` is where clients connect (``host:port``), and ``slave_address``, set once it is known, where slaves do; ``topics``
    returns the present table;
    ``on_reply`` is called with the reply of the first name server of the list that answers. ``text`` returns the table as JSON;
    None: it is to be encoded.
    """

    def __init__(
        self, settings: BrokerSettings, address: str, topics: Callable[[], TopicConfigTable],
        on_reply: Callable[[RegistrationReply], None] = lambda reply: None, text: Callable[[], bytes | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._settings, self._address, self._text = settings, address, text
        self.slave_address = ""
        self.epoch: int | None = None
        """Epoch of the master of a pair, so that name servers refuse an older one."""
        self._topics, self._on_reply = topics, on_reply
        self.links = [_Link(address) for address in split_addresses(settings.nameserver)]
        self._encoded: tuple[DataVersion, bytes] | None = None
        self._leaving = False
        self.tried = Signal()
        """Fires when every name server has answered the first registration or failed to."""

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return [link.address for link in self.links]

    @property
    def registered(self) -> list[str]:
        """The name servers at which the last registration succeeded."""
        return [link.address for link in self.links if link.is_up]

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many name servers there are, and at how many the last registration succeeded."""
        yield metrics.REGISTERED, broker, len(self.registered)
        yield metrics.NAME_SERVERS, broker, len(self.name_servers)

    # ------------------------------------------------------------ the broker's calls

    def changed(self) -> None:
        """Topics were created or changed: the loops announce them at once."""
        for link in self.links:
            link.has_news = True
            link.wake.fire()

    def disconnected(self, address: str) -> None:
        """Register again soon: whoever closed this connection has forgotten the broker, or has restarted and knows none.

        Differs: the original registers with the next period, up to 30 s later, and no client finds the broker until then.
        """
        for link in self.links:
            if link.address == address and not self._leaving:
                if link.is_up:
                    log.warning("connection lost: nameserver=%s", address)
                link.is_up, link.is_lost = False, True
                link.wake.fire()

    def settings_changed(self, now: Steady) -> None:
        """Wake the loops, as their interval may have changed."""
        for link in self.links:
            link.wake.fire()

    def keep(self) -> Op[None]:
        """Keep the broker registered with every name server until `leave` is run."""
        yield from gather([self._keep(link) for link in self.links])

    def register(self, *, force: bool = True) -> Op[list[RegistrationReply | Exception | None]]:
        """Register once with all; return for each its reply, None if nothing had changed, or the error."""
        return (yield from gather([self._register(link, force=force) for link in self.links]))

    def leave(self) -> Op[None]:
        """End the loops and unregister everywhere; a failure is logged and not retried."""
        self._leaving = True
        for link in self.links:
            link.wake.fire()
        yield from gather([self._unregister(link) for link in self.links])

    # ------------------------------------------------------------ one name server

    def _keep(self, link: _Link) -> Op[None]:
        force = True
        while not self._leaving:
            link.has_news = link.is_lost = False
            ok = yield from self._try(link, force=force)
            force = not ok or self._settings.force_register
            yield from self._announce_until_next(link, ok=ok)

    def _try(self, link: _Link, *, force: bool) -> Op[bool]:
        try:
            yield from self._register(link, force=force)
            error = None
        except HalfmoonError as exc:
            error = exc
        if (error is None) != link.is_up or not link.was_tried:
            if error is None:
                log.info("registered: nameserver=%s broker=%s", link.address, self._settings.name)
            else:
                log.warning("registration failed: nameserver=%s error=%s", link.address, error)
        link.is_up = error is None
        if not link.was_tried:
            link.was_tried = True
            if all(other.was_tried for other in self.links):
                self.tried.fire()
        return link.is_up

    def _announce_until_next(self, link: _Link, *, ok: bool) -> Op[None]:
        """Wait for the next registration; announce changes meanwhile, one-way."""
        began = at = yield from steady()
        while not self._leaving:
            soon = not ok or link.is_lost
            due = began + (min(RETRY_MS, self._settings.register_ms) if soon else self._settings.register_ms)
            if at >= due:
                return
            if not link.has_news:
                yield from wait(link.wake, due - at)
            if link.has_news and not self._leaving:
                link.has_news = False
                yield from self._announce(link)
                yield from sleep(ANNOUNCE_GAP_MS + len(self._topics().topic_config_table) // 100)
            at = yield from steady()

    # ------------------------------------------------------------ requests

    def _register(self, link: _Link, *, force: bool) -> Op[RegistrationReply | None]:
        """Register, after asking whether anything changed unless ``force``. Raises NetworkError, BrokerError, PeerError."""
        if not force and not (yield from self._has_changed(link)):
            return None
        header, body = self._request()
        reply = yield Call(link.address, header, body, self._settings.register_timeout_ms)
        answer = _registration_reply(_checked(reply, link.address))
        if self._is_first(link):
            self._on_reply(answer)
        return answer

    def _announce(self, link: _Link) -> Op[None]:
        """Send the whole table one-way.

        Differs: the original sends a topic made by command alone. A name server takes a version only once, so the topics of an
        announcement that was lost before would stay unknown until the next change.
        """
        header, body = self._request()
        try:
            yield Tell(link.address, header, body, self._settings.register_timeout_ms)
        except NetworkError as exc:
            if link.is_up:  # else it is said already, and topics come by the thousand
                log.warning("announcement failed: nameserver=%s error=%s", link.address, exc)
            link.is_up, link.is_lost = False, True

    def _has_changed(self, link: _Link) -> Op[bool]:
        s = self._settings
        header = QueryDataVersion(broker_name=s.name, broker_addr=self._address, cluster_name=s.cluster, broker_id=s.broker_id)
        try:
            reply = yield Call(link.address, header, to_json(self._topics().data_version), VERSION_TIMEOUT_MS)
            return _checked(reply, link.address).header(QueryDataVersionReply).changed
        except (NetworkError, BrokerError, BadHeader):
            return True

    def _unregister(self, link: _Link) -> Op[None]:
        s = self._settings
        header = UnregisterBroker(broker_name=s.name, broker_addr=self._address, cluster_name=s.cluster, broker_id=s.broker_id)
        try:
            yield Call(link.address, header, b"", UNREGISTER_TIMEOUT_MS)
        except NetworkError as exc:
            log.warning("unregistering failed: nameserver=%s error=%s", link.address, exc)
        link.is_up = False

    def _request(self) -> tuple[RegisterBroker, bytes]:
        s, table = self._settings, self._topics()
        if self._encoded is None or self._encoded[0] != table.data_version:
            text = None if s.compressed_register else self._text()
            body = encode_register_body(RegisterBrokerBody(table), compressed=s.compressed_register, table_text=text)
            self._encoded = (table.data_version, body)
        body = self._encoded[1]
        header = RegisterBroker(
            broker_name=s.name, broker_addr=self._address, cluster_name=s.cluster, ha_server_addr=self.slave_address,
            broker_id=s.broker_id, compressed=s.compressed_register, body_crc32=crc32(body) & 0x7FFFFFFF, epoch=self.epoch,
        )  # fmt: skip
        return header, body

    def _is_first(self, link: _Link) -> bool:
        """Whether no name server before this one in the list answers now."""
        return not any(other.is_up for other in self.links[: self.links.index(link)])


class _Link:
    """One name server and the state of its loop."""

    __slots__ = ("address", "has_news", "is_lost", "is_up", "wake", "was_tried")

    def __init__(self, address: str) -> None:
        self.address = address
        self.wake = Signal()
        self.has_news = self.is_lost = self.is_up = self.was_tried = False


def _checked(reply: Command, address: str) -> Command:
    if reply.code != 0:
        raise broker_error(reply.code, reply.remark, address)
    return reply


def _registration_reply(reply: Command) -> RegistrationReply:
    """Return the registration reply of a name server. Raises PeerError."""
    header = reply.header(RegisterBrokerReply)
    table = from_json(KVTable, reply.body).table if reply.body else {}
    return RegistrationReply(header.ha_server_addr, header.master_addr, table)
