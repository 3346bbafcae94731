"""Nothing that comes from outside forges a line of a log, whoever formats it."""

from __future__ import annotations

import io
import logging
import logging.config
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halfmoon.errors import UsageError
from halfmoon.logs import (
    ERRORS_MAX,
    FRAMES_MAX,
    KINDS_MAX,
    LENGTH_MAX,
    LINES_A_MINUTE,
    NAMES,
    CountedLog,
    RateLimitedLog,
    escape,
    escaped,
    listed,
    log_failure,
    set_up,
)

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
    assert [line[:20] for line in lines if "forged" in line] == ["ValueError: x\\r\\n202", "RuntimeError: x\\r\\n2"]
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines.count("Traceback (most recent call last):") == 2


@pytest.mark.parametrize("text", ["y" * (LENGTH_MAX + 5), "\u202e" * LENGTH_MAX, "\x1b" * 1_000_000], ids=["plain", "bidi", "1 MB"])
def test_a_text_without_end_is_cut_and_says_how_much_is_missing_however_often_it_is_escaped(
    users_log: io.StringIO, text: str
) -> None:
    logging.getLogger().handlers[-1].addFilter(escape)
    logging.getLogger("halfmoon.broker").warning("%s", text)
    line = users_log.getvalue()
    shown, _, told = line.removeprefix("WARNING ").removesuffix("\n").partition(" ... and ")
    missing = int(told.removesuffix(" characters more"))
    assert len(line) <= LENGTH_MAX + len("WARNING \n")
    assert shown == escaped(text[:1]) * (len(text) - missing)


@pytest.mark.parametrize("name", ["halfmoon", "halfmoon.broker"])
def test_a_handler_on_a_logger_of_ours_gets_the_escaped_text_also_when_a_table_sets_it_up(name: str) -> None:
    stream = io.StringIO()
    handler = {"class": "logging.StreamHandler", "stream": stream}
    logger = logging.getLogger(name)
    before = logger.handlers[:], logger.level, logger.propagate
    try:
        logging.config.dictConfig(
            {"version": 1, "incremental": False, "disable_existing_loggers": False, "handlers": {"one": handler}}
            | {"loggers": {name: {"handlers": ["one"], "propagate": False}}}
        )
        logging.getLogger("halfmoon.broker").warning("%s", HOSTILE)
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
    assert stream.getvalue() == "x\\r\\n2026-01-01 ERROR forged\\x1b[31m\\x00\\x9b\\u2028\\u202e\\ud800\n"


def test_every_logger_of_the_package_escapes() -> None:
    sources = Path(__file__).parent.parent / "src"
    text = "\n".join(path.read_text() for path in sources.rglob("*.py"))
    assert set(re.findall(r"getLogger\(([^)]*)\)", text)) - {"name"} - {f'"{name}"' for name in NAMES} == set(), "add it to NAMES"


def _shown(users_log: io.StringIO, error: BaseException) -> list[str]:
    logging.getLogger("halfmoon.client").error("it failed", exc_info=error)
    return users_log.getvalue().splitlines()


OURS = """
def call(function):
    return function()

def caught(pool, function):
    try:
        pool.submit(call, function).result()
    except Exception as exc:
        return exc
"""


def _caught(function: Callable[[], object]) -> Exception:
    """Return what a function raises that a module of Halfmoon calls in a thread."""
    exec(compile(OURS, "ours.py", "exec"), ours := {"__name__": "halfmoon.client.core.calling"})
    with ThreadPoolExecutor(1) as pool:
        error: Exception = ours["caught"](pool, function)  # type: ignore[operator]
    return error


def _priced() -> None:
    raise _caught(_prices)


def _prices() -> None:
    try:
        raise KeyError("price")
    except KeyError as exc:
        raise LookupError("no price") from exc


def test_a_failure_of_the_users_code_is_one_line_and_a_traceback_without_frames_of_ours(users_log: io.StringIO) -> None:
    log_failure(
        logging.getLogger("halfmoon.client"),
        "listener failed",
        _caught(_priced),
        {"group": "C", "tag": None, "offset": 0},
        "tried again in 1.0s",
    )
    header, *lines = users_log.getvalue().splitlines()
    assert header == "ERROR listener failed: group=C offset=0; tried again in 1.0s"
    assert lines[-1] == "LookupError: no price"
    assert lines.count("KeyError: 'price'") == 1
    assert "ours.py" not in users_log.getvalue()
    frames = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")]
    assert frames == ["_prices", "_priced", "result", "__get_result", "run", "_prices"], "of the cause, then of the error"


def test_debug_shows_all_frames_of_a_failure(users_log: io.StringIO) -> None:
    log = logging.getLogger("halfmoon.client")
    log.setLevel(logging.DEBUG)
    try:
        log_failure(log, "listener failed", _caught(_prices), {})
    finally:
        log.setLevel(logging.NOTSET)
    assert 'File "ours.py", line 7, in caught' in users_log.getvalue()


def test_an_error_of_ours_on_purpose_is_its_text_alone(users_log: io.StringIO) -> None:
    error = _caught(len)  # type: ignore[arg-type]
    refused = UsageError("declare it with async def").with_traceback(error.__traceback__)
    log_failure(logging.getLogger("halfmoon.client"), "listener failed", refused, {})
    assert users_log.getvalue().splitlines()[1:] == ["halfmoon.errors.UsageError: declare it with async def"]


def test_a_mistake_of_ours_is_shown_with_our_frames(users_log: io.StringIO) -> None:
    log_failure(logging.getLogger("halfmoon.client"), "listener failed", _caught(len), {})  # type: ignore[arg-type]
    assert users_log.getvalue().splitlines()[-1] == "TypeError: len() takes exactly one argument (0 given)"
    assert 'File "ours.py", line 3, in call' in users_log.getvalue()


def test_a_chain_of_causes_that_is_cut_says_so(users_log: io.StringIO) -> None:
    first = error = ValueError("the last one")
    for _ in range(ERRORS_MAX + 3):
        error.__cause__ = error = ValueError("a cause")  # type: ignore[assignment]
    lines = _shown(users_log, first)
    assert lines[1] == f"... and more: {ERRORS_MAX} exceptions are shown"
    assert lines[-1] == "ValueError: the last one"
    assert sum(line.startswith("ValueError") for line in lines) == ERRORS_MAX


def test_a_chain_that_comes_back_to_itself_ends(users_log: io.StringIO) -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert _shown(users_log, one)[1] == "... and an exception that is shown already"


def test_the_members_of_a_group_are_shown_escaped_with_their_causes_and_what_is_cut_says_so(users_log: io.StringIO) -> None:
    member = ValueError(HOSTILE)
    member.__cause__ = KeyError("the root")
    group = ExceptionGroup("several", [ExceptionGroup("inner", [member]), *(OSError(f"number {n}") for n in range(100))])
    lines = _shown(users_log, group)
    assert any(line.strip(" |") == "KeyError: 'the root'" for line in lines)
    assert sum("forged" in line for line in lines) == 1
    assert lines[-1] == f"  +- ... and {100 - (ERRORS_MAX - 4)} of its 101 exceptions more"


def test_frames_that_are_left_out_are_counted(users_log: io.StringIO) -> None:
    def deeper(left: int) -> None:
        if not left:
            raise ValueError("deep")
        deeper(left - 1)

    with pytest.raises(ValueError, match="deep") as failed:
        deeper(FRAMES_MAX + 10)
    lines = _shown(users_log, failed.value)
    assert lines[2] == "  ... 12 frames left out"


def test_an_exception_without_a_text_of_its_own_stops_no_program_that_logs_it(users_log: io.StringIO) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert _shown(users_log, Mute())[-1].endswith("Mute: <its text is not available: RuntimeError>")


def test_names_that_are_left_out_are_counted() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 others"


def test_what_can_be_printed_stays_as_it_is() -> None:
    text = "größer 北京 \\ 'quoted' 100 %"
    assert escaped(text) == text


def test_a_program_without_handlers_hears_warnings_once_and_escaped() -> None:
    code = "import logging, halfmoon; logging.getLogger('halfmoon.client').warning('no route: %s', 'a\\nb')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == "no route: a\\nb\n"


def test_the_package_sets_it_up_once() -> None:
    set_up()
    assert [logging.getLogger(name).filters.count(escape) for name in NAMES] == [1] * len(NAMES)


def test_warnings_beyond_the_rate_are_counted_and_reported_once_the_minute_is_over(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("halfmoon.test"), 0)
    for number in range(LINES_A_MINUTE + 7):
        log.warning("line %d", number)
    log.tick(59_999)
    assert len(caplog.records) == LINES_A_MINUTE

    log.tick(60_000)
    assert caplog.records[-1].getMessage() == "suppressed 7 more warnings in the last minute"
    log.warning("again")
    log.tick(120_000)
    assert len(caplog.records) == LINES_A_MINUTE + 2


def test_a_kind_is_logged_at_once_and_then_each_minute_with_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    log = CountedLog(logging.getLogger("halfmoon.test"), "refused", 0)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    for _ in range(5):
        log.count("10.0.0.1")
    log.count("10.0.0.2")
    log.tick(59_999)
    assert lines() == ["refused: 10.0.0.1", "refused: 10.0.0.2"]
    log.tick(60_000)
    assert lines() == ["refused: 10.0.0.1, 4 times in the last minute"]
    log.count("10.0.0.1")
    log.tick(120_000)
    assert lines() == ["refused: 10.0.0.1, 1 times in the last minute"], "who goes on gets one line a minute"
    log.tick(180_000)
    log.count("10.0.0.1")
    assert lines() == ["refused: 10.0.0.1"]


def test_kinds_beyond_the_bound_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    log = CountedLog(logging.getLogger("halfmoon.test"), "refused", 0)
    for number in range(KINDS_MAX + 1000):
        log.count(f"10.0.{number}")
    assert len(caplog.records) == KINDS_MAX
    log.tick(60_000)
    assert [record.getMessage() for record in caplog.records[KINDS_MAX:]] == ["refused: others, 1000 times in the last minute"]
