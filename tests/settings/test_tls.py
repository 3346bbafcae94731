"""The keys of RocketMQ's tls.properties, wherever they are given."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration
from halfmoon.settings import MASK, describe, properties_text, value_of
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings

JAVA = {
    "tls.server.mode": "enforcing", "tls.server.certPath": "/c", "tls.server.keyPath": "/k", "tls.server.keyPassword": "p w",
    "tls.server.need.client.auth": "require", "tls.server.authClient": "true", "tls.server.trustCertPath": "/t",
    "tls.client.authServer": "false", "tls.client.trustCertPath": "/ct", "tls.client.certPath": "/cc", "tls.client.keyPath": "/ck",
    "tls.client.keyPassword": "q", "tls.test.mode.enable": "false", "tls.config.file": "/f", "useTLS": "true",
}  # fmt: skip


@pytest.mark.parametrize("sections", [BROKER, NAME_SERVER, {**BROKER, **NAME_SERVER}])
def test_rocketmqs_keys_are_understood_by_every_server(sections) -> None:
    tls = configuration(sections, assignments=[f"{key}={value}" for key, value in JAVA.items()]).tls
    assert tls == TlsSettings(
        server_mode=TlsMode.ENFORCING, server_cert="/c", server_key="/k", server_key_password="p w",
        server_client_auth=ClientCertificates.REQUIRE, server_trust="/t", client_auth_server=False, client_trust="/ct",
        client_cert="/cc", client_key="/ck", client_key_password="q", config_file="/f", enable=True,
    )  # fmt: skip


def test_every_key_of_the_original_is_declared() -> None:
    assert {each.java for each in describe(TlsSettings)} == set(JAVA)


def test_our_names_and_variables_mean_the_same(tmp_path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[tls]\nserver_cert = "/c"\n')
    found = configuration(
        BROKER, files=[file], environment={"HALFMOON_TLS_SERVER_MODE": "disabled"}, assignments=["tls.enable=yes"]
    )
    assert (found.tls.server_cert, found.tls.server_mode, found.tls.enable) == ("/c", TlsMode.DISABLED, True)


def test_a_servers_environment_may_hold_what_clients_read() -> None:
    configuration(BROKER, environment={"HALFMOON_TLS": "1", "HALFMOON_TLS_CA": "/ca", "HALFMOON_TLS_SERVER_NAME": "x"})


def test_a_password_is_shown_nowhere() -> None:
    tls = configuration(BROKER, assignments=["tls.server.keyPassword=Geheim"]).tls
    assert "Geheim" not in repr(tls)
    assert f"tls.server.keyPassword={MASK}\n" in properties_text(tls)
    assert "tls.client.keyPassword=\n" in properties_text(tls)
    with pytest.raises(SettingError) as refused:
        configuration(BROKER, assignments=["tls.server.keyPassword=Geheim\x00"])
    assert "Geheim" not in str(refused.value)


def test_a_text_is_read_as_a_setting_is(tmp_path) -> None:
    assert value_of(TlsSettings, "server_mode", "Permissive", "X") is TlsMode.PERMISSIVE
    with pytest.raises(SettingError, match="X: server_mode = 'maybe': must be one of DISABLED"):
        value_of(TlsSettings, "server_mode", "maybe", "X")
