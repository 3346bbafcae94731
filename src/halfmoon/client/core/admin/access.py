"""Accounts for operators: those of every broker, changes at all of them, and what an account may do. Asks masters and slaves.

Each broker has a file of accounts of its own. A change is made at every broker that takes it, also where others refuse. A slave is
named with its id, as in ``broker-a/1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.admin.pages import Master
from halfmoon.client.core.ask import ask, at_each
from halfmoon.effects import Op, gather
from halfmoon.errors import AccessRefused, BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.shown.texts import time_text
from halfmoon.wire.bodies import KVTable
from halfmoon.wire.command import Command
from halfmoon.wire.headers.access import (
    AclConfig,
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    PlainAccessConfig,
    UpdateAndCreateAclConfig,
)
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.json import from_json
from halfmoon.wire.needs import DENY, PERMISSIONS, PUB, RETRY_PREFIX, SUB, Grants
from halfmoon.wire.table import Header

PREVIOUS = "aclPreviousSecrets"
"""Key under which brokers list previous secrets (28), if they know any."""
SHOWN_MAX = 5
"""Addresses shown of those that use a secret."""


class AccountsAt(NamedTuple):
    """Accounts and global white addresses of one broker; its text does not show the secrets."""

    broker: str
    address: str
    accounts: list[PlainAccessConfig]
    white: list[str]

    @property
    def notes(self) -> list[str]:
        """Return the certificates and previous secrets of the accounts, a text each."""
        return [f"account {each.access_key}: {text}" for each in self.accounts for text in _notes(each)]


class Explained(NamedTuple):
    """Whether an account may do something at one broker, and what decides about it."""

    broker: str
    allowed: bool
    reasons: list[str]


def accounts(admin: AdminCore, *, failing: list[str] | None = None) -> Op[list[AccountsAt]]:
    """Return the accounts of every broker. ``failing``: see `halfmoon.client.core.admin.admin.answers_of`.

    Raises AccessRefused for who is no administrator, BrokerError where there are none.
    """
    brokers = yield from _members(admin)
    outcomes = yield from gather([_accounts_at(admin, broker) for broker in brokers])
    return answers_of(zip([broker.name for broker in brokers], outcomes), failing)


def _members(admin: AdminCore) -> Op[list[Master]]:
    """Return all brokers, slaves too, by name. One whose master is not registered has that without an address.

    Raises UsageError when there are none.
    """
    table = (yield from admin.cluster()).broker_addr_table
    found = []
    for name in sorted(table):
        addresses = {0: "", **table[name].broker_addrs}
        found += [Master(name if number == 0 else f"{name}/{number}", addresses[number]) for number in sorted(addresses)]
    if not found:
        raise UsageError("no broker is known")
    return found


def _ask(admin: AdminCore, broker: Master, request: Header) -> Op[Command]:
    """Ask a broker. Raises NetworkError, also where it is not registered; BrokerError."""
    if not broker.address:
        raise NetworkError("the name servers know no master of this name now", broker.name)
    return (yield from ask(broker.address, request, b"", admin.settings.request_timeout_ms))


def _accounts_at(admin: AdminCore, broker: Master) -> Op[AccountsAt]:
    reply = yield from _ask(admin, broker, GetBrokerClusterAclConfig())
    config = from_json(AclConfig, reply.body)
    return AccountsAt(broker.name, broker.address, config.plain_access_configs, config.global_white_addrs)


def put_account(
    admin: AdminCore,
    access_key: str,
    secret_key: str,
    *,
    administrator: bool = False,
    topics: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    topic_default: str | None = None,
    group_default: str | None = None,
    white: str | None = None,
) -> Op[list[str]]:
    """Make an account at every broker, or change it there; return the brokers' names. None leaves what there is.

    Permissions are DENY, PUB, SUB or PUB|SUB. Raises UsageError for another one, AccessRefused, BrokerError (209);
    PartlyDone.
    """
    for permission in (*(topics or {}).values(), *(groups or {}).values(), topic_default or "DENY", group_default or "DENY"):
        if permission not in PERMISSIONS:
            raise UsageError(f"{permission!r} is no permission: it must be one of {', '.join(PERMISSIONS)}")
    request = UpdateAndCreateAclConfig(
        access_key=access_key, secret_key=secret_key, white_remote_address=white, admin=administrator,
        default_topic_perm=topic_default, default_group_perm=group_default,
        topic_perms=_joined(topics), group_perms=_joined(groups),
    )  # fmt: skip
    return (yield from _everywhere(admin, request))


def rotate_secret(admin: AdminCore, access_key: str, secret_key: str | None, keep_ms: int) -> Op[list[str]]:
    """Give an account another secret at every broker, beside which the one so far stays good; return the brokers' names.

    Without a secret the previous one is kept for that time from now on, or ends (0). The same again changes what was left out.

    Raises:
        UsageError: a broker does not know previous secrets, and would end the one so far at once. Nothing was changed.
        NetworkError: a master does not answer; nothing was changed. A slave that does not, or refuses us, is left out (PartlyDone).
        BrokerError: 209, there is no such account, or a previous secret of it is still good; AccessRefused.
        PartlyDone: as it says.
    """
    for broker in (yield from _members(admin)):
        try:
            reply = yield from _ask(admin, broker, GetBrokerRuntimeInfo())
        except (NetworkError, AccessRefused):
            if "/" not in broker.name:
                raise
            continue  # it refuses or misses the change as well, and is named then
        except BrokerError as exc:  # such as an empty slave of RocketMQ
            raise UsageError(
                f"broker {broker.name} does not tell whether it keeps previous secrets, nothing was changed: {exc}"
            ) from exc
        if PREVIOUS not in from_json(KVTable, reply.body).table:
            raise UsageError(f"broker {broker.name} keeps no previous secrets: nothing was changed")
    request = UpdateAndCreateAclConfig(access_key=access_key, secret_key=secret_key, keep_previous_ms=keep_ms)
    return (yield from _everywhere(admin, request))


def delete_account(admin: AdminCore, access_key: str) -> Op[list[str]]:
    """Remove an account at every broker; return the names of those that had it.

    Raises AccessRefused, BrokerError (210) where none has it; PartlyDone.
    """
    missing: list[BrokerError] = []

    def deleted(broker: Master) -> Op[bool]:
        try:
            yield from _ask(admin, broker, DeleteAclConfig(access_key=access_key))
        except BrokerError as exc:
            try:
                known = {account.access_key for account in (yield from _accounts_at(admin, broker)).accounts}
            except HalfmoonError:
                raise exc from None
            if access_key in known:
                raise
            missing.append(exc)  # deleted by an earlier call that was done in part
            return False
        return True

    done = yield from at_each({broker.name: deleted(broker) for broker in (yield from _members(admin))})
    if missing and not any(done.values()):
        raise missing[0]
    return [name for name, had in done.items() if had]


def explain_access(
    admin: AdminCore, access_key: str, *, read: str | None = None, send: str | None = None, group: str | None = None,
    failing: list[str] | None = None,
) -> Op[list[Explained]]:  # fmt: skip
    """Return, for every broker, whether an account may send to a topic, or read it, or consume in a group, and why.

    ``failing``: see `accounts`. Raises UsageError when no broker knows such an account, or nothing is asked.
    """
    asked = [(topic, permission) for topic, permission in ((send, PUB), (read, SUB)) if topic is not None]
    asked += [(RETRY_PREFIX + group, SUB)] if group is not None else []
    if not asked:
        raise UsageError("give a topic to send to or to read, or a group")
    found: list[Explained] = []
    is_known = False
    everywhere = yield from accounts(admin, failing=failing)
    for at in everywhere:
        config = next((account for account in at.accounts if account.access_key == access_key), None)
        if config is None:
            found.append(Explained(at.broker, False, [f"it has no account {access_key}"]))
            continue
        is_known = True
        grants = grants_of(config)
        allowed = all(grants.holds(name, permission) for name, permission in asked)
        reasons = list(dict.fromkeys(grants.reason(name) for name, _ in asked))
        own = (config.white_remote_address or "").strip()
        reasons += [f"from its white addresses it may do everything: {own}"] if own else []
        reasons += _notes(config)
        reasons += [f"white addresses need no account: {', '.join(at.white)}"] if at.white else []
        found.append(Explained(at.broker, allowed, reasons))
    if not is_known:
        raise UsageError(f"broker {everywhere[0].broker} has no account {access_key}")
    return found


def _notes(config: PlainAccessConfig) -> list[str]:
    """Return what is known of an account's certificates and of its previous secret, a text each."""
    certificates = ", ".join(config.certificates or ())
    return [*([f"certificates in place of signatures: {certificates}"] if certificates else []), *_previous(config)]


def _previous(config: PlainAccessConfig) -> list[str]:
    """Return what is known of an account's previous secret, as a text; none where it has none."""
    until, since, used = config.previous_secret_until, config.previous_secret_since, config.previous_secret_used or {}
    if until is None:
        return []
    if since is None:
        return [f"its previous secret expired at {until}"]
    last = sorted(used.items(), key=lambda item: -item[1])
    shown = [f"{host} at {time_text(at)}" for host, at in last[:SHOWN_MAX]] + ["..."] * (len(last) > SHOWN_MAX)
    uses = f"last used from {', '.join(shown)}" if shown else f"not used since {time_text(since)}"
    return [f"its previous secret is good until {until}, {uses}"]


def grants_of(config: PlainAccessConfig) -> Grants:
    """Return what an account may do; what is no permission is none, as brokers of 4.9 read it."""
    permissions = {}
    for prefix, texts in ((RETRY_PREFIX, config.group_perms), ("", config.topic_perms)):
        for name, _, permission in (text.partition("=") for text in texts or ()):
            permissions[prefix + name.strip()] = PERMISSIONS.get(permission.strip(), DENY)
    return Grants(
        access_key=config.access_key or "", admin=config.admin, permissions=permissions,
        topic_default=PERMISSIONS.get((config.default_topic_perm or "").strip(), DENY),
        group_default=PERMISSIONS.get((config.default_group_perm or "").strip(), DENY),
    )  # fmt: skip


def _joined(permissions: Mapping[str, str] | None) -> str | None:
    return None if permissions is None else ",".join(f"{name}={permission}" for name, permission in permissions.items())


def _everywhere(admin: AdminCore, request: Header) -> Op[list[str]]:
    return list((yield from at_each({broker.name: _ask(admin, broker, request) for broker in (yield from _members(admin))})))
