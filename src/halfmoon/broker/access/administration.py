"""The requests that administer accounts (50 to 54): change a file, or tell what the files say. Changes are answered once saved.

Follows AdminBrokerProcessor and PlainPermissionManager (RocketMQ 4.9.7).
Differs: only administrators may ask, where the original lets every account change and read all of them. No reply has a secret: a
signature says nothing of its request's code, so whoever was sent a signed request could ask for the accounts with it. What makes no
sense is refused before it is written. A file is replaced whole; comments in it are lost.
"""

from __future__ import annotations

from typing import Any

from halfmoon.broker.access.access import Access
from halfmoon.broker.access.accounts import read_utc
from halfmoon.broker.access.files import Edit
from halfmoon.broker.access.previous import Uses
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.send.pending_replies import PendingReplies, refused
from halfmoon.broker.service import Service
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import BrokerError, HalfmoonError, ResponseCode, ServiceNotAvailable, SettingError, UsageError
from halfmoon.instant import Instant
from halfmoon.shown.texts import time_text
from halfmoon.wire.bodies import DataVersion, to_json
from halfmoon.wire.headers.access import (
    AclConfig,
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    GetBrokerClusterAclInfo,
    GetBrokerClusterAclInfoReply,
    PlainAccessConfig,
    UpdateAndCreateAclConfig,
    UpdateGlobalWhiteAddrsConfig,
)

OFF = "access control is off: start the broker with aclEnable=true"

MASK = "***"
"""Text that listings show instead of a secret. It is shorter than a secret may be, so nobody can set it as one by mistake."""

KEEP_MS_MAX = 366 * 86_400_000
"""Longest time for which a rotation keeps the previous secret."""

Data = dict[str, Any]


class Administration(Service):
    """The service that answers 50 to 54. ``access`` None: access control is off, and all of them are refused."""

    def __init__(self, access: Access | None, settings: BrokerSettings, pending_replies: PendingReplies) -> None:
        self._access, self._settings, self._pending_replies = access, settings, pending_replies

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            UpdateAndCreateAclConfig: self.update,
            DeleteAclConfig: self.delete,
            UpdateGlobalWhiteAddrsConfig: self.white_addresses,
            GetBrokerClusterAclInfo: self.versions,
            GetBrokerClusterAclConfig: self.accounts,
        }

    def update(self, request: Request) -> Reply | None:
        """Make an account, in the main file, or change it where it stands (50).

        Differs: with ``keepPreviousMs``, only the secret changes, and the one so far stays good for that time.
        """
        header = request.header(UpdateAndCreateAclConfig)
        given = {
            "accessKey": header.access_key, "secretKey": header.secret_key, "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin, "defaultTopicPerm": header.default_topic_perm or None,
            "defaultGroupPerm": header.default_group_perm or None,
            "topicPerms": _split(header.topic_perms), "groupPerms": _split(header.group_perms),
        }  # fmt: skip
        key, keep_ms = header.access_key or "", header.keep_previous_ms
        failed = int(ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)

        def edit(data: Data) -> None:
            accounts = _accounts(data)
            at = [index for index, account in enumerate(accounts) if str(account.get("accessKey")) == key]
            old = accounts[at[0]] if at else {}  # the first is what counts
            if keep_ms is None:
                new = {**old, **{name: value for name, value in given.items() if value is not None}}
                if new.get("secretKey") != str(old.get("secretKey")):
                    _end(new)
            else:
                new = _rotated(old, header.secret_key, request.now.date, keep_ms)
            if at:
                accounts[at[0]] = new
            else:
                accounts.append(new)
            for index in reversed(at[1:]):
                del accounts[index]

        if len(key) <= 6 or (len(header.secret_key or "") <= 6 and (header.secret_key is not None or keep_ms is None)):
            shown = "null" if header.access_key is None else f"{key:.256}"
            secret = "null" if header.secret_key is None else "***"
            remark = f"The accessKey={shown} and secretKey={secret} cannot be null and length should longer than 6"
            return Reply(failed, remark)
        access = self._on(failed)
        self._change(request, [*access.rules.files_of(key), access.files.main][0], edit, failed)
        return None

    def delete(self, request: Request) -> Reply | None:
        """Remove an account (51). Refused while several files have it: what the first said would give way to what the next says."""
        key = request.header(DeleteAclConfig).access_key
        failed = int(ResponseCode.DELETE_ACL_CONFIG_FAILED)
        access = self._on(failed)
        paths = access.rules.files_of(key or "")
        if len(paths) > 1:
            others = ", ".join(map(access.files.name, paths[1:3]))
            return Reply(failed, f"The accesskey[{key:.256}] is given by several files: take it out of {others} first")
        if not paths:
            shown = "null" if key is None else key
            return Reply(failed, f"The accesskey[{shown:.256}] corresponding to accessConfig has been deleted failed.")

        def edit(data: Data) -> None:
            data["accounts"] = [account for account in _accounts(data) if str(account.get("accessKey")) != key]

        self._change(request, paths[0], edit, failed)
        return None

    def white_addresses(self, request: Request) -> Reply | None:
        """Replace the global white addresses of a file (53)."""
        header = request.header(UpdateGlobalWhiteAddrsConfig)
        failed = int(ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED)
        files = self._on(failed).files
        addresses = _split(header.global_white_addrs)
        if addresses is None:
            return Reply(failed, "The globalWhiteAddresses[null] has been updated failed.")
        try:
            path = files.path(header.acl_file_full_path) if header.acl_file_full_path else files.main
        except (BrokerError, SettingError) as exc:
            return Reply(failed, exc.remark if isinstance(exc, BrokerError) else str(exc))

        def edit(data: Data) -> None:
            data["globalWhiteRemoteAddresses"] = addresses

        self._change(request, path, edit, failed)
        return None

    def versions(self, _request: Request) -> Reply:
        """Return the versions of the files (52). Differs: with a digest of all accounts, by which a slave compares its own."""
        access, settings = self._on(1), self._settings
        versions = {access.files.name(path): file.version for path, file in access.rules.files.items()}
        main = access.rules.files.get(access.files.main)
        return Reply(header=GetBrokerClusterAclInfoReply(
            version=to_json(DataVersion() if main is None else main.version).decode(),
            all_acl_file_version=to_json(versions).decode(),
            broker_name=settings.name, broker_addr=f"{settings.address}:{settings.port}", cluster_name=settings.cluster,
            accounts_digest=access.digest(),
        ))  # fmt: skip

    def accounts(self, _request: Request) -> Reply:
        """Return all accounts, their secrets masked (54)."""
        found, access = AclConfig(), self._on(1)
        known: set[str] = set()
        uses = access.uses()
        for file in access.rules.files.values():
            found.global_white_addrs += file.white
            for account in _accounts(file.data):
                config = _config(account, uses.get(str(account.get("accessKey"))))
                if config.access_key is not None and config.access_key not in known:
                    known.add(config.access_key)
                    found.plain_access_configs.append(config)
        return Reply(body=to_json(found))

    def _on(self, code: int) -> Access:
        if self._access is None:
            raise BrokerError(OFF, code=code)
        return self._access

    def _change(self, request: Request, path: str, edit: Edit, failed: int) -> None:
        """Change a file, and reply when that is done."""

        def done(error: Exception | None, _now: Instant) -> None:
            if error is None:
                reply = Reply()
            elif isinstance(error, HalfmoonError):
                reply = Reply(failed, str(error))
            else:
                reply = refused(ServiceNotAvailable(f"service not available now: {error}"))
            self._pending_replies.reply_now(request, reply)

        self._on(failed).change(path, edit, done, request.now.date)


def _split(text: str | None) -> list[str] | None:
    """Return the parts of a list joined by commas; None and blank stay what they are. Follows UtilAll.split."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _accounts(data: Data) -> list[Data]:
    """Return the accounts of a file, which may have none."""
    if not data.get("accounts"):
        data["accounts"] = []
    accounts: list[Data] = data["accounts"]
    return accounts


def _rotated(old: Data, secret: str | None, now: int, keep_ms: int) -> Data:
    """Return an account with another secret, beside which the one so far is good for a time.

    Without a secret, or with the one that it has, only that time changes. Raises UsageError.
    """
    if not old:
        raise UsageError("there is no such account: add it first")
    if not 0 <= keep_ms <= KEEP_MS_MAX:
        raise UsageError(f"a previous secret is kept for 0 to {KEEP_MS_MAX} ms")
    new, own = {**old}, str(old.get("secretKey"))
    if secret is not None and secret != own:
        until = read_utc(str(old["previousSecretUntil"])) if "previousSecretUntil" in old else 0
        if until > now:
            raise UsageError(f"a previous secret is good until {time_text(until)}: end that first, for a third is not kept")
        new |= {"secretKey": secret, "previousSecretKey": own}
    if keep_ms == 0:
        _end(new)
    elif "previousSecretKey" in new:
        new["previousSecretUntil"] = time_text(now + keep_ms)
    return new


def _end(account: Data) -> None:
    """Take the previous secret from an account."""
    account.pop("previousSecretKey", None)
    account.pop("previousSecretUntil", None)


def _config(account: Data, uses: Uses | None) -> PlainAccessConfig:
    texts = {name: None if value is None else str(value) for name, value in account.items() if not isinstance(value, list)}
    certificates = account.get("certificate")
    return PlainAccessConfig(
        access_key=texts.get("accessKey"), secret_key=MASK, admin=str(account.get("admin")).lower() == "true",
        white_remote_address=texts.get("whiteRemoteAddress"),
        default_topic_perm=texts.get("defaultTopicPerm"), default_group_perm=texts.get("defaultGroupPerm"),
        topic_perms=account.get("topicPerms"), group_perms=account.get("groupPerms"),
        previous_secret_key=MASK if "previousSecretKey" in account else None,
        previous_secret_until=texts.get("previousSecretUntil"),
        previous_secret_since=None if uses is None else uses.since_ms,
        previous_secret_used=None if uses is None else uses.by_address,
        certificates=None if certificates is None else [certificates] if isinstance(certificates, str) else certificates,
    )  # fmt: skip
