"""What may stand next on a command line."""

from __future__ import annotations

import socket
import time

import pytest
import typer

from halfmoon import Admin
from halfmoon.cli.completion.candidates import WAIT_S, Files, candidates
from halfmoon.cli.shared.command_group import COMMANDS, app


def words(line: str) -> list[str]:
    return [each.word for each in candidates(line, typer.main.get_command(app))]


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
    monkeypatch.setattr("halfmoon.cli.completion.candidates.WAIT_S", 60.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("halfmoon ", list(COMMANDS)),
        ("halfmoon to", ["topic"]),
        ("halfmoon nonsense ", []),
        ("halfmoon topic ", ["create", "list", "show", "delete"]),
        ("halfmoon topic nonsense ", []),
        ("halfmoon spark tx", ["txn"]),
        ("halfmoon spark txn ", ["audit"]),
        ("halfmoon --tls topic sh", ["show"]),
        ("halfmoon --credentials x.yml topic sh", ["show"]),
        ("halfmoon topic create --per", ["--perm"]),
        ("halfmoon topic create --context", ["--context"]),
        ("halfmoon config get --of ", ["broker", "nameserver"]),
        ("halfmoon config get --of=na", ["--of=nameserver"]),
        ("halfmoon completion ", ["bash", "fish", "zsh"]),
        ("halfmoon topic create orders --queues ", []),
        ("halfmoon topic create 'or", []),
        ("halfmoon", list(COMMANDS)),
        ("", list(COMMANDS)),
    ],
)
def test_commands_options_and_choices_are_known_without_a_cluster(line, expected):
    assert words(line) == expected


def test_options_have_their_help_and_hidden_ones_are_not_offered():
    found = candidates("halfmoon completion bash --", typer.main.get_command(app))

    assert "--line" not in {each.word for each in found}
    assert [each.help for each in found if each.word == "--version"] == ["Show the version."]


@pytest.mark.parametrize("line", ["halfmoon produce --file ", "halfmoon --credentials ", "halfmoon topic list --tls-ca=x"])
def test_names_of_files_are_left_to_the_shell(line):
    with pytest.raises(Files):
        words(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("halfmoon topic show ", ["orders", "orders_paid", "payments"]),
        ("halfmoon topic show orders_", ["orders_paid"]),
        ("halfmoon produce --topic pay", ["payments"]),
        ("halfmoon produce -t pay", ["payments"]),
        ("halfmoon produce --topic=pay", ["--topic=payments"]),
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
    assert words("halfmoon topic list --context=p") == ["--context=prod"]


def test_who_does_not_answer_is_waited_for_a_short_while():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        found = words(f"halfmoon topic show -n 127.0.0.1:{silent.getsockname()[1]} ")

    assert found == []
    assert WAIT_S * 0.9 <= time.monotonic() - begun < WAIT_S + 30  # the bound is of a busy machine
