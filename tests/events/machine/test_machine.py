"""Whatever an application does with its connection, an event is visible if and only if the row beside it was committed."""

from __future__ import annotations

import shlex

import pytest

from tests.events.machine.providers import DRIVERS, PROVIDERS, running
from tests.events.machine.searching import Search, search

pytestmark = pytest.mark.slow


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
