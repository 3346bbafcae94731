"""The processes of the demo: what is said when one fails."""

from __future__ import annotations

import pytest

from halfmoon.cli.demo.processes import Cast, DemoFailed


def test_a_process_that_fails_is_reported_with_its_last_words(tmp_path):
    with Cast(tmp_path) as cast:
        cast.start("order service", "halfmoon.cli.demo.orders", "--bogus")
        with pytest.raises(DemoFailed, match=r"order service ended with 2(.|\n)*--nameserver"):
            _check_until_it_fails(cast)


def _check_until_it_fails(cast: Cast) -> None:
    while True:
        cast.check("order service")


def test_a_broker_that_cannot_start_is_reported_at_once(tmp_path):
    (tmp_path / "store").write_text("a file where a directory should be")

    with Cast(tmp_path) as cast, pytest.raises(DemoFailed, match="broker ended"):
        cast.start_broker(0, 0)


def test_whoever_still_runs_at_the_end_is_stopped(tmp_path):
    with Cast(tmp_path) as cast:
        cast.start_broker(0, 0)
        (process,) = cast._running.values()

    assert process.returncode == 0
