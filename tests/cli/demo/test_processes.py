"""The processes of the demo: what is said when one fails."""

from __future__ import annotations

import os

import pytest

from halfmoon.cli.demo.processes import DemoFailed, Processes
from tests.waiting import until


def test_a_process_that_fails_is_reported_with_its_last_words(tmp_path):
    with Processes(tmp_path) as cast:
        cast.start("order service", "halfmoon.cli.demo.orders", "--bogus")
        with pytest.raises(DemoFailed, match=r"order service ended with 2(.|\n)*--nameserver"):
            _check_until_it_fails(cast)


def _check_until_it_fails(cast: Processes) -> None:
    while True:
        cast.check("order service")


def test_a_broker_that_cannot_start_is_reported_at_once(tmp_path):
    (tmp_path / "store").write_text("a file where a directory should be")

    with Processes(tmp_path) as cast, pytest.raises(DemoFailed, match="broker ended"):
        cast.start_broker(0, 0)


def test_whoever_still_runs_at_the_end_is_stopped(tmp_path):
    with Processes(tmp_path) as cast:
        cast.start_broker(0, 0)
        (process,) = cast._running.values()

    assert process.returncode == 0


@pytest.mark.parametrize("end", [Processes.kill, Processes.stop])
def test_what_one_of_a_family_started_dies_with_it(tmp_path, end):
    with Processes(tmp_path) as cast:
        cast.start("parent", "tests.cli.demo.parent", family=True)
        until(lambda: bool(cast.lines("parent")))
        child = cast.lines("parent")[0]["child"]
        os.kill(child, 0)  # it lives

        end(cast, "parent")

        until(lambda: not _lives(child))


def _lives(process: int) -> bool:
    """Whether a process is there and no zombie that nobody has waited for."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
