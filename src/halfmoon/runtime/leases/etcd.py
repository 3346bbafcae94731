"""Lease in etcd: one key, replaced by a transaction that compares its revision, through the JSON gateway of etcd's API v3.

A request goes to the endpoints of the URL in turn: one that reads after any failure, one that writes only while it is certain that
no member took it. Follows etcd 3.4: ``/v3/kv/range`` (linearizable), ``/v3/kv/txn``, ``/v3/auth/authenticate``.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import Stored
from halfmoon.runtime.leases.addresses import Resolver
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.runtime.leases.http import Endpoint, NotSent, Reply, Request, exchange
from halfmoon.runtime.leases.record import checked, line, stored
from halfmoon.runtime.tls import ClientTls
from halfmoon.settings.forms import is_host

ENDPOINTS_MAX = 16
"""Endpoints of one URL, which share the time of a call. A cluster has three or five."""
_PORT, _PREFIX = "2379", "/halfmoon"
_FILES = ("ca", "cert", "key")


def from_url(url: str, name: str) -> EtcdLease:
    """Return the lease of ``etcd://[user:password@]host[:port],.../prefix`` or, with TLS, ``etcds://...?ca=FILE&cert=FILE&key=FILE``.

    The port is 2379 where none is given, the prefix ``/halfmoon``; the key is the prefix, ``/`` and the name. Raises SettingError:
    the URL is malformed, or a file does not load. The text has nothing of a password.
    """
    try:
        parts = urlsplit(url)
        files = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise _malformed("it is no URL") from None
    if parts.fragment or any(key not in _FILES for key in files) or (files and parts.scheme != "etcds"):
        raise _malformed(f"behind ? stand {', '.join(_FILES)} of etcds:// and nothing else")
    account, _, hosts = parts.netloc.rpartition("@")
    user, colon, password = account.partition(":")
    if account and not (user and colon and password):
        raise _malformed("before @ stand user:password")
    tls = ClientTls(ca=files.get("ca", ""), cert=files.get("cert", ""), key=files.get("key", ""))
    context = tls.context() if parts.scheme == "etcds" else None
    endpoints = [Endpoint(*_host_and_port(text), context) for text in hosts.split(",")]
    if len(endpoints) > ENDPOINTS_MAX:
        raise _malformed(f"it has {len(endpoints)} endpoints, of at most {ENDPOINTS_MAX}")
    key = f"{unquote(parts.path).rstrip('/') or _PREFIX}/{name}"
    return EtcdLease(endpoints, key, unquote(user), unquote(password))


def _malformed(reason: str) -> SettingError:
    form = "etcd://user:password@host:port,host:port/prefix (special characters of a password are written %XX)"
    return SettingError(f"lease: the URL of etcd is malformed: {reason}; it is {form}")


def _host_and_port(text: str) -> tuple[str, int]:
    host, bracket, port = text.partition("]")
    if bracket:
        host, port = host.removeprefix("["), port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    port = port or _PORT
    if not is_host(host) or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise _malformed("an endpoint is not host:port")
    return host, int(port)


class EtcdLease:
    """Lease in a key of etcd; a `halfmoon.ports.LeaseStore`. The version is the revision of the key's last change."""

    def __init__(self, endpoints: list[Endpoint], key: str, user: str = "", password: str = "") -> None:
        self._endpoints, self._key = endpoints, _base64(key.encode())
        self._account = {"name": user, "password": password} if user else None
        self._token = ""
        self._resolver = Resolver()
        self.address = ",".join(str(endpoint) for endpoint in endpoints)

    def read(self, timeout_ms: int) -> Stored | None:
        """Return the newest record, as a majority of the members has it; None: there is none. Raises LeaseUnavailable."""
        reply = self._call("/v3/kv/range", {"key": self._key}, timeout_ms, may_repeat=True)
        try:
            int(reply["header"]["revision"])  # or it is none of etcd's, and no sign that there is no record
            [found] = reply.get("kvs") or [None]
            if found is None:
                return None
            text, version = b64decode(found.get("value", ""), validate=True), str(int(found["mod_revision"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._unavailable("the reply is none of etcd's") from None
        return stored(text, version, self.address)

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        """Replace the record; see `halfmoon.ports.LeaseStore.write`."""
        put = {"request_put": {"key": self._key, "value": _base64(checked(text).encode())}}
        revision = "0" if expected is None else expected  # a missing key has 0
        if not (revision.isascii() and revision.isdigit() and len(revision) < 19):
            return None  # no version of ours
        compare = {"key": self._key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        reply = self._call("/v3/kv/txn", {"compare": [compare], "success": [put]}, timeout_ms, may_repeat=False)
        try:
            version = str(int(reply["header"]["revision"]))
        except (ValueError, TypeError, KeyError):
            raise self._unavailable("the reply is none of etcd's") from None
        return version if reply.get("succeeded") is True else None

    def close(self) -> None:
        """Do nothing: each call has a connection of its own."""

    def _call(self, path: str, body: dict[str, Any], timeout_ms: int, *, may_repeat: bool) -> dict[str, Any]:
        """Return the reply of the first endpoint that gives one. Raises LeaseUnavailable, with the reason of each."""
        deadline, reasons = Deadline(timeout_ms, self.address), []
        for left, endpoint in zip(range(len(self._endpoints), 0, -1), self._endpoints):
            try:
                share = deadline.share(left, str(endpoint))
                return self._answer(endpoint, path, body, share if may_repeat else deadline, share)
            except LeaseUnavailable as exc:
                reasons.append(str(exc))
                if not (may_repeat or isinstance(exc, NotSent)):
                    break
        raise LeaseUnavailable(f"etcd: {'; '.join(reasons)}", self.address)

    def _answer(
        self, endpoint: Endpoint, path: str, body: dict[str, Any], deadline: Deadline, connecting: Deadline
    ) -> dict[str, Any]:
        """Return the reply of one endpoint, with another token where it does not know the one of before."""
        is_new = self._account is not None and not self._token
        if is_new:
            self._token = self._new_token(endpoint, connecting)
        reply = self._sent(endpoint, path, body, deadline, connecting)
        if self._account is not None and not is_new and _is_token_refused(reply):  # and so nothing was done
            self._token = self._new_token(endpoint, connecting)
            reply = self._sent(endpoint, path, body, deadline, connecting)
        if reply.status != 200:
            if _is_token_refused(reply):
                self._token = ""
            raise LeaseUnavailable(f"{endpoint} answers {reply.status}: {_reason(reply)}", str(endpoint))
        return reply.body

    def _sent(self, endpoint: Endpoint, path: str, body: dict[str, Any], deadline: Deadline, connecting: Deadline) -> Reply:
        headers = {"Content-Type": "application/json", **({"Authorization": self._token} if self._token else {})}
        return exchange(endpoint, Request("POST", path, headers, body), self._resolver, deadline, connecting)

    def _new_token(self, endpoint: Endpoint, deadline: Deadline) -> str:
        """Return a token for the account. Raises NotSent: nothing else was sent."""
        self._token = ""
        try:
            reply = self._sent(endpoint, "/v3/auth/authenticate", self._account or {}, deadline, deadline)
        except LeaseUnavailable as exc:
            raise NotSent(str(exc), exc.address) from None
        token = reply.body.get("token")
        if reply.status != 200 or not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise NotSent(f"{endpoint} refuses the account: {reply.status} {_reason(reply)}", str(endpoint))
        return token

    def _unavailable(self, reason: str) -> LeaseUnavailable:
        return LeaseUnavailable(f"etcd at {self.address}: {reason}", self.address)


def _is_token_refused(reply: Reply) -> bool:
    return reply.status == 401 or (reply.status != 200 and "auth" in _reason(reply))


def _reason(reply: Reply) -> str:
    said = reply.body.get("message") or reply.body.get("error") or "no reason"
    return line(said if isinstance(said, str) else "no reason")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
