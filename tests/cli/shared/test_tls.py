"""The options for encrypted connections, with a real cluster that takes nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfmoon.cli.main import main
from halfmoon.cli.shared.target import first, into_environment
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        (["topic", "list", "--tls", "-a"], ["--tls", "topic", "list", "-a"]),
        (["topic", "list", "--tls-ca", "x", "--tls-key=y"], ["--tls-ca", "x", "--tls-key=y", "topic", "list"]),
        (["produce", "--", "--tls"], ["produce", "--", "--tls"]),
        (["topic", "--tls-ca"], ["--tls-ca", "topic"]),
        (["--tlsx", "--tls-no-verify"], ["--tls-no-verify", "--tlsx"]),
    ],
)
def test_they_may_stand_anywhere_before_what_is_no_option(given: list[str], ordered: list[str]) -> None:
    assert first(given) == ordered


def test_commands_reach_a_cluster_that_takes_only_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.pair("server", "mq.example")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key}
    with LocalCluster(tmp_path / "data", settings) as cluster:
        create = ["topic", "create", "orders", "-n", cluster.nameserver]
        assert main([*create, "--tls-ca", authority.ca]) == 1
        assert "made for another name" in capsys.readouterr().err
        assert main([*create, "--tls-ca", authority.ca, "--tls-server-name", "mq.example"]) == 0
        capsys.readouterr()
        assert main(["topic", "list", "--tls", "--tls-no-verify", "-n", cluster.nameserver]) == 0
        assert "orders" in capsys.readouterr().out


def test_processes_that_a_command_starts_encrypt_too_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HALFMOON_TLS", raising=False)
    monkeypatch.setenv("HALFMOON_TLS_CA", "before.pem")
    undo = into_environment(False, "/ca.pem", None, None, None, True)
    assert [os.environ[f"HALFMOON_TLS{name}"] for name in ("", "_CA", "_VERIFY")] == ["true", "/ca.pem", "false"]
    undo()
    assert [os.environ.get(f"HALFMOON_TLS{name}") for name in ("", "_CA", "_VERIFY")] == [None, "before.pem", None]
    into_environment(False, None, None, None, None, False)()
    assert "HALFMOON_TLS" not in os.environ


def test_help_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--tls-server-name" in capsys.readouterr().out
