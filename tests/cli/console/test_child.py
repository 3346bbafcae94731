"""The console beside `halfmoon serve`: it is there when the broker is, dies with it, and never takes it along."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.cli.console.browsing import Browser, children, is_running
from tests.cli.test_servers import FREE, bodies, refused, send, start
from tests.waiting import stand_still, until

__all__ = ["start"]

pytestmark = pytest.mark.slow

CONSOLE = ("--console", "--console-port", "0")
ACCOUNTS = """accounts:
- {accessKey: shop-service, secretKey: the-secret-of-the-shop, admin: false}
- {accessKey: operator-1, secretKey: the-secret-of-operators, admin: true}
- {accessKey: operator-2, secretKey: another-secret, admin: true}
"""


def child_of(server) -> int:
    """Return the process of a server's console, once its page has answered."""
    with Browser(server.facts["console"]) as browser:
        browser.get("/login")
    [child] = children(server.process.pid)
    return child


def clients_seen(server, run_alone) -> dict:
    """Return what a new user sees of the clients of a server's cluster."""
    data = server.facts["data"]
    name = f"user-{time.monotonic_ns()}"
    added = run_alone("console", "user", "add", name, "--role", "viewer", "--data", data, "--json").json()
    with Browser(server.facts["console"]) as browser:
        browser.log_in(name, added["password"])
        return browser.get("/clients.json").json()


def test_it_answers_where_the_ready_line_says_and_ends_with_the_server(start, run_alone):
    server = start("serve", "--ephemeral", "--console")
    child = child_of(server)

    assert "clients" in clients_seen(server, run_alone)
    assert server.stop() == 0
    assert not is_running(child)
    assert "Traceback" not in server.process.communicate()[1]


def test_the_ready_line_names_it_and_a_log_line_says_how_the_first_user_is_made(tmp_path):
    command = [sys.executable, "-m", "halfmoon.cli.main", "serve", "--data", str(tmp_path), *FREE, *CONSOLE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line, warned = process.stdout.readline(), ""
        while "console" not in warned:
            warned = process.stderr.readline()
        process.terminate()

    assert re.search(r", console http://127\.0\.0\.1:\d+, data in ", line)
    assert f"halfmoon console user add NAME --role operator --data {tmp_path} makes the first" in warned


def test_it_dies_with_a_server_that_is_killed(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE, *CONSOLE)
    child = child_of(server)

    server.process.kill()
    until(lambda: not is_running(child), "the console to end")


def test_one_that_does_not_end_by_itself_is_killed_with_its_server(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE, *CONSOLE)
    child = child_of(server)
    stand_still(child)  # it cannot end in order

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert not is_running(child)


def test_one_that_was_killed_is_said_once_and_started_again_while_the_broker_goes_on(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE, *CONSOLE)
    first = child_of(server)
    send(server.nameserver, "before")

    os.kill(first, signal.SIGKILL)
    send(server.nameserver, "meanwhile")
    second = child_of(server)
    assert second != first
    assert bodies(server.nameserver) == ["before", "meanwhile"]
    assert server.stop() == 0
    said = server.process.communicate()[1]
    assert said.count("the console ended with exit code -9; it is started again in 1 s") == 1
    assert said.count("the console ended") == 1


def test_one_that_cannot_start_is_tried_again_later_and_later(start, tmp_path):
    users = tmp_path / "console/console.db"
    users.parent.mkdir(mode=0o700)
    users.touch(0o600)
    users.write_text("{}")
    server = start("serve", "--data", tmp_path, *FREE, *CONSOLE)
    assert server.process.stderr is not None

    said: list[str] = []
    while not said or "in 5 s" not in said[-1]:
        said.append(server.process.stderr.readline())
    users.unlink()
    child_of(server)
    assert any("file is not a database" in line for line in said)
    assert sum("exit code 2; it is started again in 1 s" in line for line in said) == 1


def test_it_asks_as_the_first_administrator_of_the_accounts_whose_secret_nobody_else_sees(start, run_alone, tmp_path):
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    server = start("serve", "--data", tmp_path / "data", *FREE, *CONSOLE, "--acl", accounts)
    child = child_of(server)

    assert "clients" in clients_seen(server, run_alone)
    for name in ("cmdline", "environ"):
        assert b"the-secret-of-operators" not in Path(f"/proc/{child}/{name}").read_bytes()


def test_without_an_administrator_nothing_starts(tmp_path):
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS.replace("true", "false"))
    accounts.chmod(0o600)
    code, said = refused("serve", "--data", tmp_path / "data", *FREE, *CONSOLE, "--acl", accounts)

    assert code == 2
    assert "admin: true" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("host", ["127.0.0.1", "mq.host.example", "*.host.example"])
def test_it_verifies_the_certificate_of_a_server_that_takes_nothing_else_whatever_its_names_are(start, run_alone, tmp_path, host):
    pair = Authority(tmp_path / "certificates").pair("server", host)
    tls = {"tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key, "tls.server.mode": "enforcing"}
    options = [word for key, value in tls.items() for word in ("--set", f"{key}={value}")]
    server = start("serve", "--data", tmp_path / "data", *FREE, *CONSOLE, *options)

    assert "clients" in clients_seen(server, run_alone)


def test_a_certificate_that_does_not_verify_is_said_in_the_log_and_on_the_page(start, run_alone, tmp_path):
    pair = Authority(tmp_path / "certificates").pair("server", days=-1)
    tls = {"tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key, "tls.server.mode": "enforcing"}
    options = [word for key, value in tls.items() for word in ("--set", f"{key}={value}")]
    server = start("serve", "--data", tmp_path / "data", *FREE, *CONSOLE, *options)

    assert "certificate has expired" in clients_seen(server, run_alone)["error"]
    server.stop()
    assert "cannot be verified" in server.process.communicate()[1]


def test_it_asks_the_cluster_of_its_server_whatever_variables_say(start, run_alone, monkeypatch):
    for name, value in {"NAMESRV_ADDR": "127.0.0.1:9", "HALFMOON_TLS": "true", "HALFMOON_TLS_CA": "/nonexistent"}.items():
        monkeypatch.setenv(name, value)
    server = start("serve", "--ephemeral", "--brokers", "2", *CONSOLE)

    assert "clients" in clients_seen(server, run_alone)


def test_a_port_that_is_taken_is_said_and_the_directory_not_touched(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = refused("serve", "--data", tmp_path / "new", *FREE, "--console", "--console-port", port)

    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", ["--console-port=0", "--console --console-port=65536", "--console --console-port=x"])
def test_a_wrong_port_is_refused(tmp_path, words):
    code, said = refused("serve", "--data", tmp_path / "new", *FREE, *words.split())

    assert code == 2
    assert "--console-port" in said


def test_nothing_of_the_console_is_imported_where_it_is_not_asked_for():
    code = "import sys, halfmoon.cli.servers; print([name for name in sys.modules if 'console' in name])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "[]\n"


def test_a_child_whose_server_died_before_it_said_anything_ends():
    command = [sys.executable, "-m", "halfmoon.console"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
