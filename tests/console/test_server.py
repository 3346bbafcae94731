"""The console as a process: what it takes for secure, and certificates that do not load. tests/cli/console runs it for real."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from halfmoon.client.admin import AdminSettings
from halfmoon.console.server import ConsoleAddress, first_user, serve
from halfmoon.errors import SettingError
from tests.authority import Authority


@pytest.mark.parametrize(
    ("certificate", "public_url", "secure"),
    [("", "", False), ("c.pem", "", True), ("", "https://host", True), ("", "http://host", False), ("c.pem", "http://host", False)],
)
def test_cookies_go_over_tls_alone_where_browsers_speak_it(certificate, public_url, secure):
    with socket.socket() as listening:
        assert ConsoleAddress(listening, certificate, public_url=public_url).secure is secure


async def test_a_certificate_that_does_not_load_is_named(tmp_path):
    encrypted = Authority(tmp_path).pair("console", password="secret")
    with socket.socket() as listening:
        for certificate, key in (("/nonexistent", ""), (__file__, ""), (encrypted.cert, encrypted.key)):
            with pytest.raises(SettingError, match=f"certificate {certificate}"):
                await serve(
                    ConsoleAddress(listening, certificate, key), tmp_path, AdminSettings(nameserver="127.0.0.1:9"), lambda _: None
                )


def test_the_command_for_the_first_user_fits_any_directory():
    assert first_user(Path("/my data/console")).endswith("--data '/my data'")
