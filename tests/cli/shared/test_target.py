"""Which cluster a command asks: options, variables, the context in use, the default; and who signs and encrypts then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfmoon.cli.contexts.file import ClusterContext
from halfmoon.cli.main import main
from halfmoon.cli.shared.command_group import COMMANDS, load
from halfmoon.cli.shared.target import CHANGING, ChosenContext, enter, sign_with
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority

DEAD = "127.0.0.1:1"


@pytest.fixture
def contexts(run_alone, cluster):
    """``live`` is the module's cluster, nobody listens at ``dead``, and a topic made at the cluster is in its list."""
    for name, address in (("live", cluster.nameserver), ("dead", DEAD)):
        assert run_alone("context", "add", name, "-n", address).code == 0
    assert run_alone("topic", "create", "orders", "-n", cluster.nameserver).code == 0
    return run_alone


@pytest.mark.parametrize(
    ("in_use", "namesrv_addr", "variable", "option", "by"),
    [
        ("live", None, None, None, "in use"),
        ("dead", "LIVE", None, None, "NAMESRV_ADDR"),
        ("dead", DEAD, "live", None, "HALFMOON_CONTEXT"),
        ("dead", DEAD, "dead", "live", "--context"),
        ("dead", "LIVE", "dead", "default", "--context"),
        ("dead", "LIVE", "default", None, "HALFMOON_CONTEXT"),
        ("live", None, "", None, "in use"),
    ],
)
def test_an_option_comes_first_then_a_variable_then_the_one_in_use(
    contexts, cluster, monkeypatch, in_use, namesrv_addr, variable, option, by
):
    contexts("context", "use", in_use)
    for name, value in (("NAMESRV_ADDR", namesrv_addr), ("HALFMOON_CONTEXT", variable)):
        if value is not None:
            monkeypatch.setenv(name, cluster.nameserver if value == "LIVE" else value)
    named = ["--context", option] if option else []

    assert "orders" in contexts("topic", "list", *named).out
    assert contexts(*named, "context", "show", "--json").json()["chosen_by"] == by


def test_two_variables_that_differ_are_told_by_name_and_the_one_that_is_used(contexts, cluster, monkeypatch):
    monkeypatch.setenv("HALFMOON_NAMESERVER", cluster.nameserver)
    monkeypatch.setenv("NAMESRV_ADDR", DEAD)

    listed = contexts("topic", "list")
    assert "orders" in listed.out
    assert f"HALFMOON_NAMESERVER={cluster.nameserver} and NAMESRV_ADDR={DEAD} name different name servers" in listed.err
    assert contexts("context", "show", "--json").json()["chosen_by"] == "HALFMOON_NAMESERVER"
    assert "different" not in contexts("topic", "list", "-n", cluster.nameserver).err


def test_an_address_that_is_given_comes_before_everything(contexts, cluster, monkeypatch):
    contexts("context", "use", "dead")
    monkeypatch.setenv("HALFMOON_CONTEXT", "dead")

    assert "orders" in contexts("topic", "list", "-n", cluster.nameserver).out


def test_an_address_and_a_context_at_once_are_refused(contexts):
    ran = contexts("topic", "list", "--context", "live", "-n", DEAD)

    assert ran.code == 2
    assert "either --nameserver or --context" in " ".join(ran.err.split())


@pytest.mark.parametrize("words", [("topic", "list"), ("filter", "explain", "a > 1")], ids=" ".join)
def test_an_unknown_context_is_refused_whatever_the_command(contexts, words):
    ran = contexts(*words, "--context", "lve")

    assert ran.code == 2
    assert "did you mean 'live'?" in ran.err


def test_a_command_that_changes_something_names_its_context_and_others_do_not(contexts, cluster):
    contexts("context", "use", "live")

    assert contexts("topic", "create", "t1").err == f"context live: {cluster.nameserver}\n"
    assert contexts("topic", "create", "t1", "--context", "live").err == f"context live: {cluster.nameserver}\n"
    assert contexts("topic", "create", "t1", "--json").err == ""
    assert contexts("topic", "create", "t1", "-n", cluster.nameserver).err == ""
    assert contexts("topic", "list").err == ""


def test_all_commands_that_are_said_to_change_something_exist_and_ask_a_cluster():
    for words in CHANGING:
        name, *inner = words.split()
        command = load(name)
        for word in inner:
            command = command.commands[word]
        assert "nameserver" in {param.name for param in command.params}, words


def test_all_commands_that_ask_for_a_confirmation_are_said_to_change_something():
    def commands(command, words):
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, [*words, name])
        names = {param.name for param in command.params}
        if {"yes", "nameserver"} <= names:
            yield " ".join(words)

    asking = {words for name in COMMANDS for words in commands(load(name), [name])}

    assert "group skip" in asking
    assert asking - CHANGING == set()


def test_a_broken_file_stops_only_commands_that_need_it(run, run_alone, monkeypatch, cluster):
    path = Path(os.environ["XDG_CONFIG_HOME"], "halfmoon", "contexts.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")

    assert run("topic", "list").code == 0  # NAMESRV_ADDR says which cluster
    monkeypatch.delenv("NAMESRV_ADDR")
    ran = run_alone("topic", "list", "--json")
    assert (ran.code, str(path) in ran.err) == (2, True)


# ---------------------------------------------------------------- who signs and encrypts

SIGNED = ClusterContext("a:1", credentials="/prod.yml", tls_ca="/ca.pem")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable says anything of signing or encrypting."""
    for name in [name for name in os.environ if name.startswith("HALFMOON_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def ours() -> dict[str, str]:
    return {name.removeprefix("HALFMOON_"): value for name, value in os.environ.items() if name.startswith("HALFMOON_")}


def test_a_context_signs_and_encrypts_until_the_command_ends(environment):
    undo = enter(ChosenContext("prod", "--context", SIGNED), {})
    assert ours() == {"CREDENTIALS": "/prod.yml", "TLS": "true", "TLS_CA": "/ca.pem"}

    undo()
    assert ours() == {}


def test_options_come_before_what_a_context_says(environment):
    undo = enter(ChosenContext("prod", "--context", SIGNED), {"credentials": "/mine.yml", "tls_no_verify": True})
    assert ours() == {}
    undo()


@pytest.mark.parametrize("by", ["--context", "HALFMOON_CONTEXT"])
def test_a_context_that_is_named_comes_before_variables(environment, by):
    environment.setenv("HALFMOON_ACCESS_KEY", "me")
    environment.setenv("HALFMOON_SECRET_KEY", "mine")
    environment.setenv("HALFMOON_TLS_CA", "/other.pem")

    undo = enter(ChosenContext("prod", by, SIGNED), {})
    assert ours() == {"CREDENTIALS": "/prod.yml", "TLS": "true", "TLS_CA": "/ca.pem"}

    undo()
    assert ours() == {"ACCESS_KEY": "me", "SECRET_KEY": "mine", "TLS_CA": "/other.pem"}


def test_the_context_in_use_comes_behind_variables(environment):
    environment.setenv("HALFMOON_ACCESS_KEY", "me")
    environment.setenv("HALFMOON_TLS_VERIFY", "false")

    undo = enter(ChosenContext("prod", "in use", SIGNED), {})

    assert ours() == {"ACCESS_KEY": "me", "TLS_VERIFY": "false"}
    undo()
    assert ours() == {"ACCESS_KEY": "me", "TLS_VERIFY": "false"}


def test_the_default_context_changes_nothing(environment):
    enter(ChosenContext("default", "in use", None), {})()

    assert ours() == {}


def test_a_file_signs_in_place_of_what_variables_say(environment):
    environment.setenv("HALFMOON_ACCESS_KEY", "me")

    undo = sign_with("/mine.yml")
    assert ours() == {"CREDENTIALS": "/mine.yml"}

    undo()
    assert ours() == {"ACCESS_KEY": "me"}


def test_a_context_reaches_a_cluster_that_takes_only_tls(run_alone, tmp_path):
    authority = Authority(tmp_path / "certificates")
    pair = authority.pair("server", "mq.example")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key}
    with LocalCluster(tmp_path / "data", settings) as cluster:
        tls = ["--tls-ca", authority.ca, "--tls-server-name", "mq.example"]
        run_alone("context", "add", "prod", "-n", cluster.nameserver, *tls)
        run_alone("context", "add", "wrong", "-n", cluster.nameserver, "--tls-ca", authority.ca)

        assert run_alone("topic", "create", "orders", "--context", "prod").code == 0
        assert run_alone("topic", "create", "orders", "--context", "wrong").code == 1
        assert main(["topic", "list", "--context", "wrong", *tls]) == 0
