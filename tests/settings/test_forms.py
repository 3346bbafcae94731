"""A setting that cannot work is refused where it is given, with the form that its value must have."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from halfmoon.cli import servers
from halfmoon.client.settings import AdminSettings, ProducerSettings, PullSettings, PushSettings, TransactionSettings, settings_of
from halfmoon.errors import SettingError, UsageError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration
from halfmoon.settings import describe
from halfmoon.settings.forms import is_loopback


@pytest.mark.parametrize(
    "assignment",
    [
        *("deleteWhen=abc", "deleteWhen=25", "deleteWhen=04,05", 'regionId=a"b', "regionId=", "brokerName=a b/c"),
        *("brokerClusterName=a/b", "msgTraceTopicName=../x", "brokerName=" + "x" * 128),
        *("nameserver.register_certificates=*.example", "nameserver.register_certificates=a," + "x" * 1025),
    ],
)
def test_a_setting_that_cannot_work_is_refused(assignment):
    with pytest.raises(SettingError, match="must be"):
        configuration({**NAME_SERVER, **BROKER}, assignments=[assignment])


@pytest.mark.parametrize(
    "assignment",
    ["deleteWhen=04", "deleteWhen=4;16; 23", "regionId=eu-west.1", "brokerName=broker-a.host_1", "msgTraceTopicName=traces"],
)
def test_a_setting_that_works_is_taken(assignment):
    configuration(BROKER, assignments=[assignment])


def test_one_port_for_name_server_and_broker_is_refused():
    with pytest.raises(SettingError, match="both 9876"):
        configuration({**NAME_SERVER, **BROKER}, assignments=["broker.port=9876"])
    configuration({**NAME_SERVER, **BROKER}, assignments=["broker.port=0", "nameserver.port=0"])


@pytest.mark.parametrize(
    ("line", "level"),
    [
        *(("enableBroadcastOffsetStore=true", logging.WARNING), ("enableBroadcastOffsetStore=false", logging.INFO)),
        *(("storePathEpochFile=/x", logging.WARNING), ("kvConfigPath=/x", logging.WARNING)),
    ],
)
def test_an_ignored_key_is_named_at_warning_when_its_value_changes_what_a_user_gets(line, level, tmp_path, caplog, monkeypatch):
    (tmp_path / "broker.conf").write_text(line + "\n")
    monkeypatch.setattr(servers, "to_stderr", lambda level: None)
    caplog.set_level(logging.INFO, logger="halfmoon.cli")
    servers._begin_log("broker", "warning", configuration(BROKER, files=[tmp_path / "broker.conf"]))
    assert [(each.levelno, line.split("=")[0] in each.getMessage()) for each in caplog.records] == [(level, True)]


# ---------------------------------------------------------------- every setting, every road, hostile values

SERVERS = {**NAME_SERVER, **BROKER}
CLIENTS = [ProducerSettings, TransactionSettings, PushSettings, PullSettings, AdminSettings]
CHECKED_ELSEWHERE = {"group", "nameserver"}  # of clients: `check_group` and the addresses' own reading, which takes lists, too
HOSTILE = [
    *(
        "",
        " ",
        "a b",
        'a"b',
        "a'b",
        "a\\b",
        "../x",
        "/etc/passwd",
        "${user.home}/store",
        "%s%n",
        "{}",
        "a\nb",
        "a\x00b",
        "a\x1b[31mb",
    ),
    *(
        "é",
        "名",
        "\u202ea",
        "x" * 129,
        "x" * 5000,
        "-1",
        "1e9",
        "nan",
        "inf",
        "0x10",
        "9" * 30,
        "true",
        "null",
        "a:b",
        "1.2.3.4:99999",
    ),
    *(":", ";", "1.2.3.4", "::1", "host:1;;", "a..b", "1x", "0s", "1s " * 65),
]


def taken_or_refused(make):
    try:
        return make(), ""
    except UsageError as exc:
        return None, str(exc)


def of_servers():
    return [(section, each) for section, cls in SERVERS.items() for each in describe(cls)]


@pytest.mark.parametrize(("section", "each"), of_servers(), ids=lambda value: getattr(value, "name", value))
def test_a_hostile_value_of_a_servers_setting_is_refused_by_name_or_fits_its_form(section, each, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *asked, **more: [(0, 0, 0, "", ("192.0.2.1", 0))])
    declared = {field.name: field.metadata for field in fields(SERVERS[section])}[each.name]
    key = f"{section}.{each.name}"
    for file in ("a.toml", "broker.conf"):
        (tmp_path / file).touch(0o600)
    for value in HOSTILE:
        roads = [{"assignments": [f"{key}={value}"]}, {"environment": {f"HALFMOON_{section}_{each.name}".upper(): value}}]
        (tmp_path / "a.toml").write_text(f"[{section}]\n{each.name} = {json.dumps(value)}\n")
        roads.append({"files": [tmp_path / "a.toml"]})
        if each.java and "\n" not in value:
            (tmp_path / "broker.conf").write_text(f"{each.java}={value}\n".replace("\\", "\\\\"))
            roads.append({"files": [tmp_path / "broker.conf"]})
        for road in roads:
            found, refused = taken_or_refused(
                lambda: configuration(SERVERS if section != "nameserver" else NAME_SERVER, **road)  # noqa: B023
            )
            if refused:
                assert any(name and name in refused for name in (each.name, each.java, each.name.upper())), (road, refused)
                assert refused.isprintable()
                continue
            taken = getattr(getattr(found, section), each.name)
            if isinstance(taken, str):
                assert taken.isprintable()
                assert declared["choices"] or declared["form"].fits(taken)


@pytest.mark.parametrize("cls", CLIENTS)
def test_a_hostile_value_of_a_clients_setting_is_refused_by_name_or_fits_its_form(cls):
    for field in fields(cls):
        for value in [*HOSTILE, 10**30, -1, float("nan"), None, b"a", [], {}, object()]:
            settings, refused = taken_or_refused(lambda: settings_of(cls, {field.name: value}))  # noqa: B023
            if refused:
                assert field.name in refused or field.name in CHECKED_ELSEWHERE
                continue
            found = getattr(settings, field.name)
            if isinstance(found, str) and field.name not in CHECKED_ELSEWHERE:
                assert found.isprintable()
                assert field.metadata["choices"] or field.metadata["form"].fits(found)


def test_every_text_setting_has_a_form_or_choices():
    texts = [(cls, field) for cls in [*SERVERS.values(), *CLIENTS] for field in fields(cls) if isinstance(field.default, str)]
    checked_here = [(cls, field) for cls, field in texts if not (cls in CLIENTS and field.name in CHECKED_ELSEWHERE)]
    assert len(checked_here) > 20
    assert [(cls, field.name) for cls, field in checked_here if not (field.metadata["form"] or field.metadata["choices"])] == []


def test_the_reference_says_what_fits_each_text():
    texts = [(section, each) for section, each in of_servers() if each.kind == "text"]
    assert len(texts) > 10
    assert [(section, each.name) for section, each in texts if not each.allowed] == []


# ---------------------------------------------------------------- where a server listens, and where it keeps its data


def test_a_host_that_is_none_is_refused():
    for host in ("a b", "x\ny", "-h", "300.1.1.1:80"):
        with pytest.raises(SettingError, match="--host"):
            configuration(BROKER, host=host)
    with pytest.raises(SettingError, match="it has no address"):
        configuration(BROKER, host="no-such-host.invalid")


def test_the_store_is_where_storePathRootDir_says_and_the_flag_goes_before(tmp_path):
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={tmp_path}/a\nstorePathCommitLog={tmp_path}/a/commitlog\n")
    found = configuration(BROKER, files=[tmp_path / "broker.conf"])
    assert servers.data_directory("broker", None, found, {}) == tmp_path / "a"
    later = configuration(BROKER, files=[tmp_path / "broker.conf"], environment={"HALFMOON_DATA": "/env"})
    assert later.store.data == "/env"
    with pytest.raises(SettingError, match=f"storePathCommitLog={tmp_path}/a/commitlog: the store is one directory, here /flag"):
        servers.data_directory("broker", "/flag", found, {})


@pytest.mark.parametrize(
    "line",
    [
        *("storePathCommitLog=/other/commitlog", "storePathCommitLog=/data/a,/data/b", "storePathConsumeQueue=/fast/consumequeue"),
        *("storePathIndex=/x", "abortFile=/x/abort", "storeCheckpoint=checkpoint"),
    ],
)
def test_a_part_of_the_store_in_another_place_is_refused_by_name(line, tmp_path):
    (tmp_path / "broker.conf").write_text(f"storePathRootDir=/data\n{line}\n")
    found = configuration(BROKER, files=[tmp_path / "broker.conf"])
    with pytest.raises(SettingError, match=r"broker\.conf:2: " + line.split("=")[0]):
        servers.data_directory("broker", None, found, {})


def test_a_home_in_storePathRootDir_is_the_users_and_a_java_expression_is_refused(tmp_path):
    (tmp_path / "broker.conf").write_text("storePathRootDir=~/store\n")
    found = configuration(BROKER, files=[tmp_path / "broker.conf"])
    assert servers.data_directory("broker", None, found, {}) == Path("~/store").expanduser()
    with pytest.raises(SettingError, match="without"):
        configuration(BROKER, assignments=["storePathRootDir=${user.home}/store"])


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("localhost", True)]
)
def test_loopback_addresses_are_known(host, own):
    assert is_loopback(host) is own


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_other_addresses_are_not_loopback(host):
    assert not is_loopback(host)
