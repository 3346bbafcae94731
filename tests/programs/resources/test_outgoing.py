"""Connections of a broker: signed by whom their servers know, and encrypted where only that is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.resources.outgoing import REGISTRAR, connections_of
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.settings.tls import ClientCertificates, TlsMode


def test_name_servers_know_the_secret_of_registrations_and_others_the_account_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", "operator")
    monkeypatch.setenv("HALFMOON_SECRET_KEY", "secret-1")
    settings = ServerSettings()
    settings = settings._replace(broker=replace(settings.broker, nameserver="10.0.0.1:9876", register_secret="secret-2"))
    signs = connections_of(settings, Certificates(settings.tls)).signs
    registrar, operator = signs("10.0.0.1:9876"), signs("10.0.0.2:10911")
    assert registrar is not None
    assert operator is not None
    assert (registrar.access_key, operator.access_key) == (REGISTRAR, "operator")


def test_connections_are_encrypted_where_it_is_asked_for_or_only_that_is_taken() -> None:
    settings = ServerSettings()
    assert connections_of(settings, Certificates(settings.tls)).tls is None
    asked = settings._replace(tls=replace(settings.tls, enable=True))
    assert connections_of(asked, Certificates(asked.tls)).tls is not None


def test_a_name_server_beside_that_wants_a_certificate_says_which_settings_give_one() -> None:
    settings = ServerSettings()
    tls = replace(settings.tls, server_mode=TlsMode.ENFORCING, server_client_auth=ClientCertificates.REQUIRE)

    class Known:
        settings = tls

    with pytest.raises(SettingError, match=r"tls\.client\.certPath"):
        connections_of(settings, Known(), "127.0.0.1:9876")  # type: ignore[arg-type]
