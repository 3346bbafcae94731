"""Where the console listens: addresses of both kinds, and ports that are taken."""

from __future__ import annotations

import socket

import pytest

from halfmoon.cli.console.listening import listen, url_of
from halfmoon.errors import HalfmoonError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_a_socket_listens_where_its_url_says(host):
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((listening.getsockname()[0], port), 5):
            assert url_of(listening).endswith(f":{port}")
        assert url_of(listening, secure=True).startswith("https://[::1]:" if ":" in host else "https://127.0.0.1:")


def test_a_port_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(HalfmoonError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours_is_named(host):
    with pytest.raises(HalfmoonError, match="cannot listen on"):
        listen(host, 0)
