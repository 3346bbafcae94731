"""Signatures of requests: what is signed, and `Signer`.

A request is signed with HMAC-SHA1 over the values of its header's fields, in the order of the fields' names and without anything
between them, followed by the body; ``Signature`` holds the result in Base64. Nobody's secret is kept as such: only the state of the
two hashes that begin with it.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from hashlib import sha1
from hmac import compare_digest
from typing import Any

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, UNIQUE_KEY_QUERY = "AccessKey", "SecurityToken", "Signature", "_UNIQUE_KEY_QUERY"
UNSIGNED = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})
"""Fields that are not signed. A 4.9 broker takes the second out before it verifies, though a 4.9 client signs it: their query by
unique key is refused wherever access control is on. Differs: we sign without it."""


class Signer:
    """Signs the requests of one account. ``token`` is empty where none is wanted."""

    __slots__ = ("_hashes", "_own")

    def __init__(self, access_key: str, secret: str, token: str) -> None:
        self._own = {ACCESS_KEY: access_key, **({SECURITY_TOKEN: token} if token else {})}
        self._hashes = hashes(secret.encode())

    def sign(self, fields: Mapping[str, str], body: bytes | memoryview) -> dict[str, str]:
        """Return the fields that sign a request with these ones: they follow them in its header."""
        return {**self._own, SIGNATURE: signature(self._hashes, content({**fields, **self._own}, body)).decode()}


class Verifier:
    """Requests that a `Reader` may take behind access control: those that an account signs, and was found to be allowed to send.

    ``secret`` None: it need not sign, and may send everything. ``bound``: the connection is the account's, whose requests may name
    none; one that names it is signed. This twin's reader takes none: `halfmoon.broker.access` checks each.
    """

    def __init__(self, access_key: str, secret: bytes | None, *, bound: bool = False) -> None:
        pass

    def allow(self, code: int, topic: str) -> None:
        """Let requests of this code for this topic pass from now on; "": it names none."""


def content(fields: Mapping[str, str], body: bytes | memoryview) -> bytes:
    """Return what is signed of a request. Names are sorted by their UTF-16 code units, as Java compares texts."""
    names = sorted(set(fields) - UNSIGNED, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    # Half a surrogate pair, which JSON can escape, is signed by Java as a question mark.
    return "".join([fields[name] for name in names]).encode("utf-8", "replace") + body


def signature(begun: tuple[Any, Any], text: bytes) -> bytes:
    """Return the signature of what `content` returned, in Base64."""
    inner, outer = begun[0].copy(), begun[1].copy()
    inner.update(text)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


def signed(begun: tuple[Any, Any], fields: Mapping[str, str], body: bytes | memoryview) -> bool:
    """Whether a request has the signature that it must have."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return compare_digest(signature(begun, content(fields, body)), given)


def hashes(secret: bytes) -> tuple[Any, Any]:
    """Return the two hashes of an HMAC with the secret in them (RFC 2104), to be copied: half the time of beginning anew."""
    key = (sha1(secret, usedforsecurity=False).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
    inner, outer = (sha1(bytes(byte ^ pad for byte in key), usedforsecurity=False) for pad in (0x36, 0x5C))
    return inner, outer


_BLOCK = 64
