"""Whatever an application does with its connection, an event is visible if and only if the row beside it was committed.

The machine is tested, too: it finds faults that are planted into the publisher, and nothing where the token row alone decides.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.events.machine.faults import FAULTS, only_checks_decide
from tests.events.machine.providers import DRIVERS, PROVIDERS, running
from tests.events.machine.searching import EXAMPLES, Search, search

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLES, reason="searches by hand: HALFMOON_MACHINE_EXAMPLES=2000, or python -m tests.events.machine"),
]


@pytest.mark.mission("002-52", "002-36", "002-30")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_program_of_verbs_parts_an_event_from_its_row(provider: str, request: pytest.FixtureRequest):
    def url(dialect: str) -> str:
        name = {"sqlite": "sqlite_url", "postgresql": "postgres_url", "mysql": "mariadb_url"}[dialect]
        found: str = request.getfixturevalue(name)
        return found

    if (driver := provider.split()[-1]) in DRIVERS:
        pytest.importorskip(driver)
    with running(provider, url) as app:
        result = search(app)
        print(f"{provider}: {result}, {app.counts['paired']} pairs, {app.counts['asked']} programs needed the broker's check")

    if result.failure is not None:
        result.failure.add_note(f"repeat: python -m tests.events.machine {shlex.join(_options(provider, result))}")
        raise result.failure.with_traceback(None)
    assert app.counts["paired"] > result.examples / 10, "programs publish"


def _options(provider: str, result: Search) -> list[str]:
    return ["--provider", provider, "--program", *result.program]


# ---------------------------------------------------------------- the machine itself


@pytest.mark.parametrize("provider", ["sqlite3", "session on sqlite"])
def test_nothing_is_found_where_the_token_row_alone_decides(provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    only_checks_decide(monkeypatch)

    with running(provider, lambda dialect: f"sqlite:///{tmp_path / 'machine.db'}") as app:
        app.patience_s = 0
        result = search(app, examples=300, seconds=20, shrink_s=10)

    if result.failure is not None:
        raise result.failure


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running("sqlite3", lambda dialect: f"sqlite:///{tmp_path / 'machine.db'}") as app:
        usual = app.patience_s, app.checks_s
        app.patience_s = app.checks_s = 0.1
        FAULTS[name](monkeypatch)
        result = search(app, examples=1_000, seconds=60, shrink_s=10)
        monkeypatch.undo()

        assert result.failure is not None, f"not found in {result}"
        app.patience_s, app.checks_s = usual
        app.play(result.program)
