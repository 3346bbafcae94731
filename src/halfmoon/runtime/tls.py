"""TLS contexts of servers and clients from files, and explanations of failures. Opens certificates and keys only.

The minimum is TLS 1.2. Files that do not load are refused with path and reason; passwords are never shown.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from halfmoon.errors import SettingError
from halfmoon.limits import CERTIFICATE_NAME_MAX, CERTIFICATE_NAMES_MAX
from halfmoon.runtime.files.secrets import check_private
from halfmoon.settings.tls import ClientCertificates, TlsSettings

HANDSHAKE_BYTE = 0x16
"""First byte of a TLS connection: a handshake record. No frame begins with it: its length would be 369 MB."""


class ClientTls(NamedTuple):
    """TLS settings of a client. ``ca``, ``cert`` and ``key`` are paths of PEM files; an empty ``ca`` stands for the system's.

    ``server_name`` is the name that every server's certificate must have; empty: the host or IP address of the connection.
    Without ``verify`` any certificate is accepted, which allows man-in-the-middle attacks. ``repr`` does not show the password.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    key_password: str = ""
    verify: bool = True
    server_name: str = ""

    def __repr__(self) -> str:
        shown = self._replace(key_password="***" if self.key_password else "")
        return f"ClientTls{tuple(shown)}"

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of such connections. Raises SettingError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False  # only alternative names count (RFC 9525)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca:
            _trust(context, self.ca)
            context.verify_flags |= (
                ssl.VERIFY_X509_PARTIAL_CHAIN
            )  # accept the server's own certificate as trust anchor, whoever signed it
        else:
            context.load_default_certs()
        if self.cert:
            _load_pair(context, self.cert, self.key, self.key_password)
        return context


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of a server's connections. Raises SettingError.

    Differs: a client's certificate is always verified; Java accepts any by default (tls.server.authClient=false).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_pair(context, settings.server_cert, settings.server_key, settings.server_key_password)
    if settings.server_client_auth is not ClientCertificates.NONE:
        if not settings.server_auth_client:
            raise SettingError(
                "tls.server.authClient=false: a client's certificate that nobody verifies proves nothing; leave this out, or set"
                " tls.server.need.client.auth=none"
            )
        if not settings.server_trust:
            raise SettingError(
                "tls.server.need.client.auth asks for certificates: tls.server.trustCertPath must say who signs them"
            )
        _trust(context, settings.server_trust)
        is_required = settings.server_client_auth is ClientCertificates.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        # Each connection renews its ticket, so that an expired certificate would be accepted for ever.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


_NAMES = frozenset(("DNS", "URI", "email"))
"""Kinds of alternative names that may identify an account."""


def client_names(tls: ssl.SSLObject) -> tuple[str, ...]:
    """Return the names in the verified certificate of the other side: common names, then alternative ones. None without one.

    Raises ssl.SSLError for a certificate that cannot be read.
    """
    try:
        shown: Any = tls.getpeercert() or {}  # also empty without verification
    except ValueError as exc:
        raise ssl.SSLError(f"the client's certificate has a name that is no text: {exc}") from None
    names = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    names += [value for kind, value in shown.get("subjectAltName", ()) if kind in _NAMES]
    return tuple(name for name in dict.fromkeys(names) if len(name) <= CERTIFICATE_NAME_MAX)[:CERTIFICATE_NAMES_MAX]


def expires_ms(pem: str) -> int | None:
    """Return when the first certificate of a PEM ends, ms since the epoch; None: it is not there, or cannot be read.

    Reads the second time of ``validity`` in ``tbsCertificate``. Follows RFC 5280, section 4.1.
    """
    try:
        text = Path(pem).read_text(encoding="ascii", errors="replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----", begin) + len("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(text[begin:end])
        _, certificate, _ = _element(der, 0)
        _, at, _ = _element(der, certificate)
        for _ in range(4 if der[at] == _VERSION else 3):  # the version where it is given, serial number, algorithm, issuer
            at = _element(der, at)[2]
        _, validity, _ = _element(der, at)
        kind, first, last = _element(der, _element(der, validity)[2])
        time = der[first:last].decode("ascii")
        century = "" if kind == _LONG_TIME else "20" if time < "50" else "19"
        return round(datetime.strptime(f"{century}{time}", "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)
    except (OSError, ValueError, IndexError):
        return None


_VERSION, _LONG_TIME = 0xA0, 0x18
"""Tags of ASN.1: the optional first element of a certificate, and a time with four digits of the year."""


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of an element of ASN.1, where its content begins, and where it ends. Raises IndexError, ValueError."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[at + 2 : begin])
    if begin + length > len(der):
        raise ValueError("an element is longer than the certificate")
    return der[at], begin, begin + length


def _load_pair(context: ssl.SSLContext, cert: str, key: str, password: str) -> None:
    try:
        context.load_cert_chain(cert, key or None, password=lambda: password)  # for encrypted keys, or OpenSSL would prompt
    except (OSError, ValueError) as exc:
        reason = _loading_reason(exc) or _pem_reason(cert, key or cert)
        raise SettingError(f"TLS certificate {cert}{f' with key {key}' if key else ''}: {reason}") from None
    check_private(Path(key or cert), "the private key in it")


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as exc:
        raise SettingError(f"TLS CA certificates {path}: {_loading_reason(exc) or 'no PEM of a certificate'}") from None


def _loading_reason(exc: Exception) -> str:
    """Return the reason why files do not load; empty if OpenSSL gives none."""
    if not isinstance(exc, ssl.SSLError):
        return f"cannot be read: {getattr(exc, 'strerror', None) or exc}"
    reason = exc.reason or ""
    return "the key does not belong to the certificate" if reason == "KEY_VALUES_MISMATCH" else reason.replace("_", " ").lower()


def _pem_reason(cert: str, key: str) -> str:
    """Return the missing part of a pair of files."""
    try:
        text, chain = Path(key).read_bytes(), Path(cert).read_bytes()
    except OSError as exc:  # existed a moment ago: they are being replaced
        return f"cannot be read: {exc.strerror or exc}"
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        return "no PEM of a certificate"
    if b"PRIVATE KEY-----" not in text:
        return "no PEM of a private key"
    return "the key is encrypted, and its password is missing or wrong" if b"ENCRYPTED" in text else "a PEM that is damaged"


# ---------------------------------------------------------------- failures


_UNKNOWN_ISSUER = frozenset((18, 19, 20, 21))
"""X509_V_ERR_…: self-signed, self-signed in the chain, no issuer found (twice)."""
_WRONG_NAME = frozenset((62, 64))
"""X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""

_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"))
_REASONS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client's certificate (tls_cert, tls_key)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust our certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks an older TLS than 1.2",
    "UNSUPPORTED_PROTOCOL": "it speaks an older TLS than 1.2",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no cipher suits both sides, or it wants a client's certificate (tls_cert, tls_key)",
    "UNEXPECTED_EOF_WHILE_READING": "it hung up",
}


def client_reason(exc: object) -> str | None:
    """Return an explanation of a TLS failure of an outgoing connection, for the user; None: it was not TLS."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        message = exc.verify_message.rstrip(".")
        if exc.verify_code in _WRONG_NAME:
            return f"TLS: the certificate is made for another name: {message} (see tls_server_name)"
        if exc.verify_code in _UNKNOWN_ISSUER:
            return f"TLS: nobody trusted signed the certificate: {message} (see tls_ca)"
        return f"TLS: the certificate is not valid: {message}"
    if not isinstance(exc, ssl.SSLError):
        return None
    reason = exc.reason or ""
    if reason in _NO_TLS:
        return "TLS: what answers there speaks no TLS"
    if isinstance(exc, ssl.SSLEOFError) or reason == "UNEXPECTED_EOF_WHILE_READING":
        return HUNG_UP
    return f"TLS: {_REASONS.get(reason) or reason.replace('_', ' ').lower() or str(exc)}"


HUNG_UP = "TLS: it hung up during the handshake: TLS may be off there, or it wants a client's certificate (tls_cert, tls_key)"


def server_reason(exc: ssl.SSLError) -> str:
    """Return an explanation of a TLS failure of an accepted connection, for the log."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {exc.verify_message}"
    reason = (exc.reason or str(exc)).replace("_", " ").lower()
    if "alert" in reason:
        return f"the client refuses: {reason} (it may not trust our certificate, or not speak TLS 1.2)"
    return {
        "peer did not return a certificate": "the client shows no certificate",
        "http request": "a plain HTTP request",
    }.get(reason, reason)
