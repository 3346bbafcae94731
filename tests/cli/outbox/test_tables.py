"""How an outbox is shown: figures one a line, rows with their next attempt."""

from __future__ import annotations

import pytest

from halfmoon.cli.outbox.tables import show_backlog
from halfmoon.events.outbox.status import OutboxFigures


@pytest.mark.parametrize(("failed", "hint"), [(0, False), (2, True)])
def test_figures_are_shown_with_what_to_do_about_failed_events(capsys: pytest.CaptureFixture[str], failed: int, hint: bool):
    backlog = OutboxFigures(backlog=4, waiting=3, sending=1, retrying=0, failed=failed, oldest_age_ms=61_000)
    show_backlog(backlog, {})

    shown = capsys.readouterr().out
    assert shown.startswith("4 to be sent, the oldest for 1m01s\n")
    assert ("halfmoon outbox retry" in shown) == hint
