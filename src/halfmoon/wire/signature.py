"""Who signs requests, and whether one is signed. Bytes in, bytes out; knows no account and no clock.

What is signed, and how, is said in `halfmoon.columns.signing`. ``AccessKey`` and ``SecurityToken`` are fields like any other and so
are signed. Nothing of a frame but its fields and body is: not its code, nor its opaque, nor the time, so a request that was
overheard can be sent again. Only TLS protects against that.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from halfmoon.columns.signing import hashes, signed
from halfmoon.hot import Signer

KEY_LENGTH_MIN, KEY_LENGTH_MAX = 7, 256
"""Characters of an access key and of a secret. The least is the original's."""


class Credentials(NamedTuple):
    """Who signs: an access key, its secret, and a token that some clouds want besides. Its text shows the access key alone."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key='***')"


Signs = Callable[[str], Credentials | None]
"""Returns who signs requests to an address; None: nobody does."""


def nobody(_address: str) -> None:
    """Sign nothing."""


@lru_cache(1024)
def signer(credentials: Credentials) -> Signer:
    """Return what signs frames as they are written."""
    return Signer(*credentials)


def verify(secret: bytes, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Whether a request is signed with a secret. Takes as long for a wrong signature as for the right one."""
    return signed(_hashes(secret), fields, body)


_hashes = lru_cache(1024)(hashes)
