"""`Admission`: who may copy the log: slaves from listed addresses, and with access control those that sign as an administrator.

A slave of ours signs its greeting together with random bytes that it is sent on this connection alone, so a recorded greeting is
worth nothing. Its secret is not sent. Instead of that it may show the certificate of an account. Slaves of RocketMQ cannot sign:
where access control is on their addresses must be listed, and who comes from a listed address is not asked to sign.
Until a slave has signed it is kept here: a few at a time, and not for long.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from halfmoon.broker.access.access import Access
from halfmoon.broker.access.accounts import Account
from halfmoon.broker.settings import BrokerSettings
from halfmoon.documentation import see
from halfmoon.effects import Close, CoreEffect, Write
from halfmoon.errors import AccessRefused
from halfmoon.instant import Steady
from halfmoon.logs import CountedLog
from halfmoon.settings.networks import Networks
from halfmoon.wire.copying import CHALLENGE, FRAME, REFUSAL, REFUSAL_BYTES_MAX, Report, ReportReader, is_signed

log = logging.getLogger("halfmoon.broker")

UNSIGNED_MAX = 16
"""Connections that have not signed yet. Beyond them one is closed."""
SIGN_MS = 10_000
"""Longest time from a connection to its signature."""
CANNOT_SIGN = f"a slave of RocketMQ cannot sign: with access control its address must be in slaves_from ({see('replication')})"
UNLISTED = f"its address is not in slaves_from ({see('replication')})"


class Admitted(NamedTuple):
    """A slave that may copy by its account. ``reports`` came with the signature; ``signer`` None: it showed a certificate."""

    remote: str
    reader: ReportReader
    reports: list[Report]
    signer: Account | None
    names: tuple[str, ...] = ()


class _Unsigned:
    """A connection that has not signed yet."""

    __slots__ = ("challenge", "names", "reader", "remote", "until")

    def __init__(self, remote: str, until: Steady) -> None:
        self.remote, self.until, self.reader = remote, until, ReportReader()
        self.names: tuple[str, ...] = ()
        self.challenge = b""
        self.reader.awaits_signature = True


class Admission:
    """The admission of one broker. ``secret`` makes its challenges: nobody else may know or guess it."""

    def __init__(self, settings: BrokerSettings, now: Steady, access: Access | None = None, secret: bytes = b"") -> None:
        self._listed, self._access, self._secret, self._count = Networks(settings.slaves_from), access, secret, 0
        self._unsigned: dict[int, _Unsigned] = {}
        """By connection, the oldest first."""
        self._admitted: dict[int, Admitted] = {}
        self._effects: list[CoreEffect] = []
        self._refusals = CountedLog(log, "slave refused", now)

    def connected(self, peer: int, remote: str, now: Steady) -> bool:
        """Take a connection; return whether it may copy at once. Else it is refused, or has to sign."""
        self._refusals.tick(now)
        if self._listed.hold_peer(remote) or (not self._listed and self._access is None):
            return True
        if self._access is None:
            self.refuse(peer, remote, UNLISTED)
            return False
        if len(self._unsigned) >= UNSIGNED_MAX:
            self._refuse_one()
        self._unsigned[peer] = _Unsigned(remote, now + SIGN_MS)
        return False

    def _refuse_one(self) -> None:
        """Refuse the oldest connection that has not signed, of the address that has most of them."""
        hosts = {peer: unsigned.remote.rpartition(":")[0] for peer, unsigned in self._unsigned.items()}
        most, count = Counter(hosts.values()).most_common(1)[0]
        peer = next(peer for peer, host in hosts.items() if host == most)
        reason = f"it is the oldest of {count} of its address, and there are {UNSIGNED_MAX} that have not signed"
        self.refuse(peer, self._unsigned[peer].remote, reason)

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in the certificate of a connection."""
        if (unsigned := self._unsigned.get(peer)) is not None:
            unsigned.names = names

    def feed(self, peer: int, data: bytes) -> Admitted | None:
        """Read a greeting, ask for a signature, check it; return the slave once it may copy."""
        if (unsigned := self._unsigned.get(peer)) is None:
            return None
        try:
            return self._read(peer, unsigned, data)
        except AccessRefused as exc:
            self.refuse(peer, unsigned.remote, exc.remark)
        except ValueError as exc:
            self.refuse(peer, unsigned.remote, str(exc))
        return None

    def _read(self, peer: int, unsigned: _Unsigned, data: bytes) -> Admitted | None:
        """Do what `feed` does. Raises AccessRefused; ValueError for what no slave of ours sends."""
        assert self._access is not None
        reader, remote = unsigned.reader, unsigned.remote
        reports, hello = reader.read(data), reader.hello
        if hello is None:
            if reader.has_begun:
                raise ValueError(CANNOT_SIGN)
            return None
        signer = None
        if self._access.slave_of(unsigned.names) is None:
            if not unsigned.challenge:
                self._count += 1
                unsigned.challenge = sha256(self._secret + self._count.to_bytes(8)).digest()
                self._effects.append(Write(peer, [FRAME.pack(CHALLENGE, 0, len(unsigned.challenge)), unsigned.challenge]))
            if (signature := reader.signature) is None:
                return None
            check = partial(is_signed, signature, challenge=unsigned.challenge, hello=hello)
            signer = self._access.check_slave(remote, signature.access_key, check)
        del self._unsigned[peer]
        admitted = self._admitted[peer] = Admitted(remote, reader, reports, signer, unsigned.names)
        return admitted

    def refuse(self, peer: int, remote: str, reason: str) -> None:
        """Close a connection and log why, once for each address and reason. A slave that signed is told, too."""
        unsigned, admitted = self._unsigned.pop(peer, None), self._admitted.pop(peer, None)
        if admitted is not None or (unsigned is not None and unsigned.reader.signature is not None):
            text = reason.encode()[:REFUSAL_BYTES_MAX]
            self._effects.append(Write(peer, [FRAME.pack(REFUSAL, 0, len(text)), text]))
        self._effects.append(Close(peer, reason))
        self._refusals.count(f"from={remote.rpartition(':')[0]} reason={reason}")

    def lost(self, peer: int) -> None:
        """Forget a connection."""
        self._unsigned.pop(peer, None)
        self._admitted.pop(peer, None)

    def revoked(self) -> list[tuple[int, str]]:
        """Return the connections that may not copy any more, each with the reason. Called when accounts have changed."""
        access, found = self._access, list[tuple[int, str]]()
        assert access is not None
        for peer, slave in self._admitted.items():
            if slave.signer is None:
                if access.slave_of(slave.names) is None:
                    found.append((peer, "no account that may copy has its certificate any more"))
            elif not access.may_copy_on(slave.signer):
                found.append((peer, f"accessKey={slave.signer.access_key}, with which it signed, may not copy any more"))
        return found

    def due(self) -> Steady | None:
        """When the next connection must have signed."""
        return min((unsigned.until for unsigned in self._unsigned.values()), default=None)

    def tick(self, now: Steady) -> None:
        """Close connections that have not signed in time."""
        self._refusals.tick(now)
        for peer, unsigned in [*self._unsigned.items()]:
            if now >= unsigned.until:
                self.refuse(peer, unsigned.remote, f"it did not sign within {SIGN_MS // 1000} s")

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be sent and closed."""
        taken, self._effects = self._effects, []
        return taken
