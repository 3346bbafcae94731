"""The servers as commands of the group: every option is in their help, and what is given arrives as it was read."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from halfmoon.cli import servers
from halfmoon.cli.servers import HELP, OPTIONS
from halfmoon.cli.shared.command_group import load


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_has_every_option_and_the_example(name: str):
    result = CliRunner().invoke(load(name), ["--help"], env={"COLUMNS": "200", "TERM": "dumb"})

    assert result.exit_code == 0
    assert [option.flag for option in OPTIONS[name] if option.flag not in result.output] == []
    assert HELP[name].splitlines()[0] in result.output
    assert f"halfmoon {name}" in result.output


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def serve(name: str, values: dict[str, Any]) -> int:
        calls.append((name, values))
        return 3

    monkeypatch.setattr(servers, "serve", serve)
    return calls


def test_options_arrive_by_name_and_the_server_s_exit_code_is_the_command_s(started: list[tuple[str, dict[str, Any]]]):
    result = CliRunner().invoke(load("broker"), ["--data", "d", "--set", "a=1", "--set", "b=2", "--allow-remote"])

    ((name, values),) = started
    assert (result.exit_code, name) == (3, "broker")
    assert (values["data"], values["set"], values["allow_remote"]) == ("d", ["a=1", "b=2"], True)


def test_what_is_not_given_is_none_empty_or_off(started: list[tuple[str, dict[str, Any]]]):
    CliRunner().invoke(load("nameserver"), [])

    ((_, values),) = started
    assert values == {option.name: [] if option.many else None if option.metavar else False for option in OPTIONS["nameserver"]}


@pytest.mark.parametrize("words", [["--no-such-option"], ["--data"], ["--set"], ["--ephemeral=yes"], ["a-word"]])
def test_a_wrong_option_starts_nothing(started: list[tuple[str, dict[str, Any]]], words: list[str]):
    assert CliRunner().invoke(load("serve"), words).exit_code == 2
    assert started == []
