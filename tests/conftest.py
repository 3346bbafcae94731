"""What every test run does: Hypothesis without deadlines, slow files marked so, outcomes noted for `make mission`.

And the cluster that the tests of a module share.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from halfmoon.testing.local import LocalCluster
from tests.dealing import Dealing, left_out, may_be_late, rank, slow
from tests.topics import new_topic
from tools import mission

settings.register_profile("halfmoon", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("halfmoon"), max_examples=20)
settings.register_profile("fuzz", settings.get_profile("halfmoon"), max_examples=5_000, derandomize=False)
settings.load_profile("halfmoon")

_RECORDER = pytest.StashKey[mission.Recorder]()


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    """Settings of `cluster`'s broker, by their Java names; a module with others has a fixture of this name."""
    return {}


@pytest.fixture(scope="module")
def cluster(broker_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A name server and a broker that the tests of a module share."""
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "store", broker_settings) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A topic of the test's own, of one queue, at the module's cluster."""
    return new_topic(cluster.nameserver)


_END = pytest.StashKey[float]()
_TIME_IS_UP = "the time is up"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--seconds``, after which no further test starts."""
    parser.addoption("--seconds", type=float, default=None, help="start no test after this time, and say how many were left")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if the time given by ``--seconds`` is up."""
    if (end := item.config.stash.get(_END, None)) is not None and time.monotonic() > end:
        pytest.skip(_TIME_IS_UP)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show nothing for each test that ``--seconds`` leaves out: the last line counts them."""
    return ("skipped", "", "") if report.skipped and _TIME_IS_UP in str(report.longrepr) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ``--seconds`` left out."""
    left = [report for report in terminalreporter.getreports("skipped") if _TIME_IS_UP in str(report.longrepr)]
    if left:
        terminalreporter.write_line(f"{len(left)} tests did not start, as the time is up; make quick runs all", yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to note outcomes, in the process that hears of all tests. What is random is the order alone: tests have their seeds."""
    config.option.randomly_reset_seed = False
    if (seconds := config.getoption("--seconds")) is not None:
        config.stash[_END] = time.monotonic() + seconds
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    recorder = config.stash[_RECORDER] = mission.Recorder(mission.lines(mission.PAGE.read_text()))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Listener(recorder))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Dealing | None:
    """Deal out tests by what they share, with ``--dist loadgroup``."""
    return Dealing(config, log) if config.getoption("dist") == "loadgroup" else None


class _Listener:
    """Hears of every test, in whichever process it ran."""

    def __init__(self, recorder: mission.Recorder) -> None:
        self._recorder = recorder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how the set-up, the call and the end of a mission test went."""
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            self._recorder.again(report.nodeid)
        elif numbers := dict(report.user_properties).get("mission"):
            self._recorder.ended(report.nodeid, list(numbers), report.outcome)  # type: ignore[call-overload]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file of tests that ``-m`` leaves out, all of them."""
    if not collection_path.match("test_*.py"):
        return None
    file = collection_path.relative_to(mission.ROOT).as_posix()
    return left_out(file, collection_path.read_text(), config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the numbers of all marks before any test is left out, mark slow files and what ``--reruns`` never tries twice, put the
    longest first.

    Comes after pytest-randomly, and keeps its order among those of one place.
    """
    for item in items:
        if slow(item.nodeid):
            item.add_marker("slow")
        if config.getoption("reruns", None) and not may_be_late(item.nodeid):
            item.add_marker(pytest.mark.flaky(reruns=0))
        try:
            config.stash[_RECORDER].collected(item.nodeid, _numbers(item))
        except ValueError as wrong:
            raise pytest.UsageError(str(wrong)) from None
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave eleven thousand tests out of every garbage collection: one that looks at them all takes a second."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write on each report which lines of the mission it is about."""
    report = yield
    # what a test logged may be no text that another process can be sent
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    if numbers := _numbers(item):
        report.user_properties.append(("mission", numbers))
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say what repeats the order of this run: quiet as it is, pytest leaves the plugin's own line out."""
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    seed = session.config.getoption("randomly_seed", None)
    if terminal is not None and seed is not None:
        terminal.write_line(f"order: --randomly-seed={seed}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Merge this run's outcomes with those before. A run of single tests (``file::name``, ``--last-failed``) forgets none."""
    if hasattr(session.config, "workerinput"):
        return
    single = mission.is_of_single_tests(session.config.args, session.config.getoption("lf", False))
    earlier = mission.load()
    recorder = session.config.stash[_RECORDER]
    mission.save({**earlier, **recorder.merged({})} if single else recorder.merged(_still_there(earlier)))


def _numbers(item: pytest.Item) -> list[str]:
    return [number for mark in item.iter_markers("mission") for number in mark.args]


def _still_there(results: dict[str, object]) -> dict[str, object]:
    return {n: r for n, r in results.items() if (mission.ROOT / Path(n.partition("::")[0])).exists()}
