"""The audit log: who did what, from where, and what became of it, as JSON lines in a file for the console's user alone.

A change is written before it is made, and its outcome after it. Lines are only appended; of a line that was cut short, the rest
of the file can still be read.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from errno import ENOSPC
from itertools import islice, pairwise
from pathlib import Path
from threading import RLock

import msgspec

from halfmoon.console.access.attempts import network_of
from halfmoon.console.access.files import locked, sync_directory
from halfmoon.conversion import json_decoder
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.logs import escaped

log = logging.getLogger("halfmoon.console")

FILE_BYTES_MAX, FILES_MAX = 8 * 1024 * 1024, 8
TEXT_MAX, FIELDS_MAX = 200, 50
"""Characters of a value, and fields of a line."""
RUNNING_MAX = 1_000
KINDS_MAX, OTHERS = 20, "other addresses"
"""Addresses of failed logins that are told apart in a minute: else strangers fill the files, and what is in them is lost."""
BEGUN, UNKNOWN = "begun", "not known: the console ended meanwhile"

_BLOCK_BYTES = 64 * 1024  # longer than any line of ours
_SECRET = re.compile("passw|secret|token|csrf|credential|cookie", re.IGNORECASE)


class NotAudited(HalfmoonError):
    """The audit log cannot be written or read. A change that it has no line of is not made."""


class Entry(msgspec.Struct, frozen=True):
    """One change, login or refusal. ``outcome`` is "begun", "done: ...", "failed: ..." or "not known: ..."; times are ms
    since the epoch."""

    at_ms: int
    id: str
    user: str
    address: str
    action: str
    outcome: str
    fields: dict[str, str] = {}
    ended_ms: int | None = None


class _Head(msgspec.Struct, frozen=True):
    id: str
    ended_ms: int | None


_entries, _heads = json_decoder(Entry), json_decoder(_Head)


class Audit:
    """The log in ``path``, and in ``path.1`` to ``path.7``, which are older: 8 MB each. Threads and processes may share it.
    ``now_ms``: milliseconds since the epoch."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        self._path, self._now_ms = Path(os.path.realpath(path)), now_ms
        self._running: dict[str, Entry] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._minute_ms = now_ms()
        self._lock = RLock()  # what has begun is running, or its end is in the file: no reader comes between

    def begin(self, user: str, address: str, action: str, fields: Mapping[str, object]) -> str:
        """Write that a change is about to be made, durably, and return its id. Values are cut; passwords and tokens are left out.

        Raises NotAudited, or UsageError: then it must not be made.
        """
        entry = self._entry(user, address, action, fields, BEGUN)
        with self._lock:
            if len(self._running) >= RUNNING_MAX:
                raise UsageError(f"{RUNNING_MAX:,} changes are running: wait for one to end")
            self._write(entry)
            self._running[entry.id] = entry
        return entry.id

    def end(self, change_id: str, outcome: str) -> None:
        """Write what became of a change, once: "done: ..." or "failed: ...". Where that fails it is logged: the change is made."""
        with self._lock:
            begun = self._running.pop(change_id)
            self._write_or_log(msgspec.structs.replace(begun, outcome=_cut(outcome), fields={}, ended_ms=self._now_ms()))

    def note(self, user: str, address: str, action: str, fields: Mapping[str, object], outcome: str = "done") -> None:
        """Write what needs no permission, such as a login. Where that fails it is logged."""
        self._write_or_log(self._entry(user, address, action, fields, outcome))

    def login_failed(self, name: str, address: str, locked_ms: int = 0) -> None:
        """Write the first failed login and the first lock-out from an address, and then in each minute how many more there were.

        ``name`` is empty unless there is a user of that name: people type passwords there. ``locked_ms``: `Attempts.failed`.
        """
        outcome = "failed: locked out" if locked_ms else "failed: wrong name or password"
        kind = network_of(address), outcome
        with self._lock:
            self._tick()
            if kind not in self._failures and len(self._failures) >= KINDS_MAX:
                kind = OTHERS, outcome
            self._failures[kind] = self._failures.get(kind, -1) + 1
            if not self._failures[kind]:
                self.note(name, address, "login", {}, outcome)

    def read(self, count: int, before: str | None = None) -> list[Entry]:
        """Return the newest entries first, of all or of those before the one with an id, each change with its outcome.

        Costs what is read: a page of old entries up to 64 MB. Raises NotAudited where a file cannot be read.
        """
        with self._lock:
            self._tick()
            return self._read(count, before)

    def _read(self, count: int, before: str | None) -> list[Entry]:
        found: list[Entry] = []
        ended: dict[str, bytes] = {}
        wanted = before is None
        for line in self._lines_backwards():
            try:
                head = _heads.decode(line)  # of those that are passed over nothing else is read
                if head.ended_ms is not None:
                    ended[head.id] = line
                    continue
                end = ended.pop(head.id, None)
                if wanted:
                    found.append(self._joined(_entries.decode(line), end))
            except ValueError:  # a line that was cut short
                continue
            if len(found) == count:
                break
            wanted = wanted or head.id == before
        return found

    def _joined(self, entry: Entry, end: bytes | None) -> Entry:
        if end is not None:
            ended = _entries.decode(end)
            return msgspec.structs.replace(entry, outcome=ended.outcome, ended_ms=ended.ended_ms)
        is_unknown = entry.outcome == BEGUN and entry.id not in self._running
        return msgspec.structs.replace(entry, outcome=UNKNOWN) if is_unknown else entry

    def _tick(self) -> None:
        """Write what was counted when a minute is over."""
        if abs(self._now_ms() - self._minute_ms) >= 60_000:
            self._minute_ms = self._now_ms()
            counted = {kind: count for kind, count in self._failures.items() if count}
            self._failures = dict.fromkeys(counted, 0)
            for (address, outcome), count in counted.items():
                self.note("", address, "login", {"times": count}, outcome)

    def _entry(self, user: str, address: str, action: str, fields: Mapping[str, object], outcome: str) -> Entry:
        few = islice(fields.items(), FIELDS_MAX)
        kept = {_cut(name): "(left out)" if _SECRET.search(name) else _cut(value) for name, value in few}
        return Entry(self._now_ms(), secrets.token_hex(8), _cut(user), _cut(address), _cut(action), _cut(outcome), kept)

    def _write_or_log(self, entry: Entry) -> None:
        try:
            self._write(entry)
        except HalfmoonError as exc:
            log.error("%s: %s of %r: %s", exc, entry.action, entry.user, entry.outcome)

    def _write(self, entry: Entry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        try:
            while not self._is_appended(line):
                pass
        except OSError as exc:
            raise NotAudited(f"{self._path}: the audit log cannot be written: {exc.strerror}") from None

    def _is_appended(self, line: bytes) -> bool:
        """Write a line durably; False: the file was full, and this process or another has renamed it."""
        with locked(self._path, os.O_RDWR | os.O_APPEND) as file:
            size = os.fstat(file).st_size
            if not (self._path.exists() and os.path.samestat(os.fstat(file), os.stat(self._path))):
                return False
            if size >= FILE_BYTES_MAX:
                for newer, older in reversed([*pairwise(self._paths())]):
                    with suppress(FileNotFoundError):
                        newer.replace(older)
                return False
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last one was cut short, and stays alone
            if os.write(file, line) < len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(file)
            if not size:
                sync_directory(self._path.parent)
            return True

    def _paths(self) -> list[Path]:
        return [self._path, *(self._path.with_name(f"{self._path.name}.{number}") for number in range(1, FILES_MAX))]

    def _lines_backwards(self) -> Iterator[bytes]:
        for path in self._paths():
            try:
                with path.open("rb") as file:
                    yield from _lines_backwards(file.fileno())
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise NotAudited(f"{path}: the audit log cannot be read: {exc.strerror}") from None


def _lines_backwards(file: int) -> Iterator[bytes]:
    """Yield the lines of a file, the last first. What is longer than a line of ours can be comes in parts."""
    end, rest = os.fstat(file).st_size, b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        rest, *lines = (os.pread(file, end - start, start) + rest[:_BLOCK_BYTES]).split(b"\n")
        yield from reversed(lines)
        end = start
    yield rest


def _cut(value: object) -> str:
    text = escaped(str(value))
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
