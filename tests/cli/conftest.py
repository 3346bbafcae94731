"""A running cluster a module, and commands run in this process against it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from halfmoon.cli.main import main
from halfmoon.client.constructors.name_servers import NAMESERVER_VARIABLES
from halfmoon.testing.local import LocalCluster


class Ran(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """The JSON documents on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


class Terminal(io.TextIOWrapper):
    """Standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a command in this process; no cluster is known to it."""
    for variable in NAMESERVER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("HALFMOON_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", (Terminal if terminal else io.TextIOWrapper)(io.BytesIO(stdin)))
            capsys.readouterr()
            code = main([str(each) for each in arguments])
        written = capsys.readouterr()
        return Ran(code, written.out, written.err)

    return run


@pytest.fixture
def run(run_alone: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process against the module's cluster."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)
    return run_alone


@pytest.fixture
def at_terminal(run: Run) -> Run:
    """Run a command with a terminal at which a text is typed."""
    return lambda typed, *arguments: run(*arguments, stdin=typed.encode(), terminal=True)


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own with two queues."""
    name = "".join(each if each.isalnum() else "_" for each in request.node.name)[:100]
    assert run("topic", "create", name, "--queues", "2").code == 0
    return name
