"""Certificates made in tests: an authority, and pairs that it signs for servers and clients. Never leaves the test's directory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtensionOID, NameOID

DNS, URI = 0x82, 0x86
"""Kinds of alternative names."""


class Pair(NamedTuple):
    """Paths of a certificate chain and its key."""

    cert: str
    key: str


class Authority:
    """Signs certificates; ``ca`` is the path of its own. Files are in a directory of the test's."""

    def __init__(self, directory: Path) -> None:
        self._ca, self._directory = trustme.CA(), directory
        directory.mkdir(parents=True, exist_ok=True)
        self.ca = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def pair(self, name: str, *hosts: str, password: str = "", days: float = 30) -> Pair:
        """Write a pair for hosts (default: 127.0.0.1 and localhost), valid for so many days from yesterday on."""
        made = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            not_before=datetime.now(UTC) - timedelta(days=max(1.0, 1 - days)),
            not_after=datetime.now(UTC) + timedelta(days=days),
        )
        pair = Pair(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        Path(pair.cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        _write_key(pair, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))  # the form that Java reads
        return pair

    def pair_without_names(self, name: str, common_name: str) -> Pair:
        """Write a pair that is for nobody but a common name, as certificates of old were."""
        made = self._ca.issue_cert(common_name=common_name)
        pair = Pair(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        made.cert_chain_pems[0].write_to_path(pair.cert)
        _write_key(pair, made.private_key_pem.bytes())
        return pair

    def pair_of_bytes(self, name: str, common_name: str, *names: tuple[int, bytes]) -> Pair:
        """Write a pair with a common name and alternative names, each as its kind (`DNS`, `URI`) and bytes that may be no text."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        listed = b"".join(bytes([kind, len(value)]) + value for kind, value in names)
        alternative = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes([0x30, len(listed)]) + listed)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        made = (
            x509.CertificateBuilder(self._ca._certificate.subject, subject)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
            .add_extension(alternative, critical=False)
            .sign(self._ca._private_key, hashes.SHA256())
        )  # fmt: skip
        pair = Pair(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        Path(pair.cert).write_bytes(made.public_bytes(Encoding.PEM))
        _write_key(pair, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def trusting(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, and shows a certificate if one is given."""
        context = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


def _write_key(pair: Pair, data: bytes) -> None:
    """Write the key for its owner alone, or the file is refused."""
    Path(pair.key).touch(0o600)
    Path(pair.key).write_bytes(data)
