"""Credentials of a program for signing: from settings, the environment, or a file. Sends nothing.

The file has lines ``accessKey: NAME``, ``secretKey: SECRET`` and optionally ``securityToken: TOKEN``, with ``:`` or ``=``; values
may be quoted. RocketMQ's ``tools.yml`` is such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from halfmoon.errors import SettingError
from halfmoon.runtime.files.secrets import read_secret
from halfmoon.wire.signature import Credentials

ACCESS_KEY, SECRET_KEY, TOKEN = "HALFMOON_ACCESS_KEY", "HALFMOON_SECRET_KEY", "HALFMOON_SECURITY_TOKEN"
FILE = "HALFMOON_CREDENTIALS"


def credentials(
    environment: Mapping[str, str], access_key: str = "", secret_key: str = "", security_token: str = "", file: str = ""
) -> Credentials | None:
    """Return credentials: those given, else of the given file, else of the variables, else of the file that a variable names.

    None: nothing is given, and requests are not signed.

    Raises:
        SettingError: half of a pair is given, or a file cannot be read or has no credentials. No text shows a secret.
    """
    if access_key or secret_key:
        return _pair(access_key, secret_key, security_token, "access_key and secret_key")
    if file:
        return read(file, environment)
    own, secret = environment.get(ACCESS_KEY, ""), environment.get(SECRET_KEY, "")
    if own or secret:
        return _pair(own, secret, environment.get(TOKEN, ""), f"{ACCESS_KEY} and {SECRET_KEY}")
    return read(environment[FILE], environment) if environment.get(FILE) else None


def read(name: str, environment: Mapping[str, str]) -> Credentials:
    """Return the credentials in a file. Raises SettingError, also if other users may read it (`halfmoon.settings.private`)."""
    path = Path(name).expanduser()
    values = dict(_values(read_secret(path, "the credentials", environment)))
    key, secret, token = (values.get(field, "") for field in ("accessKey", "secretKey", "securityToken"))
    return _pair(key, secret, token, f"{path}: accessKey and secretKey")


def _values(text: str) -> list[tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        at = min((at for mark in ":=" if (at := line.find(mark)) > 0), default=0)
        value = line[at + 1 :].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        pairs.append((line[:at].strip(), value))
    return pairs


def _pair(access_key: str, secret_key: str, security_token: str, what: str) -> Credentials:
    if not access_key or not secret_key:
        raise SettingError(f"{what}: give both, or neither")
    return Credentials(access_key, secret_key, security_token)
