"""`halfmoon console`: where it may listen, what it says when it is ready, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from halfmoon.cli.console import listening
from halfmoon.cli.console.commands import public_url_of
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms
from halfmoon.errors import UsageError
from tests.authority import Authority
from tests.cli.console.browsing import Browser
from tests.cli.test_servers import refused, start
from tests.waiting import until

__all__ = ["start"]

NOWHERE = ("-n", "127.0.0.1:9")
"""A cluster that is not asked: who has not logged in sees none of it."""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", ""])
def test_an_address_that_others_reach_is_refused_without_a_certificate_or_a_proxy(run_alone, host):
    ran = run_alone("console", *NOWHERE, "--host", host)

    assert (ran.code, ran.out) == (2, "")
    assert "--certificate" in ran.err
    assert "--behind-proxy" in ran.err


def test_a_proxy_without_tls_makes_no_address_safe_that_others_reach(run_alone):
    ran = run_alone("console", *NOWHERE, "--host", "0.0.0.0", "--behind-proxy", "http://host.example")

    assert ran.code == 2
    assert "as they are" in ran.err


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://host.example", "https://host.example"),
        ("https://host.EXAMPLE:443/", "https://host.example"),
        ("http://host.example:8080", "http://host.example:8080"),
        ("https://[::1]:80", "https://[::1]:80"),
    ],
)
def test_the_url_of_a_proxy_is_as_browsers_write_it(text, url):
    assert public_url_of(text) == url


@pytest.mark.parametrize(
    "text", ["", "host.example", "ftp://host.example", "https://", "https://host.example/console", "https://host@host",
             "https://host.example:port", "https://host.example?x=1", "https://[::1"],
)  # fmt: skip
def test_what_is_no_url_of_a_proxy_is_refused(text):
    with pytest.raises(UsageError, match="--behind-proxy"):
        public_url_of(text)


@pytest.mark.parametrize("words", ["--port 1 user list", "--data x user list", "--private-key x", "--certificate /dev/null"])
def test_options_that_make_no_sense_are_refused(run_alone, tmp_path, words):
    ran = run_alone("console", *([] if "user" in words else ["--data", tmp_path, "--port", "0"]), *words.split())

    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err


def test_without_its_extra_it_says_how_to_get_it(run_alone, monkeypatch):
    monkeypatch.setattr(listening, "find_spec", lambda name: None)
    ran = run_alone("console", *NOWHERE)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.rstrip().endswith("pip install 'halfmoon[console]'")


def test_a_port_that_is_taken_is_said_in_a_line(run_alone, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ran = run_alone("console", *NOWHERE, "--data", tmp_path, "--port", str(other.getsockname()[1]))

    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_a_signal_ends_it_cleanly(start, tmp_path, number):
    started = start("console", *NOWHERE, "--data", tmp_path, "--port", "0")

    with Browser(started.facts["url"]) as browser:
        page = browser.get("/clients", follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/login")
    assert "halfmoon console user add NAME --role operator" in page.text
    assert started.facts["users"] == str(tmp_path / "console/console.db")
    assert started.facts["user_count"] == 0
    assert started.stop(number) == 0
    assert started.process.communicate() == ("", "")


@pytest.mark.slow
def test_without_users_a_second_line_has_the_command_that_makes_one(tmp_path):
    def lines() -> list[str]:
        command = [
            sys.executable,
            "-m",
            "halfmoon.cli.main",
            "console",
            *NOWHERE,
            "--data",
            str(tmp_path / "my data"),
            "--port",
            "0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.5)  # a second line follows at once, or never
            process.terminate()
            return [first, *process.stdout]

    ready, hint = lines()
    assert ready.startswith("halfmoon console ready: http://127.0.0.1:")
    assert ready.endswith(f", users in {tmp_path}/my data/console/console.db\n")
    added = subprocess.run(
        ["/bin/sh", "-c", hint.partition(": ")[2].replace("halfmoon", f"{sys.executable} -m halfmoon", 1).replace("NAME", "ada")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "user ada is added" in added.stdout
    assert len(lines()) == 1


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(start, tmp_path):
    started = start("console", *NOWHERE, "--data", tmp_path, "--port", "0")
    host, port = started.facts["url"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as unfinished:
        unfinished.sendall(
            b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na"
        )
        with Browser(started.facts["url"]) as browser:
            browser.get("/login")
        started.process.terminate()
        time.sleep(0.3)  # it waits for the form, two seconds at most
        assert started.stop() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "halfmoon-{port}-form="),
        (["--behind-proxy", "https://host.example"], "__Host-halfmoon-form="),
        (["--behind-proxy", "http://host.example:81"], "halfmoon-81-form="),
    ],
)
def test_cookies_are_secure_where_browsers_speak_tls(start, tmp_path, options, name):
    started = start("console", *NOWHERE, "--data", tmp_path, "--port", "0", *options)

    with Browser(started.facts["url"]) as browser:
        cookie = browser.get("/login").headers["set-cookie"]
    assert cookie.startswith(name.format(port=started.facts["url"].rpartition(":")[2]))
    assert ("; Secure" in cookie) == name.startswith("__Host-")


@pytest.mark.slow
def test_with_a_certificate_it_speaks_https_on_any_address(start, tmp_path):
    authority = Authority(tmp_path / "certificates")
    pair = authority.pair("console")
    started = start(
        *("console", *NOWHERE, "--data", tmp_path, "--port", "0"),
        *("--host", "0.0.0.0", "--certificate", pair.cert, "--private-key", pair.key),
    )

    port = started.facts["url"].rpartition(":")[2]
    with Browser(f"https://127.0.0.1:{port}", authority.trusting()) as browser:
        assert "; Secure" in browser.get("/login").headers["set-cookie"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--behind-proxy", "http://host.example"]])
def test_only_a_proxy_that_was_stated_says_where_browsers_are(start, tmp_path, options):
    started = start("console", *NOWHERE, "--data", tmp_path, "--port", "0", *options)
    headers = {"X-Forwarded-For": "198.51.100.3, 203.0.113.9", "Host": "host.example", "Origin": "http://host.example"}

    with Browser(started.facts["url"], headers=headers) as browser:
        assert browser.send_form("/login", name="eve", password="guess").status_code == 403
    entry = Audit(tmp_path / "console", now_ms).read(1)[0]
    assert entry.address == ("203.0.113.9" if options else "127.0.0.1")


@pytest.mark.slow
def test_a_running_console_knows_at_once_who_is_added_and_who_is_removed(start, run_alone, tmp_path):
    started = start("console", *NOWHERE, "--data", tmp_path, "--port", "0")
    with Browser(started.facts["url"]) as browser:
        browser.get("/login")

        added = run_alone("console", "user", "add", "ada", "--role", "viewer", "--data", tmp_path, "--json").json()
        assert "There are no users yet" not in browser.get("/login").text
        browser.log_in("ada", added["password"])
        assert browser.get("/password").status_code == 200

        run_alone("console", "user", "remove", "ada", "--yes", "--data", tmp_path)
        assert browser.get("/password").headers["location"].startswith("/login")
    until(lambda: started.stop() == 0)


@pytest.mark.slow
def test_a_taken_port_ends_a_process_with_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, said = refused("console", *NOWHERE, "--data", tmp_path, "--port", other.getsockname()[1])

    assert code == 1
    assert len(said.splitlines()) == 1
