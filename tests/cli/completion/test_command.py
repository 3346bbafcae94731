"""`halfmoon completion`, with a real bash that asks it as it does when somebody presses Tab."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from halfmoon import Admin
from tests.waiting import until

pytestmark = pytest.mark.slow

TYPED = """
typed() {
    COMP_LINE=$1 COMP_POINT=${#1}
    IFS=' ' read -ra COMP_WORDS <<< "$(sed 's/=/ = /g' <<< "$1")"
    [[ $1 == *' ' ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _halfmoon halfmoon "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "$1 -> ${COMPREPLY[*]}"
}
"""
"""What bash does for a word: it splits the line, also at ``=``, and calls the function that is registered."""


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


def test_bash_is_told_which_function_completes(home):
    assert shell(home, "source <(halfmoon completion bash); complete -p halfmoon") == "complete -F _halfmoon halfmoon\n"


def test_bash_completes_commands_options_and_names_of_the_cluster(home, cluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("orders")
        admin.create_topic("ordinals")
        admin.create_group("C_shop")
    shell(home, "halfmoon context add prod -n a:1 > context.log")

    expected = {
        "halfmoon to": "topic",
        "halfmoon topic sh": "show",
        "halfmoon topic create --que": "--queues",
        "halfmoon topic show ord": "orders ordinals",
        "halfmoon produce --topic=ord": "orders ordinals",
        f"halfmoon group show -n {cluster.nameserver} ": "C_shop",
        "halfmoon context use pr": "prod",
        "halfmoon produce --file cont": "context.log",
    }
    until(lambda: typed(home, *expected, nameserver=cluster.nameserver) == [*expected.values()], within_s=240)  # names come in time


def test_bash_is_offered_nothing_and_told_nothing_where_no_cluster_answers(home):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert typed(home, "halfmoon topic show ", "halfmoon topic show -n 127.0.0.1:1 ",
                     nameserver=f"127.0.0.1:{silent.getsockname()[1]}") == ["", ""]  # fmt: skip


def test_a_file_of_contexts_that_is_broken_leaves_commands_to_complete(home):
    (home / "configuration" / "halfmoon").mkdir(parents=True)
    (home / "configuration" / "halfmoon" / "contexts.json").write_text("{")

    assert typed(home, "halfmoon topic sh", "halfmoon topic list --context ") == ["show", ""]


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_take_their_script(home, name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    prepare = "autoload -Uz compinit && compinit -D;" if name == "zsh" else ""

    assert shell(home, f"{prepare} halfmoon completion {name} | source /dev/stdin; echo taken", command=(name, "-c")) == "taken\n"


@pytest.mark.parametrize(("name", "line"), [("zsh", "show:Show a topic's brokers"), ("fish", "show\tShow a topic's brokers")])
def test_other_shells_are_told_what_a_word_means(run_alone, name, line):
    assert run_alone("completion", name, "--line", "halfmoon topic sh").out.startswith(line)


def test_an_unknown_shell_is_refused(run_alone):
    ran = run_alone("completion", "csh")

    assert ran.code == 2
    assert "give bash, zsh or fish" in ran.err


def test_a_file_is_asked_for_with_an_exit_code_of_its_own(run_alone):
    assert run_alone("completion", "bash", "--line", "halfmoon produce --file ").code == 3
