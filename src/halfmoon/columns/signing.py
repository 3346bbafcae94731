"""Signatures of requests: what is signed, `Signer`, and `Verifier`, which knows what one account was found to be allowed to do.

A request is signed with HMAC-SHA1 over the values of its header's fields, in the order of the fields' names and without anything
between them, followed by the body; ``Signature`` holds the result in Base64. Nobody's secret is kept as such: only the state of the
two hashes that begin with it.

Follows AclClientRPCHook and PlainAccessValidator (RocketMQ 4.9.7).
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
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
    """What one account may send without being looked at again: requests that it signs, and was found to be allowed to send.

    ``secret`` None: it need not sign, and may send everything. ``bound``: the connection is the account's, whose requests may name
    none; one that names it is signed.
    """

    __slots__ = ("_access_key", "_allowed", "_bound", "_hashes")

    def __init__(self, access_key: str, secret: bytes | None, *, bound: bool = False) -> None:
        self._access_key, self._bound = access_key, bound
        self._hashes = None if secret is None else hashes(secret)
        self._allowed: set[tuple[int, str]] = set()

    def allow(self, code: int, topic: str) -> None:
        """Let requests of this code for this topic pass from now on; "": it names none."""
        self._allowed.add((code, topic))

    def passes(self, code: int, topic: str, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether a request is this account's, allowed, and signed. Takes as long for a wrong signature as for the right one."""
        is_unsigned = self._bound and ACCESS_KEY not in fields
        if not is_unsigned and fields.get(ACCESS_KEY) != self._access_key:
            return False
        if self._hashes is None:
            return True
        return (code, topic) in self._allowed and (is_unsigned or signed(self._hashes, fields, body))


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
