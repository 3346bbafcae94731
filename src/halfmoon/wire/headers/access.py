"""Requests that administer accounts, where access control is on. Declares fields and bodies, decides nothing."""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.needs import ADMIN
from halfmoon.wire.table import I64, Header, request


@request(50, "UPDATE_AND_CREATE_ACL_CONFIG", needs=ADMIN)
class UpdateAndCreateAclConfig(Header):
    """Create or change an account: fields that are not given stay, except ``admin``. A new secret replaces the old one at once.

    With ``keep_previous_ms``, only the secret of an existing account changes, and the old secret stays valid for that time, or
    ends now (0). Without a new secret, the time applies to the previous one.
    """

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None  # NAME=PERMISSION, joined by commas
    group_perms: str | None = None
    keep_previous_ms: I64 | None = None  # ours, see aclPreviousSecrets in the reply of 28

    def __repr__(self) -> str:
        return f"UpdateAndCreateAclConfig(access_key={self.access_key!r})"


@request(51, "DELETE_ACL_CONFIG", needs=ADMIN)
class DeleteAclConfig(Header):
    """Remove an account."""

    access_key: str | None = None


class GetBrokerClusterAclInfoReply(Header, kw_only=True):
    """Version of the main file, as the JSON text of a `DataVersion`, and of all files by path."""

    version: str
    all_acl_file_version: str | None = None  # 4.9
    broker_name: str
    broker_addr: str
    cluster_name: str
    accounts_digest: str | None = None  # ours: the same where the same accounts count, with their secrets


@request(52, "GET_BROKER_CLUSTER_ACL_INFO", reply=GetBrokerClusterAclInfoReply, needs=ADMIN)
class GetBrokerClusterAclInfo(Header):
    """Ask for the version of the accounts."""


@request(53, "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", needs=ADMIN)
class UpdateGlobalWhiteAddrsConfig(Header):
    """Replace the global white addresses of a file."""

    global_white_addrs: str | None = None  # joined by commas
    acl_file_full_path: str | None = None  # 4.9: one of the broker's own files; None: the main one


@request(54, "GET_BROKER_CLUSTER_ACL_CONFIG", needs=ADMIN)
class GetBrokerClusterAclConfig(Header):
    """Ask for all accounts: reply body `AclConfig`. Halfmoon brokers mask the secrets."""


class PlainAccessConfig(Body):
    """Account as in a file; from Halfmoon brokers also when (ms) and from where the previous secret was last used."""

    access_key: str | None = None
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None
    previous_secret_key: str | None = None
    previous_secret_until: str | None = None  # ISO 8601
    previous_secret_since: int | None = None  # from when on its uses are known; None: it has expired
    previous_secret_used: dict[str, int] | None = None  # when, by address
    certificates: list[str] | None = None

    def __repr__(self) -> str:
        return f"PlainAccessConfig(access_key={self.access_key!r})"


class AclConfig(Body):
    """All accounts: reply of 54."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[PlainAccessConfig] = []
