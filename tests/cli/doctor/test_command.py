"""`halfmoon doctor` against real servers: each finding, its remedy, and the exit code."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

import halfmoon
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority
from tests.broker.access.rule_files import write

ACCOUNTS = "accounts:\n- {accessKey: operator, secretKey: the secret 2, admin: true}\n"


def checks(ran) -> dict[str, tuple[str, str, str]]:
    return {each["name"]: (each["state"], each["what"], each["do"]) for each in ran.json()["checks"]}


def test_a_healthy_cluster_has_no_problem(run, cluster):
    ran = run("doctor", "--json")

    found = checks(ran)
    assert ran.code == 0
    assert ran.json()["problems"] == 0
    assert {"Python", "extension", "Java", "open files", "disk", "port 9876", "port 10911", "account"} <= found.keys()
    assert found[f"name server {cluster.nameserver}"][0] == "ok"
    assert found["broker broker-a"][1].startswith("version V4_9_8")
    assert found["clock of broker broker-a"][0] == "ok"
    assert "0 problems" in run("doctor").out


def test_a_port_of_a_broker_is_named(run_alone, cluster):
    ran = run_alone("doctor", "--nameserver", cluster.broker)

    assert ran.code == 1
    assert f"{cluster.broker} is a broker, not a name server" in ran.out
    assert "→ give the address of the name server: --nameserver" in ran.out
    assert "1 problem\n" in ran.out


def test_an_address_where_nobody_answers_is_a_problem_with_a_remedy(run_alone):
    ran = run_alone("doctor", "--nameserver", "127.0.0.1:1", "--json")

    state, what, do = checks(ran)["name server 127.0.0.1:1"]
    assert ran.code == 1
    assert (state, do) == ("problem", "start it (halfmoon serve), or give another address: --nameserver HOST:PORT")
    assert what.startswith("nobody answers: ")


def test_a_program_that_speaks_something_else_is_named(run_alone):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_greet, args=[server], daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ran = run_alone("doctor", "--nameserver", address, "--json")

    assert "does not speak RocketMQ's protocol" in checks(ran)[f"name server {address}"][1]


def _greet(server: socket.socket) -> None:
    try:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
    except OSError:
        return


def test_tls_is_named_where_it_is_missing_and_its_certificate_dated(run_alone, tmp_path: Path):
    authority = Authority(tmp_path / "certificates")
    pair = authority.pair("server", "mq.example")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key}
    with LocalCluster(tmp_path / "data", settings) as cluster:
        plain = run_alone("doctor", "-n", cluster.nameserver, "--json")
        options = ("--tls-ca", authority.ca, "--tls-server-name", "mq.example")
        encrypted = run_alone("doctor", "-n", cluster.nameserver, *options, "--json")
        unverified = run_alone("doctor", "-n", cluster.nameserver, "--tls", "--tls-no-verify", "--json")

    assert checks(plain)[f"name server {cluster.nameserver}"][1:] == (
        f"{cluster.nameserver} takes encrypted connections only", "--tls --tls-ca FILE; see halfmoon docs tls",
    )  # fmt: skip
    assert encrypted.code == 0
    assert "valid for" in checks(encrypted)[f"certificate of {cluster.nameserver}"][1]
    state, said, _ = checks(unverified)[f"certificate of {cluster.nameserver}"]
    assert (state, said.startswith("is not verified here, so its end is not known: ")) == ("note", True)


def test_a_missing_account_is_named_with_its_remedy(run_alone, tmp_path: Path):
    write(tmp_path / "store", ACCOUNTS)
    file = tmp_path / "operator.yml"
    file.touch(0o600)
    file.write_text("accessKey: operator\nsecretKey: the secret 2\n")
    with LocalCluster(tmp_path / "store", {"aclEnable": "true"}) as cluster:
        without = run_alone("doctor", "-n", cluster.nameserver, "--json")
        signed = run_alone("doctor", "-n", cluster.nameserver, "--credentials", str(file), "--json")

    state, what, do = checks(without)["broker broker-a"]
    assert (without.code, state) == (1, "problem")
    assert what.startswith(f"no access: {cluster.broker} requires an account: ")
    assert "HALFMOON_ACCESS_KEY" in do
    assert checks(signed)["account"][1] == "requests are signed by the account of HALFMOON_CREDENTIALS"


def test_versions_of_the_members_of_a_group_are_shown(run, topic, cluster):
    with halfmoon.PullConsumer(group="C_doctor", nameserver=cluster.nameserver) as consumer:
        consumer.subscribe(topic)
        consumer.poll(500)
        state, what, _ = checks(run("doctor", "--group", "C_doctor", "--group", "C_none", "--json"))["group C_doctor"]

    assert (state, what.split(":")[0].split()[0]) == ("ok", "PYTHON")
    assert checks(run("doctor", "--group", "C_none", "--json"))["group C_none"][1] == "has no member that is connected"


@pytest.mark.parametrize("words", [("doctor", "--data", "/proc"), ("doctor", "--data", "/nowhere/at/all")])
def test_any_directory_is_looked_at(run, words):
    assert "disk" in checks(run(*words, "--json"))
