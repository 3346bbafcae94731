"""Settings of a server from all their sources, and the address that a broker tells others."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration, outward_address

EVERYTHING = {**NAME_SERVER, **BROKER}


def test_without_anything_given_every_setting_is_its_default():
    found = configuration(EVERYTHING)

    assert (found.host, found.nameserver.port, found.broker.port, found.broker.address) == ("127.0.0.1", 9876, 10911, "127.0.0.1")


def test_keys_of_a_broker_conf_go_to_the_broker_and_its_store(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=10\nflushDiskType=SYNC_FLUSH\nsendMessageThreadPoolNums=4\n")

    found = configuration(EVERYTHING, files=[file])

    assert (found.broker.port, found.nameserver.port, found.store.flush_disk_type) == (10, 9876, "SYNC_FLUSH")
    assert [each.key for each in found.ignored] == ["sendMessageThreadPoolNums"]


def test_a_name_server_alone_takes_the_listen_port_of_a_properties_file(tmp_path):
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=10\n")

    assert configuration(NAME_SERVER, files=[file]).nameserver.port == 10


def test_tables_of_other_programs_in_a_toml_file_are_left_alone(tmp_path):
    file = tmp_path / "all.toml"
    file.write_text("[nameserver]\nport = 1\n[broker]\nport = 2\n")

    assert configuration(BROKER, files=[file]).broker.port == 2
    assert configuration(NAME_SERVER, files=[file]).nameserver.port == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [
        *((same, same) for same in ("192.0.2.1", "127.0.0.1", "127.0.0.2", "::1", "2001:db8::1")),
        *(("localhost", "127.0.0.1"), ("[::1]", "::1")),
    ],
)
def test_a_broker_tells_clients_the_host_it_listens_on(host, address):
    assert configuration(BROKER, host=host).broker.address == address


def test_an_address_that_was_set_wins_over_the_host():
    assert configuration(BROKER, host="192.0.2.1", assignments=["brokerIP1=192.0.2.9"]).broker.address == "192.0.2.9"


def test_a_broker_that_listens_everywhere_tells_an_address_that_is_none_of_the_wildcards():
    assert outward_address("0.0.0.0") not in ("", "0.0.0.0", "::")


@pytest.mark.parametrize("text", ["[broker\n", "[brokr]\nport = 1\n", "[broker]\nprt = 1\n"])
def test_a_wrong_file_is_named(tmp_path, text):
    file = tmp_path / "wrong.toml"
    file.write_text(text)

    with pytest.raises(SettingError, match=r"wrong\.toml"):
        configuration(EVERYTHING, files=[file])


@pytest.mark.parametrize(("name", "text"), [
    ("broker.conf", "register_secret=0123456789abcdef\n"), ("all.toml", '[broker]\nregister_secret = "0123456789abcdef"\n'),
])  # fmt: skip
def test_a_file_that_sets_a_secret_is_refused_where_others_may_read_it(tmp_path, name, text):
    file = tmp_path / name
    file.touch(0o644)
    file.write_text(text)

    with pytest.raises(SettingError, match=f"{name}: other users may read or change the secrets in it"):
        configuration(BROKER, files=[file])
    allowed = configuration(BROKER, files=[file], environment={"HALFMOON_SECRETS_READABLE_BY_OTHERS": "true"})
    file.chmod(0o600)
    closed = configuration(BROKER, files=[file])

    assert allowed.broker.register_secret == closed.broker.register_secret == "0123456789abcdef"


def test_a_file_that_is_missing_binary_or_huge_is_refused(tmp_path):
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    (tmp_path / "huge.conf").write_bytes(b"#" * (1024 * 1024 + 1))

    for name in ("missing.conf", "binary.conf", "huge.conf"):
        with pytest.raises(SettingError, match=name):
            configuration(EVERYTHING, files=[tmp_path / name])


def test_a_way_of_flushing_that_is_none_is_refused():
    with pytest.raises(SettingError, match="SYNC_FLUSH"):
        configuration(EVERYTHING, assignments=["flushDiskType=SINK_FLUSH"])
