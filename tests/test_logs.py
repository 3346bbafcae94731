"""Nothing that comes from outside forges a line of a log, whoever formats it."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

import halfmoon
from halfmoon.logs import LENGTH_MAX, Escaping, escaped

HOSTILE = "x\r\n2026-01-01 ERROR forged\x1b[31m\x00\x9b\u2028\u202e\ud800"


@pytest.fixture
def users_log() -> Iterator[io.StringIO]:
    """A log as a program with handlers of its own has it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("name", ["halfmoon.nameserver", "halfmoon.broker.delay", "halfmoon.client", "halfmoon.audit"])
def test_a_text_from_outside_makes_no_second_line_and_no_colour(users_log: io.StringIO, name: str) -> None:
    logging.getLogger(name).warning("broker fell silent: address=%s", HOSTILE)
    assert users_log.getvalue() == (
        "WARNING broker fell silent: address=x\\r\\n2026-01-01 ERROR forged\\x1b[31m\\x00\\x9b\\u2028\\u202e\\ud800\n"
    )


def test_the_text_of_an_exception_is_escaped_in_its_traceback_and_in_those_of_its_causes(users_log: io.StringIO) -> None:
    try:
        try:
            raise ValueError(HOSTILE)
        except ValueError as exc:
            raise RuntimeError(HOSTILE) from exc
    except RuntimeError as exc:
        logging.getLogger("halfmoon.broker").error("a turn failed", exc_info=exc)
    lines = users_log.getvalue().splitlines()
    assert "2026-01-01 ERROR forged" not in [line[:23] for line in lines]
    assert [line[:20] for line in lines if "forged" in line] == ["builtins.ValueError:", "builtins.RuntimeErro"]
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines.count("Traceback (most recent call last):") == 2


def test_a_text_without_end_is_cut(users_log: io.StringIO) -> None:
    logging.getLogger("halfmoon.broker").warning("%s", "y" * (LENGTH_MAX + 5))
    assert users_log.getvalue() == f"WARNING {'y' * LENGTH_MAX} ... and 5 characters more\n"


def test_what_can_be_printed_stays_as_it_is() -> None:
    text = "größer 北京 \\ 'quoted' 100 %"
    assert escaped(text) == text


def test_a_program_without_handlers_hears_warnings_once_and_escaped() -> None:
    code = "import logging, halfmoon; logging.getLogger('halfmoon.client').warning('no route: %s', 'a\\nb')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == "no route: a\\nb\n"


def test_the_package_sets_it_up_once() -> None:
    assert halfmoon.__version__
    assert sum(isinstance(handler, Escaping) for handler in logging.getLogger("halfmoon").handlers) == 1
