"""Accounts and white addresses: what rule files say, read and checked; and what an account may do. Opens no file.

A file is YAML in the form of RocketMQ's ``plain_acl.yml``. It is refused as a whole, with the line, when a value in it makes no
sense: an account that is half understood lets in whom it should not. Aliases are read as what they stand for, within the
bounds below.

Follows PlainPermissionManager and Permission (RocketMQ 4.9.7).
Differs: the original takes an unknown permission or a wrong ``admin`` for the least, without a word; it does not see keys that it
does not know, takes the last of a key that is given twice, and takes over what ``<<`` merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from halfmoon.broker.access.addresses import BadAddress, Pattern, patterns
from halfmoon.errors import SettingError
from halfmoon.limits import CERTIFICATE_NAME_MAX
from halfmoon.wire.bodies import DataVersion
from halfmoon.wire.needs import DENY, PERMISSIONS, RETRY_PREFIX, Grants
from halfmoon.wire.signature import KEY_LENGTH_MAX, KEY_LENGTH_MIN, verify

FILE_BYTES_MAX = 1024 * 1024
ACCOUNTS_MAX = 10_000
PERMISSIONS_MAX = 100_000
PATTERNS_MAX = 20_000
CERTIFICATES_MAX = 20_000
NODES_MAX = 1_000_000
"""Bounds of one file: its size, its accounts, all their permissions for single topics and groups, all its white addresses, all
its names of certificates, and its values in all. An alias counts as often as it is used."""

ROOT_KEYS = frozenset(("globalWhiteRemoteAddresses", "accounts", "dataVersion"))
ACCOUNT_KEYS = frozenset((
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms",
    "previousSecretKey", "previousSecretUntil", "certificate",
))  # fmt: skip
"""Keys of a file and of an account; any other is refused. Follows AclConstants (RocketMQ 4.9.7). The last three are ours."""


class Account(Grants, frozen=True, kw_only=True):
    """One account: its secret, the addresses from which it need not sign, and what it may do. Its text does not show the secret.

    ``previous`` is the secret before, good until then as well: while clients get the new one. Empty: there is none.
    Connections whose verified certificate has one of the names in ``certificates`` are this account's.
    """

    secret: bytes
    white: tuple[Pattern, ...] = ()
    previous: bytes = b""
    previous_until_ms: int = 0
    certificates: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Its secret and, if there is one, the previous one."""
        return (self.secret, self.previous) if self.previous else (self.secret,)

    def at(self, now: int) -> Account:
        """Return the account without its previous secret, once that has expired."""
        return self._alone(self.secret) if self.previous and now >= self.previous_until_ms else self

    def signed(self, fields: Mapping[str, str], body: bytes | memoryview) -> Account | None:
        """Return the account with the secret alone that signs a request, itself if that is not the previous; None: neither does."""
        return self.signer(lambda secret: verify(secret, fields, body))

    def signer(self, is_signed: Callable[[bytes], bool]) -> Account | None:
        """Return the account with the secret alone that ``is_signed`` accepts, as `signed` does; None: it accepts neither."""
        if is_signed(self.secret):
            return self
        return self._alone(self.previous) if self.previous and is_signed(self.previous) else None

    @property
    def may_copy(self) -> bool:
        """Return whether a slave may copy everything with it: an administrator who may use every topic and group."""
        return self.admin and not self.permissions

    def _alone(self, secret: bytes) -> Account:
        return msgspec.structs.replace(self, secret=secret, previous=b"", previous_until_ms=0)

    def __repr__(self) -> str:
        return f"Account(access_key={self.access_key!r}, admin={self.admin})"


class RuleFile(NamedTuple):
    """Contents of one rules file. ``white`` are the global white addresses as written, ``data`` all of it to be written again."""

    accounts: tuple[Account, ...]
    white: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    version: DataVersion
    data: dict[str, Any]
    repeated: tuple[str, ...] = ()
    """Access keys that it gives twice: the first one counts."""
    lines: Mapping[str, int] = MappingProxyType({})
    """The line of each name of a certificate."""


def read_rules(name: str, text: bytes) -> RuleFile:
    """Return what a file says; nothing for an empty one.

    Raises:
        SettingError: it is no such file, or longer than `FILE_BYTES_MAX`; the text names the line and what is wrong there.
    """
    return _Reading(name).rules(text)


def read_utc(text: str) -> int:
    """Return milliseconds since the epoch for an ISO 8601 time that says that it is UTC. Raises ValueError for any other text."""
    at = datetime.fromisoformat(text)
    if at.utcoffset() != timedelta(0):
        raise ValueError(text)
    return max(0, int(at.timestamp() * 1000))


def write_rules(data: dict[str, Any]) -> bytes:
    """Return the text of a file. Comments and the way that it was laid out are lost."""
    text: str = _yaml().safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()


def _yaml() -> Any:
    """PyYAML: imported where access control is on, for it costs a start as much time as opening a store."""
    return import_module("yaml")


class _Reading:
    """One file that is read, node by node, so that each refusal can name its line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._permissions = self._addresses = self._nodes = self._certificates = 0
        self._lines: dict[str, int] = {}

    def rules(self, text: bytes) -> RuleFile:
        if len(text) > FILE_BYTES_MAX:
            raise SettingError(f"{self._name}: longer than {FILE_BYTES_MAX} bytes")
        root = self._root(text)
        if root is None:
            return RuleFile((), (), (), DataVersion(), {})
        white: list[str] = []
        found: list[Pattern] = []
        accounts: dict[str, Account] = {}
        repeated: list[str] = []
        version = DataVersion()
        for key, node in self._pairs(root, ROOT_KEYS):
            if key == "globalWhiteRemoteAddresses":
                for item in self._items(node):
                    white.append(self._text(item) or "")
                    found += self._patterns(item)
            elif key == "accounts":
                for item in self._items(node):
                    account = self._account(item)
                    if account.access_key in accounts:
                        repeated.append(account.access_key)
                    elif len(accounts) >= ACCOUNTS_MAX:
                        raise self._wrong(item, f"more than {ACCOUNTS_MAX} accounts")
                    accounts.setdefault(account.access_key, account)
            elif key == "dataVersion":
                version = self._version(node)
        data: dict[str, Any] = self._plain(root)
        return RuleFile(tuple(accounts.values()), tuple(white), tuple(found), version, data, tuple(repeated), self._lines)

    def _root(self, text: bytes) -> Any:
        yaml = _yaml()
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            root = yaml.compose(text.decode(), loader)
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
            mark = getattr(exc, "problem_mark", None)
            line = f"{mark.line + 1}: " if mark is not None else " "
            raise SettingError(f"{self._name}:{line}not YAML: {getattr(exc, 'problem', None) or exc}") from None
        return None if root is None or root.tag.endswith(":null") else root

    def _account(self, node: Any) -> Account:
        values = dict(self._pairs(node, ACCOUNT_KEYS))
        perms: dict[str, int] = {}
        for key, prefix in (("groupPerms", RETRY_PREFIX), ("topicPerms", "")):
            for item in self._items(values.get(key)):
                name, permission = self._resource(item)
                perms[prefix + name] = permission
        access_key, secret = self._key(values, "accessKey", node), self._key(values, "secretKey", node).encode()
        previous, until_ms = self._previous(values, node, secret)
        return Account(
            access_key=access_key,
            secret=secret,
            previous=previous,
            previous_until_ms=until_ms,
            white=self._patterns(values["whiteRemoteAddress"]) if "whiteRemoteAddress" in values else (),
            admin=self._flag(values.get("admin")),
            topic_default=self._permission(values.get("defaultTopicPerm")),
            group_default=self._permission(values.get("defaultGroupPerm")),
            permissions=perms,
            certificates=self._certificate_names(values.get("certificate")),
        )

    def _certificate_names(self, node: Any) -> tuple[str, ...]:
        """Return the names of certificates: one, or a list."""
        names = []
        for item in [node] if node is not None and node.id == "scalar" and self._text(node) else self._items(node):
            name = self._text(item) or ""
            if not 0 < len(name) <= CERTIFICATE_NAME_MAX or "*" in name:
                what = f"1 to {CERTIFICATE_NAME_MAX} characters, exactly as it stands there, without *"
                raise self._wrong(item, f"{name!r:.80} is no name of a certificate: {what}")
            self._certificates += 1
            if self._certificates > CERTIFICATES_MAX:
                raise self._wrong(item, f"more than {CERTIFICATES_MAX} names of certificates")
            self._lines[name] = item.start_mark.line + 1
            names.append(name)
        return tuple(names)

    def _key(self, values: dict[str, Any], name: str, node: Any) -> str:
        text = self._text(values[name]) if name in values else None
        if text is None or not KEY_LENGTH_MIN <= len(text) <= KEY_LENGTH_MAX:
            shown = f"{name} {text!r:.80}" if name == "accessKey" and text else f"{name} of an account"
            raise self._wrong(values.get(name, node), f"{shown} must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} characters")
        return text

    def _previous(self, values: dict[str, Any], node: Any, secret: bytes) -> tuple[bytes, int]:
        """Return the previous secret and its expiry in ms since the epoch; empty and 0 without one."""
        given = [name in values for name in ("previousSecretKey", "previousSecretUntil")]
        if not any(given):
            return b"", 0
        if not all(given):
            raise self._wrong(node, "previousSecretKey and previousSecretUntil must be given both, or none of them")
        previous = self._key(values, "previousSecretKey", node).encode()
        if previous == secret:
            raise self._wrong(values["previousSecretKey"], "previousSecretKey must be another one than secretKey")
        try:
            return previous, read_utc(self._text(values["previousSecretUntil"]) or "")
        except ValueError:
            what = "previousSecretUntil must be a time in UTC such as 2030-01-31T12:00:00Z"
            raise self._wrong(values["previousSecretUntil"], what) from None

    def _resource(self, node: Any) -> tuple[str, int]:
        text = self._text(node) or ""
        name, equals, permission = text.partition("=")
        if not equals or not name.strip() or permission.strip() not in PERMISSIONS:
            raise self._wrong(node, f"{text!r:.80} is not of the form NAME=PERMISSION, with {', '.join(PERMISSIONS)}")
        self._permissions += 1
        if self._permissions > PERMISSIONS_MAX:
            raise self._wrong(node, f"more than {PERMISSIONS_MAX} permissions")
        return name.strip(), PERMISSIONS[permission.strip()]

    def _permission(self, node: Any) -> int:
        text = None if node is None else self._text(node)
        if text is None or not text.strip():
            return DENY
        if text.strip() not in PERMISSIONS:
            raise self._wrong(node, f"{text!r:.80} is no permission: it must be one of {', '.join(PERMISSIONS)}")
        return PERMISSIONS[text.strip()]

    def _flag(self, node: Any) -> bool:
        text = None if node is None else self._text(node)
        if text is not None and text.strip().lower() not in ("true", "false"):
            raise self._wrong(node, f"admin is true or false, not {text!r:.80}")
        return text is not None and text.strip().lower() == "true"

    def _patterns(self, node: Any) -> tuple[Pattern, ...]:
        try:
            found = patterns(self._text(node) or "")
        except BadAddress as exc:
            raise self._wrong(node, str(exc)) from None
        self._addresses += len(found)
        if self._addresses > PATTERNS_MAX:
            raise self._wrong(node, f"more than {PATTERNS_MAX} white addresses")
        return found

    def _version(self, node: Any) -> DataVersion:
        for item in self._items(node):
            numbers = {key: self._text(value) or "" for key, value in self._pairs(item)}
            counter, timestamp = numbers.get("counter", "0"), numbers.get("timestamp", "0")
            if not (counter.isdecimal() and timestamp.isdecimal() and len(counter) < 19 and len(timestamp) < 19):
                raise self._wrong(item, "dataVersion has the numbers counter and timestamp")
            return DataVersion(int(counter), int(timestamp))
        return DataVersion()

    # ------------------------------------------------------------ nodes

    def _pairs(self, node: Any, known: frozenset[str] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the keys, each once and one of those known, with their values."""
        if node.id != "mapping":
            raise self._wrong(node, "must be keys with values")
        seen: set[str] = set()
        for key, value in node.value:
            text = self._text(key) or ""
            if key.tag.endswith(":merge"):
                raise self._wrong(key, "keys are not merged from elsewhere with <<")
            if known is not None and text not in known:  # not shown: without a blank behind its colon it holds the secret
                raise self._wrong(key, f"an unknown key: it must be one of {', '.join(sorted(known))}")
            if text in seen:
                raise self._wrong(key, "a key that is given twice")
            seen.add(text)
            yield text, value

    def _items(self, node: Any) -> list[Any]:
        if node is None or (node.id == "scalar" and self._text(node) in (None, "")):
            return []
        if node.id != "sequence":
            raise self._wrong(node, "must be a list")
        items: list[Any] = node.value
        return items

    def _text(self, node: Any) -> str | None:
        """Return the text of a scalar as it stands in the file: a secret of digits stays text."""
        if node.id != "scalar":
            raise self._wrong(node, "must be a single value")
        return None if node.tag.endswith(":null") else str(node.value)

    def _plain(self, node: Any, depth: int = 0) -> Any:
        """Return the node as values to be written again: texts, whole numbers and truth values."""
        self._nodes += 1  # an alias stands for as much as what it names
        if depth > 8 or self._nodes > NODES_MAX:
            raise self._wrong(node, "nested too deep, or too much of it")
        if node.id == "mapping":
            return {self._text(key): self._plain(value, depth + 1) for key, value in node.value}
        if node.id == "sequence":
            return [self._plain(item, depth + 1) for item in node.value]
        text = self._text(node)
        if text is not None and node.tag.endswith(":int") and text.isdecimal() and str(int(text)) == text:
            return int(text)
        if text is not None and node.tag.endswith(":bool") and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return text

    def _wrong(self, node: Any, what: str) -> SettingError:
        return SettingError(f"{self._name}:{node.start_mark.line + 1}: {what}")
