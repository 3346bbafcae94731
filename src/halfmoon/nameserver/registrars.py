"""`Registrars`: who may change what a name server tells. Checks each request that does, and bounds guesses.

Who may: machines of the setting ``register_from``, who shows a certificate of ``register_certificates``, and whoever signs with
``register_secret`` or ``register_secret_previous``, as brokers do; beside brokers with accounts, their administrators too. Without
any of these, everybody. Who reads routes is not asked.

Differs: an Apache name server takes everything from everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.columns.signing import ACCESS_KEY
from halfmoon.documentation import see
from halfmoon.errors import ACCESS_REFUSED, AccessRefused
from halfmoon.instant import LONG_AGO, Instant
from halfmoon.logs import RateLimitedLog
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings.networks import Networks
from halfmoon.wire.command import Command
from halfmoon.wire.peer import Peer
from halfmoon.wire.signature import verify
from halfmoon.wire.table import REQUESTS

GUESSES_A_MINUTE = 30
"""Requests from one address in a minute that are refused for their signature; beyond them none is verified."""
HOSTS_MAX = 10_000
"""Addresses whose guesses are counted."""

SecretsOf = Callable[[str, int], tuple[bytes, ...]]
"""Returns the secrets of the administrator with an access key that are good at a time; none: there is no such one."""

log = logging.getLogger("halfmoon.nameserver")


class Registrars:
    """The check. ``administrator`` and ``is_administrator`` are set where a broker with accounts is in the same process."""

    hosts_max = HOSTS_MAX

    def __init__(self, settings: NameServerSettings) -> None:
        self._networks = Networks(settings.register_from)
        self._secrets = [text.encode() for text in (settings.register_secret, settings.register_secret_previous) if text]
        self._certificates = frozenset(text.strip() for text in settings.register_certificates.split(",") if text.strip())
        self.administrator: SecretsOf | None = None
        self.is_administrator: Callable[[tuple[str, ...]], bool] = lambda names: False
        """Whether a certificate with these names is an administrator's."""
        self._guesses: dict[str, int] = {}
        self._minute_at = LONG_AGO
        self._log = RateLimitedLog(log, LONG_AGO)

    def check(self, command: Command, peer: Peer, now: Instant) -> None:
        """Raise AccessRefused (1) for a request that changes what is told, from who may not do that."""
        line = REQUESTS.get(command.code)
        if line is None or line.needs is None or not line.needs.registers:
            return
        if not (self._networks or self._secrets or self._certificates or self.administrator):
            return
        host = peer.remote.rpartition(":")[0]
        if self._certified(peer) or self._listed(host):
            return
        if now.steady >= self._minute_at:
            self._minute_at = now.steady + 60_000
            self._guesses.clear()
        if self._guesses.get(host, 0) < GUESSES_A_MINUTE and self._signed(command, now):
            return
        if host in self._guesses or len(self._guesses) < self.hosts_max:
            self._guesses[host] = self._guesses.get(host, 0) + 1
        self._log.tick(now.steady)
        self._log.warning(
            "refused: request=%s from=%s certificate=%.200r: it is not signed by who may register brokers",
            line.name, peer.remote, peer.names[:3],
        )  # fmt: skip
        raise AccessRefused(f"{ACCESS_REFUSED}{line.name} needs the right to register: see {see('access')}")

    def _certified(self, peer: Peer) -> bool:
        return not self._certificates.isdisjoint(peer.names) or self.is_administrator(peer.names)

    def _listed(self, host: str) -> bool:
        return self._networks.hold(host)

    def _signed(self, command: Command, now: Instant) -> bool:
        access_key = command.fields.get(ACCESS_KEY)
        if access_key is None:
            return False
        secrets = [*self._secrets, *(self.administrator(access_key, now.date) if self.administrator is not None else ())]
        return any(verify(secret, command.fields, command.body) for secret in secrets)
