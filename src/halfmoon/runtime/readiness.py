"""Notices to a service manager: ready, stopping. Does nothing without a service manager."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("halfmoon.runtime")

READY = "READY=1"
STOPPING = "STOPPING=1"

_SEND_SECONDS_MAX = 1.0
"""Longest time to wait for room in the manager's queue; the event loop waits as well."""


def notify(state: str) -> bool:
    """Send a state to the socket that ``NOTIFY_SOCKET`` names: a path, or ``@`` and an abstract name. Return whether it was sent.

    False without that variable. Logs an unreachable socket: the service manager then treats the service as silent.

    Follows sd_notify (systemd 252).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    try:
        if address[0] not in "/@":
            raise ValueError("must be an absolute path, or @ and an abstract name")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.settimeout(_SEND_SECONDS_MAX)
            manager.connect("\0" + address[1:] if address[0] == "@" else address)
            manager.sendall(state.encode())
    except (OSError, ValueError) as exc:
        log.warning("service manager not told: state=%s socket=%s reason=%s", state, address, exc)
        return False
    return True
