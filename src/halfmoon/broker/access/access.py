"""`Access`: who may send what. Checks each request against the rules, bounds guesses, and looks after the rule files.

The order of the tests is the original's: global white addresses, access key, the account's white addresses, signature, permissions.
Files are looked at every `RELOAD_MS`, and read again when one has changed; while they make no sense the last good rules stay, which
is logged and shown. Never waits: files are read and written as `Work`, one at a time.

Follows PlainAccessValidator and PlainPermissionManager (RocketMQ 4.9.7).
Differs: an account's secret may be guessed `GUESSES_A_MINUTE` times a minute from one address. Codes 50 to 54 and our own
administrative ones need an administrator; sends of batches (320) need PUB, and a message for a retry topic needs SUB of that
topic's group, where the original looks at the producer group or at nothing. The remark of a refusal leaves out the line of Java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from halfmoon.broker.access.addresses import among, numbers_of
from halfmoon.broker.access.files import Edit, RuleFiles, Rules
from halfmoon.effects import Work
from halfmoon.errors import ACCESS_REFUSED, AccessRefused, HalfmoonError, PeerError, SystemBusy
from halfmoon.logs import RateLimitedLog
from halfmoon.wire.command import Command
from halfmoon.wire.needs import ADMIN, Needs, account
from halfmoon.wire.peer import Peer
from halfmoon.wire.signature import ACCESS_KEY, verify
from halfmoon.wire.table import REQUESTS

RELOAD_MS = 5000
"""How often the files are looked at. Follows AclFileWatchService."""

GUESSES_A_MINUTE = 30
"""Wrong signatures of one access key from one address in a minute; beyond them only connections that have proved it are heard."""

ADDRESSES_MAX = 10_000
"""Addresses whose guesses are counted, and whose place among the white addresses is remembered."""

CHANGES_MAX = 100
"""Changes that may wait for the one under way."""

UNKNOWN = account("an unknown code, which is answered as such")

Changed = Callable[[Exception | None, int], None]
"""Called once a change is on the device, or with the reason why it is not; and the time."""

log = logging.getLogger("halfmoon.broker.access")


class Access:
    """Access control of one broker. ``files`` must make sense at the start: raises SettingError, OSError."""

    def __init__(self, files: RuleFiles, now: int) -> None:
        self.files = files
        self.rules = Rules()
        self.fault: str | None = None
        """Why the files make no sense now."""
        self.refusals = {"signature": 0, "permission": 0, "guesses": 0}
        """How many requests were refused: they are not signed by a known account, it lacks a permission, it guessed too often."""
        self._log = RateLimitedLog(log, now)
        self._white: dict[str, tuple[tuple[int, ...], bool]] = {}
        self._guesses: dict[tuple[str, str], int] = {}
        self._proved: dict[int, str] = {}
        self._told: set[tuple[str, str]] = set()
        self._minute_ms, self._look_ms = now + 60_000, now + RELOAD_MS
        self._works: deque[Work[Any]] = deque()
        self._busy = False
        self._use(files.load())

    # ------------------------------------------------------------ requests

    def check(self, command: Command, peer: Peer) -> None:
        """Let a request pass. Raises AccessRefused (1) for one that may not be sent, in the original's words."""
        try:
            self._check(command, peer)
        except _Refused as exc:
            self.refusals[exc.kind] += 1
            self._tell(exc, command.code, peer)
            raise AccessRefused(ACCESS_REFUSED + str(exc)) from None

    def _check(self, command: Command, peer: Peer) -> None:
        host = peer.remote.rpartition(":")[0]
        numbers, white = self._white.get(host) or self._look_up(host)
        if white:
            return
        access_key = command.fields.get(ACCESS_KEY)
        if access_key is None:
            raise _Refused("signature", "No accessKey is configured")
        owner = self.rules.accounts.get(access_key)
        if owner is None:
            raise _Refused("signature", f"No acl config for {access_key:.256}")
        if owner.white and among(numbers, owner.white):
            return
        proved = self._proved.get(peer.number) == access_key
        guesses = self._guesses.get((host, access_key), 0)
        if guesses >= GUESSES_A_MINUTE and not proved:
            raise _Refused("guesses", f"Too many wrong signatures for accessKey={access_key} from {host}, wait a minute")
        if not verify(owner.secret, command.fields, command.body):
            if len(self._guesses) >= ADDRESSES_MAX and not guesses:
                del self._guesses[next(iter(self._guesses))]
            self._guesses[host, access_key] = guesses + 1
            raise _Refused("signature", f"Check signature failed for accessKey={access_key}")
        if not proved:
            self._proved[peer.number] = access_key
        needs, resources = needed(command)
        if (refusal := owner.refusal(command.code, needs, resources)) is not None:
            raise _Refused("permission", refusal)

    def _look_up(self, host: str) -> tuple[tuple[int, ...], bool]:
        if len(self._white) >= ADDRESSES_MAX:
            self._white.clear()
        numbers = numbers_of(host)
        found = self._white[host] = numbers, among(numbers, self.rules.white)
        return found

    def _tell(self, refused: _Refused, code: int, peer: Peer) -> None:
        """Log a refusal, each once a minute and address."""
        host = peer.remote.rpartition(":")[0]
        if (host, str(refused)) not in self._told and len(self._told) < ADDRESSES_MAX:
            self._told.add((host, str(refused)))
            self._log.warning("access refused: reason=%s code=%d from=%s", refused, code, peer.remote)

    def lost(self, peer: int) -> None:
        """A connection is gone."""
        self._proved.pop(peer, None)

    # ------------------------------------------------------------ rules

    def change(self, path: str, edit: Edit, done: Changed, now: int) -> None:
        """Change a file; ``done`` is called when the new rules count. Raises SystemBusy (2) when too many changes wait."""
        if len(self._works) >= CHANGES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

        def changed(result: Rules | Exception, now: int) -> None:
            self._busy = False
            if isinstance(result, Exception):
                done(result, now)
            else:
                self._use(result)
                done(None, now)

        self._works.append(Work(partial(self.files.change, path, edit, now), changed, name="change accounts"))

    def work(self) -> list[Work[Any]]:
        """Take out the next thing to do with the files, if none is under way."""
        if self._busy or not self._works:
            return []
        self._busy = True
        return [self._works.popleft()]

    def due(self) -> int:
        """When `tick` wants to be called next."""
        return min(self._look_ms, self._minute_ms)

    def tick(self, now: int) -> None:
        """Look at the files again, and forget what was counted in the last minute."""
        self._log.tick(now)
        if now >= self._minute_ms:
            self._minute_ms = now + 60_000
            self._guesses.clear()
            self._told.clear()
        if now >= self._look_ms:
            self._look_ms = now + RELOAD_MS
            if not self._busy and not self._works:
                self._works.append(Work(partial(self.files.newer, self.rules), self._looked, name="look at accounts"))

    def stepped(self, by_ms: int) -> None:
        """The clock was set: a minute lasts a minute."""
        self._minute_ms += by_ms
        self._look_ms += by_ms
        self._log.stepped(by_ms)

    def texts(self) -> dict[str, str]:
        """Runtime information (28)."""
        refused = " ".join(f"{kind}={count}" for kind, count in self.refusals.items())
        texts = {"aclAccounts": str(len(self.rules.accounts)), "aclRefusals": refused}
        return texts | ({"aclFault": self.fault} if self.fault is not None else {})

    def _looked(self, result: Rules | Exception | None, now: int) -> None:
        self._busy = False
        if isinstance(result, Exception):
            if self.fault != str(result):
                log.error("accounts are not read again, the last ones stay: %s", result)
            self.fault = str(result)
        elif result is not None:
            self._use(result)
            log.warning("accounts were read again: accounts=%d", len(result.accounts))
        elif self.fault is not None:
            self.fault = None

    def _use(self, rules: Rules) -> None:
        """Let rules count. Who has proved another secret before must do so again."""
        old, self.rules, self.fault = self.rules, rules, None
        self._white.clear()
        for peer, access_key in list(self._proved.items()):
            if old.accounts.get(access_key) != rules.accounts.get(access_key):
                del self._proved[peer]
        if rules.repeated:
            log.warning("access keys are given more than once, the first counts: %s", ", ".join(rules.repeated[:10]))


class _Refused(HalfmoonError):
    """A request that may not be sent; ``kind`` is that of the count."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def needed(command: Command) -> tuple[Needs, list[Any]]:
    """Return what a request needs and the resources that it names."""
    line = REQUESTS.get(command.code)
    if line is None:
        return UNKNOWN, []
    needs = ADMIN if line.needs is None else line.needs
    try:
        return needs, needs.of(command.fields, command.body, line.names)
    except PeerError as exc:
        raise _Refused("permission", str(exc)) from None
