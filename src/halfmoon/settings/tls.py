"""Settings of encrypted connections, of name servers and brokers, with the keys of RocketMQ's ``tls.properties``. Values only.

Follows TlsSystemConfig and TlsHelper (RocketMQ 4.9.8).
Differs: certificates are verified unless a setting says otherwise, there is no test mode in which everything is trusted, and
without a certificate nothing is encrypted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from halfmoon.documentation import see
from halfmoon.settings import forms, setting


class TlsMode(Enum):
    """Mode of a port: plain text, TLS, or both."""

    DISABLED = 0
    PERMISSIVE = 1
    ENFORCING = 2


class ClientCertificates(Enum):
    """Whether a server asks clients for certificates."""

    NONE = 0
    OPTIONAL = 1
    REQUIRE = 2


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Settings of encrypted connections, those that are accepted (`server_…`) and those to other servers (`client_…`)."""

    config_file: str = setting(
        "",
        java="tls.config.file",
        form=forms.PATH,
        why="A tls.properties with RocketMQ's keys, which precede others. Which certificates a server shows and trusts is read"
        " again when it changes; the rest at the start.",
    )
    server_mode: TlsMode = setting(
        TlsMode.PERMISSIVE,
        java="tls.server.mode",
        why="PERMISSIVE: TLS and plain text on the same port, once there is a certificate; ENFORCING: only TLS.",
    )
    server_cert: str = setting("", java="tls.server.certPath", form=forms.PATH, why="Certificate chain (PEM); empty: TLS is off.")
    server_key: str = setting("", java="tls.server.keyPath", form=forms.PATH, why="Its private key (PEM); empty: in the same file.")
    server_key_password: str = setting(
        "", java="tls.server.keyPassword", form=forms.PASSWORD, secret=True, why="Password of an encrypted key."
    )
    server_client_auth: ClientCertificates = setting(
        ClientCertificates.NONE,
        java="tls.server.need.client.auth",
        why="Whether clients are asked for a certificate; one that is shown must be signed by server_trust.",
    )
    server_auth_client: bool = setting(
        True, java="tls.server.authClient", why="Verify the certificates of clients; false is refused where they are asked for."
    )
    server_trust: str = setting(
        "", java="tls.server.trustCertPath", form=forms.PATH, why="CA certificates (PEM) that sign those of clients."
    )
    enable: bool = setting(
        False,
        java="useTLS",
        why="Encrypt this broker's connections to name servers, and a slave's to its master; ENFORCING does so, too. Also"
        " tls.enable.",
    )
    client_auth_server: bool = setting(
        True, java="tls.client.authServer", why="Verify the certificates of name servers and the host that they stand for."
    )
    client_trust: str = setting(
        "",
        java="tls.client.trustCertPath",
        form=forms.PATH,
        why="CA certificates (PEM) that sign the certificates of name servers; empty: the system's.",
    )
    client_cert: str = setting(
        "", java="tls.client.certPath", form=forms.PATH, why="Certificate chain (PEM) to show to name servers that ask for one."
    )
    client_key: str = setting("", java="tls.client.keyPath", form=forms.PATH, why="Its private key (PEM); empty: in the same file.")
    client_key_password: str = setting(
        "", java="tls.client.keyPassword", form=forms.PASSWORD, secret=True, why="Password of an encrypted key."
    )
    test_mode: bool = setting(
        False,
        java="tls.test.mode.enable",
        why=f"RocketMQ's default, a certificate that nobody can verify: refused; {see('tls')} says how to make one.",
    )
