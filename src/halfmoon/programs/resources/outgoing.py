"""Connections of a broker to name servers and other brokers: who signs, and how they are encrypted."""

from __future__ import annotations

import os

from halfmoon.broker.settings import BrokerSettings
from halfmoon.documentation import see
from halfmoon.errors import SettingError
from halfmoon.model import split_addresses
from halfmoon.programs.configuration import ServerSettings
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.credentials import credentials
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.tls import ClientTls
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from halfmoon.wire.signature import Credentials, Signs

REGISTRAR = "halfmoon-broker"
"""The access key of registrations that are signed by a shared secret: any would do."""


def own_account() -> Credentials | None:
    """Return the account of this process, which signs what a broker asks of other brokers; None: it signs nothing.

    Raises SettingError.
    """
    return credentials(os.environ)


def _signs(settings: BrokerSettings) -> Signs:
    """Return who signs what a broker asks: of name servers by the secret for registrations, else by its environment's account."""
    own = own_account()
    registrar = Credentials(REGISTRAR, settings.register_secret) if settings.register_secret else own
    name_servers = frozenset(split_addresses(settings.nameserver))
    return lambda address: registrar if address in name_servers else own


def _outgoing_tls(tls: TlsSettings, beside: str) -> OutgoingTls | None:
    """Return how a broker's connections to other servers are encrypted. Follows BrokerStartup: so they are where only TLS is taken.

    Raises SettingError: certificates do not load, or the name server ``beside`` requires one and there is none to show.
    """
    if not tls.enable and tls.server_mode is not TlsMode.ENFORCING:
        return None
    if beside and tls.server_client_auth is ClientCertificates.REQUIRE and not tls.client_cert:
        raise SettingError(
            "tls.server.need.client.auth=require is for the broker's own connection to the name server, too: give it a certificate"
            f" (tls.client.certPath, tls.client.keyPath), or set tls.server.need.client.auth=optional ({see('tls')})"
        )
    asked = ClientTls(tls.client_trust, tls.client_cert, tls.client_key, tls.client_key_password, tls.client_auth_server)
    return OutgoingTls(asked, frozenset(filter(None, [beside])))


def connections_of(settings: ServerSettings, certificates: Certificates, beside: str = "") -> Connections:
    """Return the connections of a broker to name servers and other brokers. Raises SettingError."""
    return Connections(signs=_signs(settings.broker), tls=_outgoing_tls(certificates.settings, beside), probed=True)
