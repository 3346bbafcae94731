"""Kind of the server at an address: name server or broker. Each refuses what only the other knows, whatever an account may do."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import SILENCE_MS, AdminCore
from halfmoon.client.core.ask import knows
from halfmoon.effects import Op
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo

NAME_SERVER, BROKER = "name server", "broker"


def server_kind(admin: AdminCore, address: str) -> Op[str | None]:
    """Return ``name server`` or ``broker``; None: it speaks the protocol and is neither. Raises NetworkError."""
    timeout_ms = min(SILENCE_MS, admin.settings.request_timeout_ms)
    if (yield from knows(address, GetBrokerRuntimeInfo(), timeout_ms)):
        return BROKER
    return NAME_SERVER if (yield from knows(address, GetBrokerClusterInfo(), timeout_ms)) else None
