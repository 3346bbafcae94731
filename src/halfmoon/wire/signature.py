"""Signatures of requests: signing and verifying. Bytes in, bytes out; knows no account and no clock.

`halfmoon.columns.signing` defines the signed bytes: all fields, ``AccessKey`` and ``SecurityToken`` included, and the body. Code,
opaque and time are not signed, so a recorded request can be replayed. Only TLS protects against that.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from halfmoon.columns.signing import hashes, signed
from halfmoon.hot import Signer

KEY_LENGTH_MIN, KEY_LENGTH_MAX = 7, 256
"""Bounds of the length of an access key and of a secret, characters. The minimum is the original's."""


class Credentials(NamedTuple):
    """Access key, secret, and the security token that some clouds require. ``repr`` shows the access key only."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key='***')"


Signs = Callable[[str], Credentials | None]
"""Function that returns the credentials for an address; None: requests are not signed."""


def nobody(_address: str) -> None:
    """Return no credentials for any address."""


@lru_cache(1024)
def signer(credentials: Credentials) -> Signer:
    """Return a signer of frames."""
    return Signer(*credentials)


def verify(secret: bytes, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Return whether a request is signed with a secret, in constant time."""
    return signed(_hashes(secret), fields, body)


_hashes = lru_cache(1024)(hashes)
