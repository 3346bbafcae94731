"""The table of commands: what each says of itself, and how unknown ones are refused."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from halfmoon.cli.shared.command_group import COMMANDS, load

NOUNS = {
    "topic": ("create", "list", "show", "delete", "trim"),
    "group": ("list", "show", "lag", "create", "delete", "reset"),
    "msg": ("get", "find", "trace", "resend"),
    "acl": ("list", "add", "rotate", "remove", "explain"),
    "tx": ("pending", "show", "check", "commit", "rollback", "expired", "resume", "status"),
    "filter": ("explain",),
    "bench": ("send", "pull", "tx"),
    "config": ("get", "set"),
    "client": ("list",),
    "context": ("add", "list", "use", "show", "remove"),
    "dlq": ("list", "show", "replay", "report"),
    "delay": ("list", "cancel"),
    "events": ("run", "list"),
    "outbox": ("relay", "status", "list", "retry", "sent", "resend"),
    "spark": (
        *("lag", "txn audit", "delay audit", "trace", "sql"),
        *("ingest", "compact", "dedup", "verify", "replay"),
    ),
}
EVERY = [(name,) for name in COMMANDS] + [(noun, *verb.split()) for noun, verbs in NOUNS.items() for verb in verbs]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_of_every_command_has_an_example_that_names_it(run_alone, words):
    ran = run_alone(*words, "--help")

    assert ran.code == 0
    assert f"Example: halfmoon {' '.join(words)}" in " ".join(ran.out.split())


def test_the_help_lists_every_command(run_alone):
    ran = run_alone("--help")

    assert ran.code == 0
    assert all(re.search(rf"\b{name}\b", ran.out) for name in COMMANDS)


def loaded_by(*words: str) -> set[str]:
    """Run a command in a process of its own; return the names of the modules that it has loaded at its end."""
    code = f"import sys; from halfmoon.cli.main import main; main({list(words)}); print('LOADED', *sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.rpartition("LOADED ")[2].split())


SHARED = {"", "documentation", "errors", "instant", "lazy", "logs", "cli", "cli.main"}
SHARED |= {f"cli.shared{name}" for name in ("", ".app", ".command_group", ".lines", ".output", ".suggestions", ".target")}
SHARED |= {f"client{name}" for name in ("", ".constructors", ".constructors.name_servers")}
"""Modules of the package that the list of all commands takes; of the client only the names of two variables."""
FOR_A_HELP = SHARED | {f"cli.{name}" for name in ("topic", "shared.options", "shared.reading")}
FOR_A_HELP |= {"conversion", "limits", "model", "model.message", "model.old_names", "shown", "shown.names", "shown.texts"}


@pytest.mark.parametrize(("words", "expected"), [((), SHARED), (("--help",), SHARED), (("topic", "list", "--help"), FOR_A_HELP)])
def test_a_help_loads_what_it_shows_and_neither_a_client_nor_a_broker_nor_an_event_loop(words, expected):
    loaded = loaded_by(*words)

    assert loaded & {"asyncio", "ssl", "rich", "typer", "pydantic", "yaml", "numpy", "prometheus_client", "uvloop"} == set()
    ours = {name.removeprefix("halfmoon").removeprefix(".") for name in loaded if name.partition(".")[0] == "halfmoon"}
    assert ours - expected == set()


def test_a_server_starts_without_loading_click():
    code = "import sys; from halfmoon.cli import main, servers; print(sorted({'click', 'halfmoon.client.aio'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield every command that can be run, with its words."""
    waiting = [(name, load(name)) for name in COMMANDS]
    while waiting:
        name, command = waiting.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            waiting += [(f"{name} {verb}", each) for verb, each in inner.items()]


def test_a_short_flag_means_the_same_in_every_command():
    meanings: dict[str, set[str]] = {}
    for _, command in every_command():
        for param in command.params:
            long = [flag for flag in param.opts if flag.startswith("--")]
            for short in set(param.opts) - set(long):
                if short.startswith("-"):
                    meanings.setdefault(short, set()).update(long)

    assert {short: sorted(long) for short, long in meanings.items() if len(long) > 1} == {}
    assert {short: min(long) for short, long in meanings.items()} == {
        "-a": "--all", "-c": "--count", "-f": "--follow", "-g": "--group", "-k": "--key", "-n": "--nameserver", "-o": "--option",
        "-p": "--property", "-t": "--topic", "-w": "--watch", "-y": "--yes",
    }  # fmt: skip


NO_WORD = {
    # behind any number of bodies, ids or modules
    *("produce --group", "dlq replay --group", "spark dlq replay --group", "events run --group", "outbox resend --topic"),
    *("acl add --topic", "acl add --group"),  # permissions
}


def test_every_command_takes_its_topic_and_its_group_as_an_option_and_as_a_word():
    without = set()
    for name, command in every_command():
        words = {param.name.removesuffix("_word"): param for param in command.params if param.param_type_name == "argument"}
        assert not {"topic", "group"} & {name for name, param in words.items() if not param.name.endswith("_word")}, name
        for param in command.params:
            for flag in {"--topic", "--group"} & set(param.opts):
                if param.name not in words:
                    without.add(f"{name} {flag}")

    assert without == NO_WORD


def test_no_option_names_a_unit_of_time():
    named = {
        flag
        for _, command in every_command()
        for param in command.params
        for flag in param.opts
        if re.search("-(ms|s|seconds|minutes|hours)$", flag)
    }

    assert named == set()


LISTS = {
    *(
        "topic list",
        "console user list",
        "group list",
        "msg find",
        "msg dump",
        "consume",
        "tx pending",
        "tx batches",
        "tx expired",
        "delay list",
        "acl list",
        "client list",
    ),
    *(f"{group}dlq {verb}" for group in ("", "spark ") for verb in ("list", "replay", "report")),
    *("outbox list", "events list", "spark trace", "spark sql", "sql"),
    "outbox sent",
    "spark replay",
}


def test_commands_that_list_or_find_take_fail_if_empty():
    assert {name for name, command in every_command() for param in command.params if "--fail-if-empty" in param.opts} == LISTS


ASKING = {
    *(
        "topic delete",
        "topic trim",
        "group delete",
        "group reset",
        "group skip",
        "tx commit",
        "tx rollback",
        "delay cancel",
        "dlq replay",
        "outbox drop",
    ),
    "outbox resend",
    *("acl remove", "acl rotate", "spark replay", "spark dlq replay", "fsck", "console user remove"),
}


def test_commands_that_cannot_be_undone_take_yes():
    assert {name for name, command in every_command() for param in command.params if "--yes" in param.opts} == ASKING


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("topic show", "Missing argument 'TOPIC'."),
        ("topic list --bogus", "No such option '--bogus'"),
        ("topic bogus", "No such command 'bogus'."),
        ("bogus", "No such command 'bogus'."),
        ("serve --bogus", "No such option '--bogus'"),
        ("consume orders --count x", "Invalid value for '--count'"),
        ("consume orders --idle 10", "--idle 10: 10s or 10ms?"),
        ("msg find orders --since 10", "10: 10s or 10ms ago, or a time?"),
        ("bench send --for 5", "--for 5: 5s or 5ms?"),
        ("outbox relay --poll 5", "--poll 5: 5s or 5ms?"),
        ("events run shop --close-wait 5", "--close-wait 5: 5s or 5ms?"),
        ("tx pending --older-than 5", "--older-than 5: 5s or 5ms?"),
        ("spark lag C --watch 5", "--watch 5: 5s or 5ms?"),
        ("acl remove nobody", "Not done. Add --yes to remove account nobody from every broker"),
        ("fsck /nowhere/at/all", "/nowhere/at/all holds no store"),
        ("backup /nowhere/at/all /nowhere/else", "/nowhere/at/all holds no store"),
    ],
)
def test_wrong_arguments_are_json_for_programs_and_words_for_people(run_alone, words, text):
    shown, told = run_alone(*words.split(), "--json"), run_alone(*words.split())
    error = json.loads(shown.err)

    assert (shown.code, shown.out) == (told.code, told.out) == (2, "")
    assert text in error["error"]
    assert set(error) == {"error", "kind", "code"}
    assert text in " ".join(told.err.split())


def test_json_behind_two_dashes_is_a_word_and_no_wish(run_alone):
    ran = run_alone("topic", "show", "--bogus", "--", "--json")

    assert (ran.code, ran.err.startswith("{")) == (2, False)


def test_an_interrupted_command_ends_without_a_traceback(run_alone, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halfmoon.cli.shared.command_group.load", interrupted)
    assert run_alone("topic", "list") == (130, "", "")
    monkeypatch.setattr("halfmoon.cli.shared.command_group.run", interrupted)
    assert run_alone("topic", "list") == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["--help", "topic list", "topic list --json", "topic show {}", "consume {}", "consume {} --follow --json",
     "msg find {} --since 1h", "tx status", "status", "filter explain a>5", "msg dump -n {address} {}"],
)  # fmt: skip
def test_a_reader_that_has_enough_ends_a_command_without_a_word(run, topic, cluster, words):
    run("produce", topic, "body")
    gone, pipe = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "halfmoon.cli.main", *words.format(topic, address=cluster.nameserver).split()]

    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=120)

    os.close(pipe)
    assert (ended.returncode in (0, 1), ended.stderr) == (True, "")


@pytest.mark.slow
def test_at_a_real_terminal_of_40_columns_ids_are_whole(run, topic):
    sent = run("produce", topic, "--key", "a-key-of-a-length-that-is-often-seen", "--tag", "paid", "body", "--json").json()
    ours, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "halfmoon.cli.main", "msg", "find", topic, "--since", "1h"]

    ended = subprocess.run(command, stdin=screen, stdout=screen, stderr=screen, env=environment, timeout=120)

    os.close(screen)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert ended.returncode == 0
    assert f" {sent['msg_id']}\r\n" in shown
    assert "a-key-of-a-length-that-is-often-seen" in shown
    assert "left out, for want of room: stored, queue, offset, tag, body" in shown
