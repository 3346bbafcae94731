"""Whatever an application does with its connection, an event is visible if and only if the row beside it was committed.

The machine is tested, too: it finds faults that are planted into the publisher, and nothing where the token row alone decides.
"""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest

from tests.events.machine.faults import FAULTS, only_checks_decide
from tests.events.machine.providers import SEARCHES, installed, running
from tests.events.machine.searching import search
from tests.events.real_databases import new_url

# What one run finds another may not draw: a failure is no reason to try again.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=0)]

SECONDS, EXAMPLES = 30.0, 1_000
"""Of one search. A slow machine plays fewer examples in its time."""


@pytest.mark.mission("002-52", "002-36", "002-30")
@pytest.mark.parametrize("names", SEARCHES.values(), ids=SEARCHES)
def test_no_program_of_verbs_parts_an_event_from_its_row(names: list[str], request: pytest.FixtureRequest):
    names = [name for name in names if installed(name)]
    played = paired = 0
    for name in names:
        threads = random.choice([False, True])
        with running(name, lambda dialect: new_url(request, dialect), threads=threads) as app:
            found = search(app, examples=EXAMPLES // len(names), seconds=SECONDS / len(names))
            print(f"{name}: {found}, {app.counts['paired']} pairs, {app.counts['asked']} programs needed the broker's check")
        if found.failure is not None:
            arguments = ["--provider", name, *["--threads"] * threads, "--program", *found.program]
            found.failure.add_note(f"repeat: python -m tests.events.machine {shlex.join(arguments)}")
            raise found.failure.with_traceback(None)
        played, paired = played + found.examples, paired + app.counts["paired"]

    assert paired > played / 20, "programs publish"


@pytest.mark.parametrize("provider", ["sqlite3", "session on sqlite3"])
def test_nothing_is_found_where_the_token_row_alone_decides(provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    only_checks_decide(monkeypatch)

    with running(provider, lambda dialect: f"sqlite:///{tmp_path / 'machine.db'}") as app:
        app.patience_s = 0
        result = search(app, examples=300, seconds=20, shrink_s=10)

    if result.failure is not None:
        raise result.failure


PLANTED = [(name, "sqlite3") for name in FAULTS]
PLANTED += [("a decision is taken from a hook instead of the row", "joined session on sqlite3")]


@pytest.mark.parametrize(("name", "provider"), PLANTED)
def test_a_planted_fault_is_found(name: str, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running(provider, lambda dialect: f"sqlite:///{tmp_path / 'machine.db'}") as app:
        usual = app.patience_s, app.checks_s
        app.patience_s = app.checks_s = 0.1
        FAULTS[name](monkeypatch)
        result = search(app, examples=1_000, shrink_s=10, same=True)
        monkeypatch.undo()

        assert result.failure is not None, f"not found in {result}"
        app.patience_s, app.checks_s = usual
        app.play(result.program)
