"""A setting that cannot work is refused where it is given, with the form that its value must have."""

from __future__ import annotations

import logging

import pytest

from halfmoon.cli import servers
from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration


@pytest.mark.parametrize(
    "assignment",
    [
        *("deleteWhen=abc", "deleteWhen=25", "deleteWhen=04,05", 'regionId=a"b', "regionId=", "brokerName=a b/c"),
        *("brokerClusterName=a/b", "msgTraceTopicName=../x", "brokerName=" + "x" * 128),
    ],
)
def test_a_setting_that_cannot_work_is_refused(assignment):
    with pytest.raises(SettingError, match="must be"):
        configuration(BROKER, assignments=[assignment])


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
        *(("slaveReadEnable=true", logging.WARNING), ("slaveReadEnable=false", logging.INFO), ("traceOn=true", logging.INFO)),
        *(("traceOn=false", logging.WARNING), ("storePathEpochFile=/x", logging.WARNING), ("kvConfigPath=/x", logging.WARNING)),
    ],
)
def test_an_ignored_key_is_named_at_warning_when_its_value_changes_what_a_user_gets(line, level, tmp_path, caplog, monkeypatch):
    (tmp_path / "broker.conf").write_text(line + "\n")
    monkeypatch.setattr(servers, "to_stderr", lambda level: None)
    caplog.set_level(logging.INFO, logger="halfmoon.cli")
    servers._begin_log("warning", configuration(BROKER, files=[tmp_path / "broker.conf"]))
    assert [(each.levelno, line.split("=")[0] in each.getMessage()) for each in caplog.records] == [(level, True)]
