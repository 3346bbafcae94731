"""Kind of the server at an address: name server or broker. Each refuses what only the other knows, whatever an account may do."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import SILENCE_MS, AdminCore
from halfmoon.client.core.ask import call
from halfmoon.effects import Op
from halfmoon.errors import RequestNotSupported
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.table import Header

NAME_SERVER, BROKER = "name server", "broker"


def server_kind(admin: AdminCore, address: str) -> Op[str | None]:
    """Return ``name server`` or ``broker``; None: it speaks the protocol and is neither. Raises NetworkError."""
    if (yield from _knows(admin, address, GetBrokerRuntimeInfo())):
        return BROKER
    return NAME_SERVER if (yield from _knows(admin, address, GetBrokerClusterInfo())) else None


def _knows(admin: AdminCore, address: str, request: Header) -> Op[bool]:
    """Whether a server knows a request, even where it refuses it to us."""
    reply = yield from call(address, request, b"", min(SILENCE_MS, admin.settings.request_timeout_ms))
    return reply.code != RequestNotSupported.code
