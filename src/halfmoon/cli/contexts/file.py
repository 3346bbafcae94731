"""File of named contexts: each is a cluster's name servers, and paths of the files that sign and encrypt what is asked there.

Holds no secret. It is ``halfmoon/contexts.json`` in the user's configuration directory, for its owner alone, and replaced whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import SettingError, UsageError
from halfmoon.model import split_addresses

DEFAULT = "default"
"""Name for no context: variables decide, else a name server on this machine is used."""
FILE_BYTES_MAX = 1024 * 1024
"""Longest file; a context takes some 100 bytes."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ClusterContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Context of a cluster. Empty fields are left to the variables; fields of TLS are the options of their names, in order."""

    nameserver: str
    credentials: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    tls_no_verify: bool = False

    @property
    def encryption(self) -> tuple[Any, ...]:
        """Return the options of encrypted connections, in order."""
        return msgspec.structs.astuple(self)[2:]


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """All contexts by name, and the one in use."""

    contexts: dict[str, ClusterContext] = {}
    in_use: str = DEFAULT

    def named(self, name: str) -> ClusterContext | None:
        """Return one context; None: the default one. Raises SettingError where there is none, with a name spelt alike."""
        if name != DEFAULT and name not in self.contexts:
            near = get_close_matches(name, self.contexts, 1)
            raise SettingError(f"there is no context {name!r:.100}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return self.contexts.get(name)

    def check(self) -> None:
        """Raise UsageError for an invalid name, address or path."""
        for name, context in self.contexts.items():
            if not _NAME.fullmatch(name) or name == DEFAULT:
                raise SettingError(
                    f"{name!r:.100} cannot name a context: give up to 64 of a-z, A-Z, 0-9, _, - and ., not {DEFAULT}"
                )
            if not split_addresses(context.nameserver):
                raise SettingError(f"context {name}: name servers are missing")
            if not all(value.isprintable() for value in msgspec.structs.astuple(context) if isinstance(value, str)):
                raise SettingError(f"context {name}: it has characters that cannot be printed")
        self.named(self.in_use)


def place() -> Path | None:
    """Return the path of the file: below XDG_CONFIG_HOME, else ~/.config. None: the user has neither."""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        base = given if given.is_absolute() else Path.home() / ".config"  # a relative one is ignored, as its specification says
    except RuntimeError:
        return None
    return base / "halfmoon" / "contexts.json"


def read() -> Contexts:
    """Return the contexts; without a file there are none. Raises SettingError where it cannot be read or is broken."""
    path = place()
    if path is None:
        return Contexts()
    try:
        with path.open("rb") as file:
            found: Contexts = json_decoder(Contexts).decode(file.read(FILE_BYTES_MAX))
        found.check()
    except FileNotFoundError:
        return Contexts()
    except OSError as exc:
        raise SettingError(f"{path}: contexts cannot be read: {exc.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as exc:
        raise SettingError(f"{path} is broken: {exc}. Correct it, or remove it and add the contexts again") from None
    return found


def change(make: Callable[[Contexts], None]) -> Contexts:
    """Change the contexts and replace the file, durably; return the contexts. Raises UsageError."""
    found, where = read(), place()
    if where is None:
        raise SettingError("this user has no home directory for contexts: set XDG_CONFIG_HOME")
    make(found)
    found.check()
    path = Path(os.path.realpath(where))  # a link to where others keep such files stays one
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
            file.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as exc:
        raise SettingError(f"{path}: contexts cannot be written: {exc.strerror}") from None
    return found
