"""Console as a child process of `halfmoon serve --console`: reads its settings from standard input, and stops when that ends.

The parent writes one line of JSON: ``listening``, the descriptor of a bound socket; ``data``, a directory; ``level``, of the log;
``cluster``, settings of an administration client. Secrets in these come this way because other users see arguments, and because
variables are passed on to whatever a process starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfmoon.client.admin import AdminSettings
from halfmoon.console.server import ConsoleAddress, first_user, serve
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.logs import to_stderr
from halfmoon.model import split_address

log = logging.getLogger("halfmoon.console")

INPUT = 0
WAIT_S = 5.0
"""Longest wait for the name server, which listens before the console is started."""


def main() -> int:
    """Serve with the settings on standard input; return the exit code: 0 stopped, 1 refused, 2 a wrong setting."""
    with open(INPUT, "rb", buffering=0, closefd=False) as parent:
        line = parent.readline()
    if not line:
        return 0  # the parent has died already
    asked: dict[str, Any] = json.loads(line)
    to_stderr(asked["level"])
    data = Path(asked["data"])

    def ready(user_count: int) -> None:
        if not user_count:
            log.warning("the console has no users yet: %s makes the first", first_user(data))

    try:
        cluster = with_server_name(AdminSettings(**asked["cluster"]))
        asyncio.run(serve(ConsoleAddress(socket.socket(fileno=asked["listening"])), data, cluster, ready, parent=INPUT))
    except HalfmoonError as exc:
        log.error("%s", exc)
        return 2 if isinstance(exc, UsageError) else 1
    return 0


def with_server_name(cluster: AdminSettings) -> AdminSettings:
    """Return settings that expect of servers a name which the certificate of the name server has, where its address may be none.

    Only for a ``tls_ca`` that is this very certificate: nobody else can show it, whatever its names are.
    """
    if not cluster.use_tls:
        return cluster
    host, port = split_address(cluster.nameserver)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cluster.tls_ca)
        if cluster.tls_cert:
            context.load_cert_chain(cluster.tls_cert, cluster.tls_key or None, lambda: cluster.tls_key_password)
        with socket.create_connection((host, port), WAIT_S) as sock, context.wrap_socket(sock) as tls:
            names: Any = (tls.getpeercert() or {}).get("subjectAltName", ())
    except OSError as exc:
        log.warning("the certificate of the name server at %s cannot be verified: %s; pages will say so", cluster.nameserver, exc)
        return cluster
    values = [value for kind, value in names if kind in ("DNS", "IP Address")]
    if not values:
        log.warning("the certificate of the name server at %s names no host: pages cannot ask it", cluster.nameserver)
    return replace(cluster, tls_server_name="" if host in values or not values else values[0].replace("*", "console"))


if __name__ == "__main__":
    sys.exit(main())
