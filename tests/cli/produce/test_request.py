"""`halfmoon request` and `halfmoon reply`, one talking to the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


@contextmanager
def replying(nameserver: str, topic: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `halfmoon reply` in a process of its own, once it is a member of its group."""
    words = [sys.executable, "-m", "halfmoon.cli.main", "reply", topic, *options, "-n", nameserver, "-g", f"G_{topic}"[:120]]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "waiting for requests" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("how", "body", "answer"),
    [(("42",), "?", "42\n"), (("--echo",), "訂單", "訂單\n"), (("--command", "tr a-z A-Z"), "loud", "LOUD\n")],
    ids=["body", "echo", "command"],
)
def test_a_request_prints_what_a_consumer_replies(run: Run, topic, cluster, how, body, answer):
    with replying(cluster.nameserver, topic, *how, "--count", "1") as process:
        ran = run("request", topic, body, "--wait", "20s")
        said, _ = process.communicate(timeout=30)

    assert (ran.code, ran.out) == (0, answer)
    assert said.endswith(" replied\n")
    assert process.returncode == 0


def test_a_request_that_nobody_replies_to_fails_and_says_so(run: Run, topic):
    ran = run("request", topic, "?", "--wait", "300ms")

    assert ran.code == 1
    assert "no reply came within 300 ms" in ran.err


def test_a_message_that_is_no_request_is_left_out_and_named(run: Run, topic, cluster):
    with replying(cluster.nameserver, topic, "42", "--count", "1") as process:
        run("produce", topic, "no question")
        said, _ = process.communicate(timeout=30)

    assert "left out: message" in said
    assert "is no request" in said


def test_a_command_that_fails_ends_the_replies(run: Run, topic, cluster):
    with replying(cluster.nameserver, topic, "--command", "false") as process:
        assert run("request", topic, "?", "--wait", "5s").code == 1
        _, said = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "the command of --command failed" in said
