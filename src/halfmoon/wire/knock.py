"""What a stranger seems to speak who sends something else than frames: guessed from the first bytes, for a line of the log."""

from __future__ import annotations

import re

SPOKEN_HERE = "RocketMQ's remoting protocol is spoken here, as clients of RocketMQ 4.x and halfmoon.client do"

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE) [^\r\n]{0,64}")
_BEGINNINGS = {
    b"PRI * HTTP/2": "HTTP/2, as gRPC clients do",
    b"\x16\x03": "TLS, which is off here (see tls.server.certPath)",
    b"PROXY ": "the PROXY protocol, which is not expected from there (see proxy_protocol_from)",
    b"\r\n\r\n\x00\r\nQUIT\n": "the PROXY protocol, which is not expected from there (see proxy_protocol_from)",
    b"SSH-": "SSH",
}


def spoken(data: bytes) -> str | None:
    """Return what begins with these bytes; None: nothing that is known. Twelve bytes are enough, an HTTP request takes a line."""
    for beginning, name in _BEGINNINGS.items():
        if data.startswith(beginning):
            return name
    if match := _HTTP.match(data):
        return f"HTTP/1: {match[0].decode('latin-1')!r}"
    return None
