"""Settings of a name server: a ``namesrv.conf`` is understood, and what runs can change only in part."""

from __future__ import annotations

from dataclasses import fields

from halfmoon.nameserver.settings import CHANGEABLE, NameServerSettings
from halfmoon.settings import describe, load


def test_the_namesrv_conf_of_an_apache_installation_is_understood():
    text = "listenPort=9877\norderMessageEnable=true\nscanNotActiveBrokerInterval=5000\nneedWaitForService=true\n"
    found = load({"nameserver": NameServerSettings}, files=[("namesrv.conf", text)])
    assert found.of(NameServerSettings) == NameServerSettings(
        port=9877, order_message_enable=True, scan_ms=5000, need_wait_for_service=True
    )
    assert found.ignored == []


def test_what_decides_where_it_listens_and_what_it_may_hold_is_fixed_at_the_start():
    fixed = {field.name for field in fields(NameServerSettings)} - CHANGEABLE
    assert fixed == {
        "host", "port", "proxy_protocol_from", "connections_max", "connections_per_address_max", "brokers_max", "topics_max",
        "kv_entries_max", "kv_bytes_max", "kv_value_bytes_max", "register_from", "register_secret",
        "register_secret_previous", "register_certificates",
    }  # fmt: skip
    assert {setting.name for setting in describe(NameServerSettings)} == fixed | CHANGEABLE
