"""Certificates made in tests: an authority, and pairs that it signs for servers and clients. Never leaves the test's directory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


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
        Path(pair.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))  # the form that Java reads
        return pair

    def pair_without_names(self, name: str, common_name: str) -> Pair:
        """Write a pair that is for nobody but a common name, as certificates of old were."""
        made = self._ca.issue_cert(common_name=common_name)
        pair = Pair(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        made.cert_chain_pems[0].write_to_path(pair.cert)
        made.private_key_pem.write_to_path(pair.key)
        return pair

    def trusting(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, and shows a certificate if one is given."""
        context = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context
