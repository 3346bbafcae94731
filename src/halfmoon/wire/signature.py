"""The signature of a request: what is signed, signing, verifying. Bytes in, bytes out; knows no account and no clock.

A request is signed with HMAC-SHA1 over the values of its header's fields, in the order of the fields' names and without anything
between them, followed by the body. ``AccessKey`` and ``SecurityToken`` are fields like any other and so are signed; ``Signature``
holds the result in Base64. Nothing else of a frame is signed: not its code, nor its opaque, nor the time, so a request that was
overheard can be sent again. Only TLS protects against that.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from hmac import compare_digest, digest
from typing import NamedTuple

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
        signed = signature(self.secret_key.encode(), content({**fields, **own}, body))
        return {**own, SIGNATURE: signed.decode()}


def content(fields: Mapping[str, str], body: bytes | memoryview) -> bytes:
    """Return what is signed of a request. Names are sorted by their UTF-16 code units, as Java compares texts."""
    try:
        names = sorted(fields.keys() - UNSIGNED, key=None if "".join(fields).isascii() else _java_order)
        return b"".join((*[fields[name].encode() for name in names], body))
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape: Java signs a question mark in its place
        return b"".join((*[fields[name].encode("utf-8", "replace") for name in names], body))


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature(secret: bytes, signed: bytes) -> bytes:
    """Return the signature of what `content` returned, in Base64."""
    return b2a_base64(digest(secret, signed, "sha1"), newline=False)


def verify(secret: bytes, fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Whether a request is signed with a secret. Takes as long for a wrong signature as for the right one."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return compare_digest(signature(secret, content(fields, body)), given)
