"""`Access`: which requests an account may send. Checks each one, bounds guesses of secrets, reloads and changes the rule files.

The order of the tests is the original's: global white addresses, access key, the account's white addresses, signature, permissions.
A connection whose verified certificate has an account's name belongs to that account: its requests need no signature and name
no other. It is closed when changed rules give its certificate to another account or to none: a connection has one account for life.
Permissions are for the objects of a request (`halfmoon.wire.needs`); decisions about half messages, and who is asked about them,
are checked where these are known (`Access.check_produces`).
A previous secret is refused once it has expired: connections that signed with it must then sign with the new one (`Access.turn`).
Files are looked at every `RELOAD_MS`, and read again when one has changed; while they cannot be read, the last good rules stay in
effect, and the fault is logged and shown. Never waits: files are read and written as `Work`, one at a time.

Follows PlainAccessValidator and PlainPermissionManager (RocketMQ 4.9.7).
Differs: an account's secret may be guessed `GUESSES_A_MINUTE` times a minute from one address. Codes 50 to 54 and our own
administrative ones need an administrator; sends of batches (320) need PUB, and a message for a retry topic needs SUB of that
topic's group, where the original looks at the producer group or at nothing. The remark of a refusal names no line of Java source.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from halfmoon.broker.access.accounts import Account
from halfmoon.broker.access.addresses import among, numbers_of
from halfmoon.broker.access.files import Edit, RuleFiles, Rules
from halfmoon.broker.access.previous import PreviousSecrets, Uses, text
from halfmoon.broker.service import Service
from halfmoon.broker.settings import AclMode, BrokerSettings
from halfmoon.columns.signing import ACCESS_KEY
from halfmoon.effects import Work
from halfmoon.errors import ACCESS_REFUSED, AccessRefused, HalfmoonError, PeerError, SystemBusy
from halfmoon.hot import Verifier
from halfmoon.instant import Instant, Steady
from halfmoon.limits import TOPIC_LENGTH_MAX
from halfmoon.logs import RateLimitedLog
from halfmoon.wire.command import Command
from halfmoon.wire.needs import ADMIN, ANY, PUB, RETRY_PREFIX, SUB, Needs, Resource, TopicAt, account
from halfmoon.wire.peer import Peer
from halfmoon.wire.signature import verify
from halfmoon.wire.table import REQUESTS, request_text

RELOAD_MS = 5000
"""How often the files are looked at. Follows AclFileWatchService."""

GUESSES_A_MINUTE = 30
"""Wrong signatures of one access key from one address (of IPv6: network /64) in a minute; beyond them only requests of
connections that have already signed with that key are checked."""

ADDRESSES_MAX = 10_000
"""Addresses whose guesses are counted, and refusals that are told apart."""

ALLOWED_MAX = 65_536
"""Allowed requests that are remembered."""

PULL = 11

CHANGES_MAX = 100
"""Changes that may wait for the one under way."""

COPIES = "a slave needs the account of an administrator without permissions for single topics or groups"

UNKNOWN = account("an unknown code, which is answered as such")

Changed = Callable[[Exception | None, Instant], None]
"""Called with None once a change is on the device, else with the error; and with the time."""

log = logging.getLogger("halfmoon.broker.access")


class Known(msgspec.Struct):
    """Facts about one connection.

    ``guesser`` is the key under which its wrong signatures are counted. ``white``: its address needs no account; None: to be looked
    up, since the white addresses changed. ``bound`` are the access keys of the accounts that have one of the ``names`` of its
    certificate. ``proved`` is the access key of its last request that passed, ``verifier`` lets its next sends pass at once, and
    ``signer`` is the account, with the secret that signed that request; None: nothing signed it.
    """

    host: str
    numbers: tuple[int, ...]
    guesser: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    white: bool | None = None
    proved: str = ""
    verifier: Verifier | None = None
    signer: Account | None = None


class Access(Service):
    """Access control of one broker. ``files`` must make sense at the start: raises SettingError, OSError.

    ``rocketmq``: rights are taken from headers, as in 4.9, not from the objects that requests are about.
    """

    addresses_max = ADDRESSES_MAX
    allowed_max = ALLOWED_MAX

    def __init__(self, files: RuleFiles, now: Instant, *, rocketmq: bool = False) -> None:
        self.files, self._rocketmq = files, rocketmq
        self.topic_at: TopicAt = lambda place: None
        """Knows the messages that requests name by their places."""
        self.gathered: Mapping[int, str] = {}
        """Wire name of the topic field by code of sends and decisions ("": it has none). Allowed ones are remembered."""
        self.rules = Rules()
        self.fault: str | None = None
        """Why the files make no sense now."""
        self.refusals = {"signature": 0, "permission": 0, "guesses": 0}
        """Number of refused requests: no valid signature of a known account, a missing permission, too many guesses."""
        self._log = RateLimitedLog(log, now.steady)
        self._guesses: dict[tuple[str, str], int] = {}
        self._known: dict[int, Known] = {}
        self._allowed: set[tuple[Verifier, int, str]] = set()
        """Verifier of the sender, request code and topic of the sends and decisions that were allowed."""
        self._verifiers: dict[tuple[str, bytes | None, bool], Verifier] = {}
        """By access key, secret (None for those that need not sign) and whether their connections are bound; each knows what of
        `_allowed` is its own."""
        self.previous = PreviousSecrets()
        self._told: set[tuple[str, str]] = set()
        self._minute_at, self._look_at = now.steady + 60_000, now.steady + RELOAD_MS
        self._works: deque[Work[Any]] = deque()
        self._busy = False
        self._unchanged: frozenset[str] = frozenset()
        """Access keys whose account the last change of the rules left as it was."""
        self.on_change: Callable[[list[int], list[int]], None] = lambda rebound, revoked: None
        """Called when new rules take effect: with the connections whose certificate now belongs to another account or to none, and
        with the other connections whose last signature was made with a secret that is valid no longer."""
        self._digest: tuple[Rules, str] | None = None
        self.turn(now.date)
        self._use(files.load(), now.date)

    # ------------------------------------------------------------ requests

    def check(self, command: Command, peer: Peer) -> Account | None:
        """Let a request pass and return its account; None: it comes from a global white address.

        The account is the one that the request names, or that its connection is bound to.

        Raises AccessRefused (1) for a request that may not be sent, with RocketMQ's text.
        """
        try:
            return self._check(command, peer)
        except _Refused as exc:
            if exc.guessed is not None:
                self._guessed(self.known(peer).guesser, exc.guessed)
            raise self._refusal(exc, command.code, peer) from None

    def is_anothers(self, command: Command, peer: Peer) -> bool:
        """Return whether a request names an account that its connection has not proved."""
        key, proved = command.fields.get(ACCESS_KEY), self.known(peer).proved
        return key is not None and key != proved

    def check_held(self, account: Account | None, topic: str, group: str, peer: Peer) -> None:
        """Check a held pull again after the rules changed. ``account`` is what `check` returned. Raises AccessRefused (1).

        Differs: in the original a held pull goes on returning messages until its time is over.
        """
        if account is not None and account.access_key in self._unchanged:
            return
        known = self.known(peer)
        if known.white:
            return
        try:
            if account is None:
                raise _Refused("signature", f"No white address covers {known.host} any more")
            owner = self._owner(account.access_key)
            if _is_white(owner, known):
                return
            is_signed = account.secret in owner.secrets and not _is_white(account, known)  # with a secret that is still valid
            if not is_signed and known.bound != (owner.access_key,):
                raise _Refused("signature", f"Check signature failed for accessKey={account.access_key}")
            self._check_resources(owner, PULL, Needs(), [(topic, SUB), (RETRY_PREFIX + group, SUB)])
        except _Refused as exc:
            raise self._refusal(exc, PULL, peer) from None

    def check_slave(self, remote: str, access_key: str, is_signed: Callable[[bytes], bool]) -> Account:
        """Return the account of a slave, with the one secret that ``is_signed`` finds in its greeting. Raises AccessRefused (1).

        Slaves read everything, so it must be `may_copy`. White addresses do not count: those of slaves are in ``slaves_from``.
        """
        host = remote.rpartition(":")[0]
        guesser = _guesser(host, numbers_of(host))
        try:
            owner = self._owner(access_key)
            if self._guesses.get((guesser, access_key), 0) >= GUESSES_A_MINUTE:
                raise _Refused("guesses", f"too many wrong signatures of accessKey={access_key}, wait a minute")
            if (signer := owner.signer(is_signed)) is None:
                ended = self.previous.ended(access_key)
                knew = ended is not None and is_signed(ended)  # no guess, but an expired secret
                raise _Refused("signature", f"the signature of accessKey={access_key} is wrong", None if knew else access_key)
            if not owner.may_copy:
                raise _Refused("permission", f"{COPIES}, and accessKey={access_key} is none")
            if signer is not owner:
                self.previous.used(access_key, host, self._now)
        except _Refused as exc:
            if exc.guessed is not None:
                self._guessed(guesser, exc.guessed)
            self.refusals[exc.kind] += 1
            raise AccessRefused(str(exc)) from None
        return signer

    def slave_of(self, names: tuple[str, ...]) -> Account | None:
        """Return the account that the certificate of a slave is for, if that one may copy."""
        keys = self.rules.keys_of(names)
        owner = self.rules.accounts[keys[0]] if len(keys) == 1 else None
        return owner if owner is not None and owner.may_copy else None

    def may_copy_on(self, signer: Account) -> bool:
        """Return whether the account that `check_slave` returned may still copy, and its secret still counts."""
        return self._has_secret(signer) and self.rules.accounts[signer.access_key].may_copy

    def check_produces(self, peer: Peer, access_key: str, group: str, code: int, topic: str | None = None) -> None:
        """Check that an account may produce in a group, and decide about half messages for a topic. Raises AccessRefused (1)."""
        known, owner = self.known(peer), self.rules.accounts.get(access_key)
        if self._rocketmq or known.white or (owner is not None and _is_white(owner, known)):
            return
        resources = [(RETRY_PREFIX + group, ANY), *([(topic, PUB)] if topic is not None else [])]
        try:
            self._check_resources(self._owner(access_key), code, Needs(), resources)
        except _Refused as exc:
            raise self._refusal(exc, code, peer) from None

    def _check_resources(self, owner: Account, code: int, needs: Needs, resources: list[Resource]) -> None:
        if (refusal := owner.refusal(code, needs, resources, rocketmq=self._rocketmq)) is not None:
            raise _Refused("permission", refusal)

    def _check(self, command: Command, peer: Peer) -> Account | None:
        known = self.known(peer)
        if known.white:
            return self.bound(peer)
        fields = command.fields
        access_key = _access_key(fields.get(ACCESS_KEY), known)
        owner = self._owner(access_key)
        if _is_white(owner, known):
            self._prove(known, access_key, None)
            return owner
        # A request without a key is its connection's, see `_access_key`.
        signs = ACCESS_KEY in fields
        signer = self._signer(command, known, owner) if signs else owner
        verifier = self._prove(known, access_key, signer.secret)
        known.signer = signer if signs else None
        if signer is not owner:
            self.previous.used(access_key, known.host, self._now)
        field = self.gathered.get(command.code)
        asked = verifier, command.code, fields.get(field, "") if field else ""
        if asked in self._allowed:
            return signer
        self._check_resources(owner, command.code, *self._needed(command))
        if field is not None and len(asked[2]) <= TOPIC_LENGTH_MAX:
            self._allow(asked)
        return signer

    def _signer(self, command: Command, known: Known, owner: Account) -> Account:
        """Return the account with the secret that a request is signed with. Raises _Refused."""
        key = owner.access_key
        is_proved = known.signer is not None and known.signer.access_key == key  # a certificate proves no secret
        if not is_proved and self._guesses.get((known.guesser, key), 0) >= GUESSES_A_MINUTE:
            raise _Refused("guesses", f"Too many wrong signatures for accessKey={key} from {known.host}, wait a minute")
        signer = owner.signed(command.fields, command.body)
        if signer is None:
            ended = self.previous.ended(key)
            knew = ended is not None and verify(ended, command.fields, command.body)  # no guess, but an expired secret
            raise _Refused("signature", f"Check signature failed for accessKey={key}", None if knew else key)
        return signer

    def _needed(self, command: Command) -> tuple[Needs, list[Resource]]:
        """Return what a request needs and the resources that it is about."""
        line = REQUESTS.get(command.code)
        if line is None:
            return UNKNOWN, []
        needs = ADMIN if line.needs is None else line.needs
        if self._rocketmq and needs.rocketmq is not None:
            needs = needs.rocketmq
        try:
            return needs, needs.of(command.fields, command.body, line.names, self.topic_at)
        except PeerError as exc:
            raise _Refused("permission", str(exc)) from None

    def _owner(self, access_key: str) -> Account:
        owner = self.rules.accounts.get(access_key)
        if owner is None:
            raise _Refused("signature", f"No acl config for {access_key:.256}")
        return owner

    def _refusal(self, refused: _Refused, code: int, peer: Peer) -> AccessRefused:
        """Count a refusal and log it."""
        self.refusals[refused.kind] += 1
        self._tell(refused, code, peer)
        return AccessRefused(ACCESS_REFUSED + str(refused))

    def _prove(self, known: Known, access_key: str, secret: bytes | None) -> Verifier:
        """Let the next sends of a connection be read at once, if they are this account's and, where they need a secret, allowed."""
        which = access_key, secret, bool(known.bound)
        verifier = self._verifiers.get(which)
        if verifier is None:
            verifier = self._verifiers[which] = Verifier(access_key, secret, bound=which[2])
        known.proved, known.verifier, known.signer = access_key, verifier, None
        return verifier

    def _allow(self, asked: tuple[Verifier, int, str]) -> None:
        if len(self._allowed) >= self.allowed_max:
            self._forget_allowed()
            return
        self._allowed.add(asked)
        asked[0].allow(asked[1], asked[2])

    def _forget_allowed(self) -> None:
        self._allowed.clear()
        self._verifiers.clear()
        for known in self._known.values():
            known.verifier = None

    def known(self, peer: Peer) -> Known:
        """Return what is known of a connection."""
        known = self._known.get(peer.number)
        if known is None:
            host = peer.remote.rpartition(":")[0]
            numbers = numbers_of(host)
            known = Known(host, numbers, _guesser(host, numbers), peer.names, self.rules.keys_of(peer.names))
            self._known[peer.number] = known
        if known.white is None:
            known.white = among(known.numbers, self.rules.white)
        return known

    def bound(self, peer: Peer) -> Account | None:
        """Return the account that a connection's certificate is for; None: it has none, or several accounts have its names."""
        keys = self.known(peer).bound
        return self.rules.accounts[keys[0]] if len(keys) == 1 else None

    def _guessed(self, guesser: str, access_key: str) -> None:
        """Count a wrong signature; the address that came first is forgotten when there are too many."""
        count = self._guesses.pop((guesser, access_key), 0)
        if len(self._guesses) >= self.addresses_max:
            del self._guesses[next(iter(self._guesses))]
        self._guesses[guesser, access_key] = count + 1

    def _tell(self, refused: _Refused, code: int, peer: Peer) -> None:
        """Log a refusal; the same one from the same address once a minute at most."""
        host = self.known(peer).host
        if (host, str(refused)) not in self._told and len(self._told) < self.addresses_max:
            self._told.add((host, str(refused)))
            self._log.warning("access refused: reason=%s request=%s from=%s", refused, request_text(code), peer.remote)

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Forget a lost connection."""
        self._known.pop(peer, None)

    # ------------------------------------------------------------ rules

    def change(self, path: str, edit: Edit, done: Changed, now: int) -> None:
        """Change a file; ``done`` is called when the new rules count. Raises SystemBusy (2) when too many changes wait."""
        if len(self._works) >= CHANGES_MAX:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")

        def changed(result: Rules | Exception, now: Instant) -> None:
            self._busy = False
            if isinstance(result, Exception):
                done(result, now)
            else:
                done(None, now)  # first: who removes its own account is answered before its connection is closed
                self._use(result, now.date)

        self._works.append(Work(partial(self.files.change, path, edit, now), changed, name="change accounts"))

    def work(self) -> list[Work[Any]]:
        """Take out the next thing to do with the files, if none is under way."""
        if self._busy or not self._works:
            return []
        self._busy = True
        return [self._works.popleft()]

    def due(self, now: Instant) -> Steady:
        """When `tick` wants to be called next."""
        return min(self._look_at, self._minute_at, now.at(self.previous.due_ms))

    def turn(self, now: int) -> None:
        """Begin a turn: requests signed with a secret that has expired are refused from now on."""
        self._now = now
        if now >= self.previous.due_ms:
            self._count(self.rules, now)

    def tick(self, now: Instant) -> None:
        """Look at the files again, and forget what was counted in the last minute."""
        self._log.tick(now.steady)
        self.turn(now.date)
        if now.steady >= self._minute_at:
            self._minute_at = now.steady + 60_000
            self._guesses.clear()
            self._told.clear()
        if now.steady >= self._look_at:
            self._look_at = now.steady + RELOAD_MS
            if not self._busy and not self._works:
                self._works.append(Work(partial(self.files.newer, self.rules), self._looked, name="look at accounts"))

    def texts(self, now: Instant) -> dict[str, str]:
        """Runtime information (28)."""
        refused = " ".join(f"{kind}={count}" for kind, count in self.refusals.items())
        texts = {"aclAccounts": str(len(self.rules.accounts)), "aclRefusals": refused, "aclPreviousSecrets": text(self.uses())}
        return texts | ({"aclFault": self.fault} if self.fault is not None else {})

    def _looked(self, result: Rules | Exception | None, now: Instant) -> None:
        self._busy = False
        if isinstance(result, Exception):
            if self.fault != str(result):
                log.error("the rule files cannot be read, the last good rules stay in effect: %s", result)
            self.fault = str(result)
        elif result is not None:
            self._use(result, now.date)
            log.warning("accounts were read again: accounts=%d", len(result.accounts))
        elif self.fault is not None:
            self.fault = None

    def digest(self) -> str:
        """Return the digest of the present rules, see `Rules.digest`."""
        if self._digest is None or self._digest[0] is not self.rules:
            self._digest = self.rules, self.rules.digest()
        return self._digest[1]

    def uses(self) -> Mapping[str, Uses]:
        """Return who uses the previous secrets, by access key; a connection that signed with one last uses it now."""
        for known in self._known.values() if self.previous.by_account else ():
            if known.signer is not None and known.signer.secret == self.rules.accounts[known.proved].previous:
                self.previous.used(known.proved, known.host, self._now)
        return self.previous.by_account

    def _use(self, rules: Rules, now: int) -> None:
        """Put rules that were read into effect."""
        self.fault = None
        if rules.repeated:
            log.warning("access keys are given more than once, the first counts: %s", ", ".join(rules.repeated[:10]))
        self._count(rules, now)

    def _count(self, rules: Rules, now: int) -> None:
        """Put rules into effect, without secrets that have expired by now, and forget what was derived from the old rules."""
        before = self.rules
        self.rules = rules = msgspec.structs.replace(rules, accounts=self.previous.count(rules.accounts, before.accounts, now))
        if before.white == rules.white:
            same = (key for key, account in rules.accounts.items() if before.accounts.get(key) == account)
            self._unchanged = frozenset(same)
        else:
            self._unchanged = frozenset()
        self._forget_allowed()
        rebound, revoked = [], []
        for number, known in [*self._known.items()]:
            if known.bound != rules.keys_of(known.names):
                rebound.append(number)
                del self._known[number]
                continue
            if before.white != rules.white:
                known.white = None
            if known.signer is not None and not self._has_secret(known.signer):
                known.signer = None
                revoked += [] if known.bound else [number]
            if known.signer is None and not known.bound:  # else it has proved a valid secret, and keeps that
                known.proved = ""
        self.on_change(rebound, revoked)

    def _has_secret(self, signer: Account) -> bool:
        """Whether the secret of a ``signer`` is still one of its account's secrets."""
        owner = self.rules.accounts.get(signer.access_key)
        return owner is not None and signer.secret in owner.secrets


def access_of(settings: BrokerSettings, files: RuleFiles, now: Instant) -> Access | None:
    """Return the access control that settings ask for; None: none. Raises what `Access` does."""
    files = files._replace(open_to_others=settings.acl_readable_by_others)
    return Access(files, now, rocketmq=settings.acl_mode is AclMode.ROCKETMQ) if settings.acl_enable else None


class _Refused(HalfmoonError):
    """Refusal of a request. ``kind`` is its key in `Access.refusals`, ``guessed`` the access key with a wrong signature, if any."""

    def __init__(self, kind: str, reason: str, guessed: str | None = None) -> None:
        super().__init__(reason)
        self.kind, self.guessed = kind, guessed


def _access_key(signed: str | None, known: Known) -> str:
    """Return the access key of a request: that of its connection's certificate, else the one that it is ``signed`` with."""
    if len(known.bound) > 1:
        raise _Refused("signature", f"The certificate is that of several accounts: {', '.join(known.bound[:3])}")
    if not known.bound:
        if signed is not None:
            return signed
        shown = ", ".join(f"{name!r:.100}" for name in known.names[:3])
        unknown = f", and no account has the certificate {shown}" if shown else ""
        raise _Refused("signature", f"No accessKey is configured{unknown}")
    if signed not in (None, *known.bound):
        raise _Refused("signature", f"The certificate is that of {known.bound[0]}, and not of accessKey={signed:.256}")
    return known.bound[0]


def _guesser(host: str, numbers: tuple[int, ...]) -> str:
    """Return under what guesses from an address are counted: one host of IPv6 may use all that begin with the same 64 bits."""
    return ":".join(f"{number:x}" for number in numbers[:4]) if len(numbers) == 8 else host


def _is_white(account: Account, known: Known) -> bool:
    """Whether an account need not sign from the address of a connection."""
    return bool(account.white) and among(known.numbers, account.white)
