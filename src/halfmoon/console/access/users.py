"""Users of the console with their roles and password hashes, in its database. No password is kept, only its scrypt hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import unicodedata
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from halfmoon.console.access.database import opened
from halfmoon.conversion import convert
from halfmoon.errors import SettingError, UsageError

USERS_MAX = 1_000
PASSWORD_CHARACTERS_MIN, PASSWORD_BYTES_MAX = 12, 1_024
ONE_TIME_MS = 24 * 3_600_000
"""Lifetime of a one-time password."""

# scrypt (RFC 7914) takes 128 * N * R bytes of memory, 16 MB, and with this P some 0.2 s of processor time.
N, R, P = 16384, 8, 5
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_READABLE = "abcdefghjkmnpqrstuvwxyz23456789"  # no i, l, o, 0, 1: 25 of these are 123 bits


class Role(StrEnum):
    """Role of a user: a viewer looks, an operator changes as well."""

    viewer = "viewer"
    operator = "operator"


class User(msgspec.Struct, frozen=True):
    """User of the console.

    ``must_change``: the password is a one-time one, and has to be changed before anything else. ``changed_ms`` is when the password
    was set; no two passwords in a row have the same.
    """

    name: str
    role: Role
    must_change: bool
    changed_ms: int


class Users:
    """Users in the database of a directory; without one there are none.

    ``now_ms``: milliseconds since the epoch; ``scrypt_n``: cost of a hash, a power of two. Threads and processes may share it.

    Every method raises SettingError, naming the file, where it cannot be read, is damaged or cannot be written; those that change
    a user raise UsageError where there is none of that name.
    """

    def __init__(self, directory: Path, now_ms: Callable[[], int], scrypt_n: int = N) -> None:
        self._opened, self._now_ms = partial(opened, directory, "the users", SettingError), now_ms
        self._scrypt_n = scrypt_n

    def all(self) -> list[User]:
        """Return all users by name."""
        with self._opened() as database:
            return [_user(row) for row in database.execute("SELECT * FROM users ORDER BY name")]

    def get(self, name: str) -> User | None:
        """Return one user; None: there is none of that name."""
        return self._find(name)[0]

    def check(self, name: str, password: str) -> User | None:
        """Return the user with this password; None: a wrong name or password, or a one-time password older than 24 hours.

        All take the same time, some 0.2 s of processor time: ask `Attempts.refused_ms` first, and let few check at once.
        """
        user, salt, digest = self._find(name)
        if not hmac.compare_digest(self._digest(password, salt), digest) or user is None:
            return None
        expired = abs(self._now_ms() - user.changed_ms) >= ONE_TIME_MS  # either way: the clock may have been set back
        return None if user.must_change and expired else user

    def add(self, name: str, role: str) -> str:
        """Add a user, and return the one-time password. Raises UsageError for a name that is taken or bad, and at 1,000 users."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r:.100} cannot name a user: give 1 to 64 of a-z, A-Z, 0-9, ., _, @ and -")
        password = _one_time()
        values = {"name": name, "role": role, "now_ms": self._now_ms(), **self._hashed(password)}
        with self._opened(writes=True) as database:
            if database.execute("SELECT 1 FROM users WHERE name = ?", [name]).fetchone():
                raise UsageError(f"there is a user {name} already")
            if database.execute("SELECT count(*) FROM users").fetchone()[0] >= USERS_MAX:
                raise UsageError(f"there are {USERS_MAX:,} users already, the most there can be: remove one first")
            database.execute("INSERT INTO users VALUES (:name, :role, 1, :now_ms, :salt, :digest)", values)
        return password

    def reset(self, name: str) -> str:
        """Give a user a new one-time password, and return it."""
        password = _one_time()
        self._set_password(name, password, must_change=True)
        return password

    def change_password(self, name: str, new: str) -> None:
        """Set a user's own password. Raises UsageError, in words for the user, for an unsuitable one."""
        given, (_, salt, digest) = _bytes(new), self._find(name)
        if len(given.decode(errors="replace")) < PASSWORD_CHARACTERS_MIN:
            raise UsageError(f"the new password is too short: give at least {PASSWORD_CHARACTERS_MIN} characters")
        if len(given) > PASSWORD_BYTES_MAX:
            raise UsageError(f"the new password is too long: give at most {PASSWORD_BYTES_MAX:,} bytes")
        if new.casefold() == name.casefold():
            raise UsageError("the new password is the user's name: give another")
        if hmac.compare_digest(self._digest(new, salt), digest):
            raise UsageError("the new password is the old one: give another")
        self._set_password(name, new, must_change=False)

    def set_role(self, name: str, role: str) -> None:
        """Make a user a viewer or an operator, from the next request on."""
        self._change("UPDATE users SET role = :role", name, role=role)

    def remove(self, name: str) -> None:
        """Remove a user."""
        self._change("DELETE FROM users", name)

    def _set_password(self, name: str, password: str, *, must_change: bool) -> None:
        self._change(
            "UPDATE users SET must_change = :must_change, salt = :salt, digest = :digest, "
            "changed_ms = :now_ms + (changed_ms = :now_ms)",  # sessions tell passwords apart by their times
            name, must_change=must_change, now_ms=self._now_ms(), **self._hashed(password),
        )  # fmt: skip

    def _change(self, statement: str, name: str, **values: object) -> None:
        with self._opened(writes=True) as database:
            if not database.execute(f"{statement} WHERE name = :name", {"name": name, **values}).rowcount:
                raise UsageError(f"there is no user {name!r:.100}")

    def _find(self, name: str) -> tuple[User | None, bytes, bytes]:
        """Return a user with salt and digest; for an unknown name, a digest that no password fits."""
        with self._opened() as database:
            row = database.execute("SELECT * FROM users WHERE name = ?", [name[:100]]).fetchone()
            return (None, bytes(16), bytes(32)) if row is None else (_user(row), row["salt"], row["digest"])

    def _hashed(self, password: str) -> dict[str, bytes]:
        salt = secrets.token_bytes(16)
        return {"salt": salt, "digest": self._digest(password, salt)}

    def _digest(self, password: str, salt: bytes) -> bytes:
        """Return a password's hash; other threads run meanwhile."""
        return hashlib.scrypt(_bytes(password), salt=salt, n=self._scrypt_n, r=R, p=P, maxmem=32 * 1024 * 1024, dklen=32)


def _user(row: sqlite3.Row) -> User:
    found: User = convert(dict(row), User, strict=False)
    return found


def _one_time() -> str:
    return "-".join("".join(secrets.choice(_READABLE) for _ in range(5)) for _ in range(5))


def _bytes(password: str) -> bytes:
    """Return a password's bytes in Unicode's normal form; only the beginning of a password that is far too long."""
    return unicodedata.normalize("NFKC", password[: 4 * PASSWORD_BYTES_MAX]).encode("utf-8", "surrogatepass")
