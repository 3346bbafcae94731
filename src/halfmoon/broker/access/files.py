"""The rule files: reading all into `Rules`, and changing one. Runs where waiting is allowed; keeps only where they are.

They are one file, ``plain_acl.yml`` by default, and every ``.yml`` or ``.yaml`` in the directory ``acl`` beside it. An access key
that several give is that of the directory's, and of the first file by name.

Follows PlainPermissionManager (RocketMQ 4.9.7). Differs: directories inside ``acl`` are not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from halfmoon.broker.access.accounts import FILE_BYTES_MAX, Account, RuleFile, read_rules, write_rules
from halfmoon.broker.access.addresses import Pattern
from halfmoon.documentation import see
from halfmoon.errors import BrokerError, SettingError
from halfmoon.ports import Disk
from halfmoon.settings.private import exposed

FILES_MAX = 100
"""Files of the directory."""

Edit = Callable[[dict[str, Any]], None]
"""Changes what a file says, in place. Raises BrokerError: it is not to be changed so."""


Seen = tuple[tuple[str, int, int, bool], ...]
"""Path, time of the last change, size, and whether the owner alone may use it, for each file."""


class Rules(msgspec.Struct, frozen=True):
    """All rules. ``files`` are what each file says, in the order in which they count; ``seen`` shows whether any has changed."""

    accounts: dict[str, Account] = {}
    white: tuple[Pattern, ...] = ()
    files: dict[str, RuleFile] = {}
    seen: Seen = ()
    repeated: tuple[str, ...] = ()
    certificates: dict[str, str] = {}
    """Access keys by the names of certificates."""

    def keys_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the access keys of the accounts that have one of these names of a certificate: one, none, or several."""
        return tuple(sorted({self.certificates[name] for name in names if name in self.certificates}))

    def digest(self) -> str:
        """Return a text that two brokers share if the same accounts and white addresses count there, secrets included.

        The expiry of previous secrets is left out, since each broker sets its own by its clock.
        Whoever guesses from it must guess all secrets at once. Costs about 10 us an account.
        """
        accounts = [
            {
                **msgspec.structs.asdict(account), "previous_until_ms": 0,
                "white": sorted(account.white), "certificates": sorted(account.certificates),
            }
            for _, account in sorted(self.accounts.items())
        ]  # fmt: skip
        return sha256(msgspec.json.encode((accounts, sorted(set(self.white))), order="sorted")).hexdigest()

    def files_of(self, access_key: str) -> list[str]:
        """Return the files that have an account, in the order in which they count."""
        return [path for path, file in self.files.items() if any(a.access_key == access_key for a in file.accounts)]


class RuleFiles(NamedTuple):
    """Where the rules are. ``root`` is the disk's directory as users know it, for what they are told.

    ``open_to_others``: other users may read them, which is refused without it.
    """

    disk: Disk
    root: str
    main: str = "conf/plain_acl.yml"
    open_to_others: bool = False

    @property
    def directory(self) -> str:
        """The directory of further files."""
        return "/".join([*self.main.split("/")[:-1], "acl"])

    def name(self, path: str) -> str:
        """Return a path as users know it."""
        return f"{self.root}/{path}"

    def path(self, name: str) -> str:
        """Return the path of a file of ours that somebody names. Raises BrokerError for any other, SettingError."""
        for path in self.paths():
            if name in (path, self.name(path)):
                return path
        raise BrokerError(f"{name:.200} is no file of rules of this broker")

    def paths(self) -> list[str]:
        """Return all files, in the order in which they count. Raises SettingError: there are more than `FILES_MAX`."""
        names = [name for name in self.disk.list(self.directory) if name.endswith((".yml", ".yaml"))]
        if len(names) > FILES_MAX:
            raise SettingError(f"{self.name(self.directory)}/{names[FILES_MAX]}: more than {FILES_MAX} files of accounts")
        return [*[f"{self.directory}/{name}" for name in names], self.main]

    def load(self) -> Rules:
        """Return what all files say.

        Raises:
            SettingError: one makes no sense, or others may read it; the main one is missing, there are too many, or two accounts
            have the same certificate; OSError.
        """
        return self._load(None, b"")

    def newer(self, known: Rules) -> Rules | None:
        """Return what all files say, or None while none of them has changed.

        Raises as `load`, and for a file that has become empty: whoever writes it may not be done. One without accounts says so.
        """
        if self._seen(self.paths()) == known.seen:
            return None
        rules = self.load()
        for path, file in rules.files.items():
            if not file.data and path in known.files and known.files[path].data:
                raise SettingError(f"{self.name(path)}: it is empty; for no accounts it must say accounts: []")
        return rules

    def change(self, path: str, edit: Edit, now: int) -> Rules:
        """Change one file, count its version up, and return what all of them say then. Waits for the device.

        Raises as `load`, and what ``edit`` raises; nothing is changed then.
        """
        data = read_rules(self.name(path), self._read(path)).data
        edit(data)
        version = read_rules(self.name(path), write_rules(data)).version.next(now)
        data["dataVersion"] = [{"counter": version.counter, "timestamp": version.timestamp}]
        text = write_rules(data)
        rules = self._load(path, text)
        self.disk.save(path, text, keep_previous=False, private=True)  # a copy would keep the secrets of removed accounts
        return msgspec.structs.replace(rules, seen=self._seen(self.paths()))

    def _load(self, changed: str | None, text: bytes) -> Rules:
        paths = self.paths()
        seen = self._seen(paths)
        accounts: dict[str, Account] = {}
        white: list[Pattern] = []
        files: dict[str, RuleFile] = {}
        repeated: list[str] = []
        certificates: dict[str, str] = {}
        for path in paths:
            file = files[path] = read_rules(self.name(path), text if path == changed else self._read(path))
            white += file.patterns
            repeated += file.repeated
            for account in file.accounts:
                if accounts.setdefault(account.access_key, account) is not account:
                    repeated.append(account.access_key)
                    continue
                for name in account.certificates:
                    if (other := certificates.setdefault(name, account.access_key)) != account.access_key:
                        where = f"{self.name(path)}:{file.lines[name]}"
                        raise SettingError(f"{where}: the certificate {name!r:.80} of {account.access_key} is that of {other}, too")
        return Rules(accounts, tuple(white), files, seen, tuple(repeated), certificates)

    def _read(self, path: str) -> bytes:
        try:
            size = self.disk.file_size(path)
        except FileNotFoundError:
            raise SettingError(f"{self.name(path)}: there is no such file of accounts: see {see('access')}") from None
        if size > FILE_BYTES_MAX:
            raise SettingError(f"{self.name(path)}: longer than {FILE_BYTES_MAX} bytes")
        if not (self.open_to_others or self.disk.is_private(path)):
            raise SettingError(exposed(self.name(path), "the secrets in it", "acl_readable_by_others=true"))
        return self.disk.read(path) or b""

    def _seen(self, paths: list[str]) -> Seen:
        found = []
        for path in paths:
            try:
                found.append((path, self.disk.modified_ms(path), self.disk.file_size(path), self.disk.is_private(path)))
            except FileNotFoundError:
                found.append((path, -1, -1, False))
        return tuple(found)
