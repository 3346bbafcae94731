"""The users of the console, in one file with their roles and password hashes. A command and the running console may both write it.

No password is kept, only its scrypt hash with the parameters. The file is replaced whole, under a lock beside it, and read again
when it has changed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import msgspec
from msgspec import Meta

from halfmoon.console.access.files import locked, sync_directory
from halfmoon.conversion import json_decoder
from halfmoon.errors import SettingError, UsageError

log = logging.getLogger("halfmoon.console")

Role = Literal["viewer", "operator"]
USERS_MAX, FILE_BYTES_MAX = 1_000, 1024 * 1024
PASSWORD_CHARACTERS_MIN, PASSWORD_BYTES_MAX = 12, 1_024
ONE_TIME_MS = 24 * 3_600_000
"""How long a one-time password is good."""

_NAME = r"^[A-Za-z0-9._@-]{1,64}\Z"
_READABLE = "abcdefghjkmnpqrstuvwxyz23456789"  # no i, l, o, 0, 1: 25 of these are 123 bits


class User(msgspec.Struct, frozen=True):
    """One user. ``must_change``: the password is a one-time one, and nothing is to be done before another is chosen.
    ``changed_ms`` is when the password was set; no two passwords in a row have the same."""

    name: str
    role: Role
    must_change: bool
    changed_ms: int


class Hash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A password's hash and how it was made: scrypt (RFC 7914), which takes 128 * n * r bytes of memory."""

    salt: Annotated[bytes, Meta(min_length=16, max_length=64)]
    digest: Annotated[bytes, Meta(min_length=32, max_length=64)] = bytes(32)
    n: Literal[16384, 32768, 65536, 131072] = 16384
    r: Annotated[int, Meta(ge=1, le=16)] = 8
    p: Annotated[int, Meta(ge=1, le=16)] = 5

    def digest_of(self, password: bytes) -> bytes:
        """Return a password's digest with these parameters. Takes some 0.2 s of processor time, in which other threads run."""
        memory = 128 * self.r * (self.n + self.p + 2) + 1024 * 1024
        return hashlib.scrypt(password, salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=memory, dklen=len(self.digest))


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    changed_ms: int
    scrypt: Hash
    one_time: bool = False

    def user(self, name: str) -> User:
        return User(name, self.role, self.one_time, self.changed_ms)


_Records = dict[str, _Record]
_decoder = json_decoder(Annotated[dict[Annotated[str, Meta(pattern=_NAME)], _Record], Meta(max_length=USERS_MAX)])
_DUMMY = Hash(bytes(16))


class Users:
    """The users in a file; without a file there are none. ``now_ms``: milliseconds since the epoch. Threads may share it.

    Every method raises SettingError, naming the file, where it cannot be read, is damaged or cannot be written; those that change
    a user raise UsageError where there is none of that name.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        self._path = Path(os.path.realpath(path))  # a link to where others keep such files stays one
        self._now_ms, self._warned = now_ms, False
        self._read: tuple[tuple[int, ...], _Records] = ((), {})

    def all(self) -> list[User]:
        """Return all users by name."""
        return [record.user(name) for name, record in sorted(self._records().items())]

    def get(self, name: str) -> User | None:
        """Return one user; None: there is none of that name. Costs a look at the file's date."""
        return None if (record := self._records().get(name)) is None else record.user(name)

    def check(self, name: str, password: str) -> User | None:
        """Return the user whose password it is; None: a wrong name or password, or a one-time password older than 24 hours.

        All take the same time, some 0.2 s of processor time: ask `Attempts.refused_ms` first, and let few check at once.
        """
        record = self._records().get(name)
        scrypt = _DUMMY if record is None else record.scrypt
        fits = hmac.compare_digest(scrypt.digest_of(_bytes(password)), scrypt.digest)
        if record is None or not fits:
            return None
        expired = abs(self._now_ms() - record.changed_ms) >= ONE_TIME_MS  # either way: the clock may have been set back
        return None if record.one_time and expired else record.user(name)

    def add(self, name: str, role: str) -> str:
        """Add a user, and return the one-time password. Raises UsageError for a name that is taken or bad, and at 1,000 users."""
        if not re.match(_NAME, name):
            raise UsageError(f"{name!r:.100} cannot name a user: give 1 to 64 of a-z, A-Z, 0-9, ., _, @ and -")
        password = _one_time()
        record = _Record(_role(role), self._now_ms(), _hash(password), one_time=True)
        with self._changing() as records:
            if name in records:
                raise UsageError(f"there is a user {name} already")
            if len(records) >= USERS_MAX:
                raise UsageError(f"there are {USERS_MAX:,} users, and no more may be: remove one first")
            records[name] = record
        return password

    def reset(self, name: str) -> str:
        """Give a user a new one-time password, and return it."""
        return self._set_password(name, _one_time(), one_time=True)

    def change_password(self, name: str, new: str) -> None:
        """Set a user's own password. Raises UsageError, in words for the user, for one that does not do."""
        given, old = _bytes(new), _known(self._records(), name).scrypt
        if len(given.decode(errors="replace")) < PASSWORD_CHARACTERS_MIN:
            raise UsageError(f"the new password is too short: give at least {PASSWORD_CHARACTERS_MIN} characters")
        if len(given) > PASSWORD_BYTES_MAX:
            raise UsageError(f"the new password is too long: give at most {PASSWORD_BYTES_MAX:,} bytes")
        if new.casefold() == name.casefold():
            raise UsageError("the new password is the user's name: give another")
        if hmac.compare_digest(old.digest_of(given), old.digest):
            raise UsageError("the new password is the old one: give another")
        self._set_password(name, new, one_time=False)

    def set_role(self, name: str, role: str) -> None:
        """Make a user a viewer or an operator, from the next request on. Raises UsageError for another role."""
        made = _role(role)
        with self._changing() as records:
            records[name] = msgspec.structs.replace(_known(records, name), role=made)

    def remove(self, name: str) -> None:
        """Remove a user."""
        with self._changing() as records:
            _known(records, name)
            del records[name]

    def _set_password(self, name: str, password: str, *, one_time: bool) -> str:
        scrypt = _hash(password)
        with self._changing() as records:
            old, now = _known(records, name), self._now_ms()
            changed_ms = now + (now == old.changed_ms)  # sessions tell passwords apart by it
            records[name] = _Record(old.role, changed_ms, scrypt, one_time)
        return password

    def _records(self) -> _Records:
        """Return what the file holds, read again if it is another than before. Nobody changes what is returned."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                stamp = found.st_mtime_ns, found.st_ino, found.st_size
                if self._read[0] != stamp:
                    self._read = stamp, _decoder.decode(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise SettingError(f"{self._path}: users cannot be read: {exc.strerror}") from None
        except ValueError as exc:
            raise SettingError(f"{self._path}: the file of users is damaged: {exc}. Put a copy in its place") from None
        if found.st_mode & 0o077 and not self._warned:
            self._warned = True
            log.warning("%s: others may read or write it, and it holds password hashes: chmod 600", self._path)
        return self._read[1]

    @contextmanager
    def _changing(self) -> Iterator[_Records]:
        """Lend the users to be changed while nobody else does; then the file is replaced, durably."""
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            with locked(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR):
                yield (records := dict(self._records()))
                fresh.unlink(missing_ok=True)
                with locked(fresh, os.O_WRONLY) as descriptor, open(descriptor, "wb", closefd=False) as file:
                    file.write(msgspec.json.format(msgspec.json.encode(records), indent=1) + b"\n")
                    file.flush()
                    os.fsync(descriptor)
                fresh.replace(self._path)
                sync_directory(self._path.parent)
        except OSError as exc:
            raise SettingError(f"{self._path}: users cannot be written: {exc.strerror}") from None


def _known(records: _Records, name: str) -> _Record:
    if (record := records.get(name)) is None:
        raise UsageError(f"there is no user {name!r:.100}")
    return record


def _role(role: str) -> Role:
    if role not in get_args(Role):
        raise UsageError(f"{role!r:.100} is not a role: give {' or '.join(get_args(Role))}")
    return cast(Role, role)


def _one_time() -> str:
    return "-".join("".join(secrets.choice(_READABLE) for _ in range(5)) for _ in range(5))


def _hash(password: str) -> Hash:
    salted = Hash(secrets.token_bytes(16))
    return msgspec.structs.replace(salted, digest=salted.digest_of(_bytes(password)))


def _bytes(password: str) -> bytes:
    """Return a password's bytes, the same however a keyboard composes its letters; of one far too long those of its beginning."""
    return unicodedata.normalize("NFKC", password[: 4 * PASSWORD_BYTES_MAX]).encode("utf-8", "surrogatepass")
