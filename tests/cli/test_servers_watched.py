"""`--http-port`: servers as processes that are watched, and addresses that are refused."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from halfmoon.cli import servers
from halfmoon.errors import UsageError
from tests.cli.test_servers import FREE, refused, send, start

__all__ = ["start"]

pytestmark = pytest.mark.slow


def page(url: str) -> tuple[int, str]:
    """Return status and text of a page of monitoring."""
    with suppress(HTTPError), urlopen(url, timeout=60) as answer:  # from a server that this test started
        return answer.status, answer.read().decode()
    return 0, ""


def test_each_server_is_watched_where_its_ready_line_says(start, tmp_path):
    both = start("serve", "--data", tmp_path / "both", *FREE, "--http-port", "0")
    names = start("nameserver", "--data", tmp_path / "names", "--nameserver-port", "0", "--http-port", "0")
    alone = start("broker", "--data", tmp_path / "alone", "--broker-port", "0", "--http-port=0", "--nameserver", names.nameserver)
    send(both.nameserver, "1", "2", "3")

    assert 'halfmoon_messages_stored_total{broker="broker-a"} 3\n' in page(both.facts["http"] + "/metrics")[1]
    assert "halfmoon_nameserver_brokers 1\n" in page(names.facts["http"] + "/metrics")[1]
    for server in (both, names, alone):
        assert page(server.facts["http"] + "/healthz") == (200, '{"ok": true, "reasons": []}\n')
        assert page(server.facts["http"] + "/readyz") == (200, '{"ok": true, "reasons": []}\n')
        assert "//127.0.0.1:" in server.facts["http"]
    assert [server.stop() for server in (both, alone, names)] == [0, 0, 0]  # a broker is not ready without its name server


def test_a_port_for_monitoring_that_is_taken_is_said_and_the_directory_not_touched(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, said = refused("serve", "--data", tmp_path / "new", *FREE, "--http-port", other.getsockname()[1])
    assert code == 1
    assert "(http_port)" in said
    assert "Traceback" not in said
    assert not (tmp_path / "new").exists()


def test_nothing_of_monitoring_is_imported_where_it_is_not_asked_for():
    code = "import sys, halfmoon.cli.servers; print([name for name in sys.modules if 'prometheus' in name or 'monitoring' in name])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "[]\n"


def test_monitoring_for_other_machines_has_to_be_allowed(tmp_path):
    given = {"data": str(tmp_path), "http_port": "9100", "set": ["http_host=0.0.0.0"]}
    for name in ("serve", "nameserver", "broker"):
        with pytest.raises(UsageError, match=r"http_host=0\.0\.0\.0 .*--allow-remote"):
            servers.settings_from(name, given, {})
        assert servers.settings_from(name, {**given, "allow_remote": True}, {}).http.http_port == 9100
        assert servers.settings_from(name, {**given, "http_port": None}, {}).http.http_port is None
