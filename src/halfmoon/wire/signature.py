"""The signature of a request: what is signed, signing, verifying. Bytes in, bytes out; knows no account and no clock.

A request is signed with HMAC-SHA1 over the values of its header's fields, in the order of the fields' names and without anything
between them, followed by the body. ``AccessKey`` and ``SecurityToken`` are fields like any other and so are signed; ``Signature``
holds the result in Base64. Nothing else of a frame is signed: not its code, nor its opaque, nor the time, so a request that was
overheard can be sent again. Only TLS protects against that.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
from typing import Any, NamedTuple

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})
"""Fields that are not signed. A 4.9 broker takes the second out before it verifies, though a 4.9 client signs it: their query by
unique key is refused wherever access control is on. Differs: we sign without it."""

KEY_LENGTH_MIN, KEY_LENGTH_MAX = 7, 256
"""Characters of an access key and of a secret. The least is the original's."""


class Credentials(NamedTuple):
    """Who signs: an access key, its secret, and a token that some clouds want besides. Its text shows the access key alone."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key='***')"

    def sign(self, fields: Mapping[str, str], body: bytes | memoryview) -> dict[str, str]:
        """Return the fields that sign a request with these ones: they follow them in its header."""
        own = {ACCESS_KEY: self.access_key}
        if self.security_token:
            own[SECURITY_TOKEN] = self.security_token
        own[SIGNATURE] = signature(self.secret_key.encode(), content({**fields, **own}, body)).decode()
        return own


def content(fields: Mapping[str, str], body: bytes | memoryview) -> bytes:
    """Return what is signed of a request. Names are sorted by their UTF-16 code units, as Java compares texts."""
    names = tuple(fields)
    text = "".join((_signed.get(names) or _signed_of(names))(fields))
    try:
        return b"".join((text.encode(), body))
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape: Java signs a question mark in its place
        return b"".join((text.encode("utf-8", "replace"), body))


_signed: dict[tuple[str, ...], Callable[[Mapping[str, str]], Iterable[str]]] = {}
"""What takes the signed values in their order, by the names as they come: a client's requests name the same ones all the time."""

_SIGNED_MAX, _NAMES_MAX, _LENGTH_MAX = 1024, 64, 1024
"""So many are kept, of so many names with so many characters; all are forgotten when there are more."""


def _signed_of(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    order = sorted(set(names) - UNSIGNED, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    values = itemgetter(*order) if order else lambda _fields: ()
    if len(names) <= _NAMES_MAX and sum(map(len, names)) <= _LENGTH_MAX:
        if len(_signed) >= _SIGNED_MAX:
            _signed.clear()
        _signed[names] = values
    return values


def signature(secret: bytes, signed: bytes) -> bytes:
    """Return the signature of what `content` returned, in Base64."""
    inner, outer = _begun(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(signed)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


@lru_cache(1024)
def _begun(secret: bytes) -> tuple[Any, Any]:
    """The two hashes of an HMAC with the secret in them (RFC 2104), to be copied: half the time of beginning anew."""
    key = (sha1(secret, usedforsecurity=False).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
    return tuple(sha1(bytes(byte ^ pad for byte in key), usedforsecurity=False) for pad in (0x36, 0x5C))  # type: ignore[return-value]


_BLOCK = 64


def verify(secret: bytes, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Whether a request is signed with a secret. Takes as long for a wrong signature as for the right one."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return compare_digest(signature(secret, content(fields, body)), given)
