"""`halfmoon completion`: words that may stand next, and a real bash that asks for them as it does when somebody presses Tab."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, split_arg_string

from halfmoon import Admin
from halfmoon.cli.shared.command_group import COMMANDS, app
from tests.waiting import until


def offered(line: str) -> list[tuple[str, str]]:
    """Return the words that may stand at the end of a line, with their types."""
    words = split_arg_string(line)[1:]
    begun = words.pop() if words and not line[-1:].isspace() else ""
    return [
        (each.value, each.type) for each in ShellComplete(app, {}, "halfmoon", "_HALFMOON_COMPLETE").get_completions(words, begun)
    ]


def words(line: str) -> list[str]:
    return [word for word, _ in offered(line)]


@pytest.fixture(scope="module")
def names(cluster):
    """A cluster with topics and a group."""
    with Admin(nameserver=cluster.nameserver) as admin:
        for topic in ("orders", "orders_paid", "payments", "a|b"):
            admin.create_topic(topic, queue_count=1)
        admin.create_group("C_shop")
    return cluster


@pytest.fixture
def patient(monkeypatch):
    """Names may take their time, as on a busy machine."""
    monkeypatch.setattr("halfmoon.cli.completion.WAIT_S", 60.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("halfmoon ", list(COMMANDS)),
        ("halfmoon to", ["topic"]),
        ("halfmoon nonsense a ", list(COMMANDS)),
        ("halfmoon topic ", ["create", "list", "show", "delete", "trim"]),
        ("halfmoon spark tx", ["txn"]),
        ("halfmoon spark txn ", ["audit"]),
        ("halfmoon --tls topic sh", ["show"]),
        ("halfmoon --credentials x.yml topic sh", ["show"]),
        ("halfmoon topic --tls sh", ["show"]),
        ("halfmoon topic create --per", ["--perm"]),
        ("halfmoon topic create --context", ["--context"]),
        ("halfmoon config get --of ", ["broker", "nameserver"]),
        ("halfmoon config get --of=na", ["nameserver"]),
        ("halfmoon tx status --pro", []),
        ("halfmoon topic create orders --queues ", []),
        ("halfmoon serve --eph", ["--ephemeral"]),
    ],
)
def test_commands_options_and_choices_are_known_without_a_cluster(line, expected):
    assert words(line) == expected


@pytest.mark.parametrize("line", ["halfmoon produce --file ", "halfmoon --credentials ", "halfmoon topic list --tls-ca "])
def test_names_of_files_are_left_to_the_shell(line):
    assert [kind for _, kind in offered(line)] == ["file"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("halfmoon topic show ", ["orders", "orders_paid", "payments"]),
        ("halfmoon topic show orders_", ["orders_paid"]),
        ("halfmoon produce --topic pay", ["payments"]),
        ("halfmoon produce -t pay", ["payments"]),
        ("halfmoon produce --topic=pay", ["payments"]),
        ("halfmoon bench send --topic ord", ["orders", "orders_paid"]),
        ("halfmoon group show ", ["C_shop"]),
        ("halfmoon group reset C_shop ord", ["orders", "orders_paid"]),
        ("halfmoon consume --topic orders --group ", ["C_shop"]),
        ("halfmoon tx pending --group ", []),
    ],
)
def test_topics_and_groups_are_asked_of_the_cluster(names, run, patient, line, expected):
    assert words(line) == expected


def test_the_cluster_is_the_one_that_the_line_names(names, run_alone, patient):
    run_alone("context", "add", "live", "-n", names.nameserver)

    assert words(f"halfmoon topic show -n {names.nameserver} pay") == ["payments"]
    assert words("halfmoon topic show --context live pay") == ["payments"]
    assert words("halfmoon --context=live topic show pay") == ["payments"]
    run_alone("context", "use", "live")
    assert words("halfmoon topic show pay") == ["payments"]
    assert words("halfmoon topic show -n 127.0.0.1:1 pay") == []


def test_contexts_are_offered(run_alone):
    run_alone("context", "add", "prod", "-n", "a:1")

    assert words("halfmoon context use ") == ["default", "prod"]
    assert words("halfmoon topic list --context p") == ["prod"]


TYPED = """
typed() {
    IFS=' ' read -ra COMP_WORDS <<< "$1"
    [[ $1 == *' ' ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _halfmoon_completion halfmoon "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "$1 -> ${COMPREPLY[*]}"
}
"""
"""What bash does for a word: it splits the line and calls the function that is registered."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the command in ``bin``."""
    command = tmp_path / "bin" / "halfmoon"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m halfmoon "$@"\n')
    command.chmod(0o700)
    return tmp_path


def shell(home: Path, script: str, nameserver: str = "127.0.0.1:1", *, command: tuple[str, ...] = ("bash", "--norc", "-c")) -> str:
    """Run a script in a shell that knows our command and a cluster; return what it writes. Nothing may go to standard error."""
    environment = {**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}", "NAMESRV_ADDR": nameserver, "HOME": str(home)}
    environment |= {"XDG_CONFIG_HOME": str(home / "configuration")}
    ran = subprocess.run([*command, script], cwd=home, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.stderr == ""
    return ran.stdout


def typed(home: Path, *lines: str, nameserver: str = "127.0.0.1:1") -> list[str]:
    """Return, for each line, what bash offers at its end."""
    calls = "\n".join(f"typed {shlex.quote(line)}" for line in lines)
    said = shell(home, f"source <(halfmoon completion bash)\n{TYPED}\n{calls}", nameserver).splitlines()
    return [answer.partition("-> ")[2] for answer in said]


@pytest.mark.slow
def test_bash_completes_commands_options_and_names_of_the_cluster(home, names):
    shell(home, "halfmoon context add prod -n a:1 > context.log")

    expected = {
        "halfmoon to": "topic",
        "halfmoon topic sh": "show",
        "halfmoon topic create --que": "--queues",
        "halfmoon topic show ord": "orders orders_paid",
        f"halfmoon group show -n {names.nameserver} ": "C_shop",
        "halfmoon context use pr": "prod",
    }
    until(lambda: typed(home, *expected, nameserver=names.nameserver) == [*expected.values()], within_s=240)  # names come in time


@pytest.mark.slow
def test_bash_is_offered_nothing_and_told_nothing_where_no_cluster_answers(home):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert typed(home, "halfmoon topic show ", "halfmoon topic show -n 127.0.0.1:1 ",
                     nameserver=f"127.0.0.1:{silent.getsockname()[1]}") == ["", ""]  # fmt: skip


@pytest.mark.slow
def test_a_file_of_contexts_that_is_broken_leaves_commands_to_complete(home):
    (home / "configuration" / "halfmoon").mkdir(parents=True)
    (home / "configuration" / "halfmoon" / "contexts.json").write_text("{")

    assert typed(home, "halfmoon topic sh", "halfmoon topic list --context ", "halfmoon topic show ") == ["show", "", ""]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_take_their_script(home, name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    prepare = "autoload -Uz compinit && compinit -D;" if name == "zsh" else ""

    assert shell(home, f"{prepare} halfmoon completion {name} | source /dev/stdin; echo taken", command=(name, "-c")) == "taken\n"


def test_an_unknown_shell_is_refused(run_alone):
    ran = run_alone("completion", "csh")

    assert ran.code == 2
    assert "give bash, zsh or fish" in ran.err
