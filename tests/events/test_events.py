"""The public names of events: each is there, loaded when it is first used, and others are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from halfmoon import events


def test_every_public_name_is_there() -> None:
    assert dir(events) == sorted(events.__all__)
    assert all(getattr(events, name).__module__.startswith("halfmoon.events.") for name in events.__all__)


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match=r"'halfmoon\.events' has no attribute 'Publsher'"):
        events.Publsher  # noqa: B018


def test_declaring_a_consumer_loads_no_client() -> None:
    source = "import sys; from halfmoon.events import on; print(sorted(n for n in sys.modules if n.startswith('halfmoon.client')))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
