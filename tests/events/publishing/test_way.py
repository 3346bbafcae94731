"""Functions and files that a transactional publish passes in the publisher's process: no more than are promised."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import pytest

from halfmoon.events import Publisher, local_transaction
from halfmoon.testing.local import LocalCluster

pytestmark = pytest.mark.slow

FUNCTIONS_MAX, FILES_MAX = 131, 37
"""Of a publish and the end of its block, without a database and OpenTelemetry. They only shrink (decision 29)."""

WARM, WATCHED = 5, 5
"""Publishes before one is watched, and those that are watched: into some a timer rings."""


class Watch:
    """The functions of ours that this thread enters while it is on, by file and name; no comprehensions, and not the twin's."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def __enter__(self) -> Watch:
        sys.setprofile(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _entered(self, frame: FrameType, event: str, what: Any) -> None:
        code = frame.f_code
        found = re.search(r"/src/halfmoon/(?!columns/)(.+)\.py$", code.co_filename)
        if event == "call" and "<" not in code.co_name and found:
            self.seen.add((found[1], code.co_qualname))


def test_a_publish_passes_no_more_functions_and_files_than_are_promised(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)  # another test of this process may have loaded it
    ways = []
    with Publisher("P_way", cluster.nameserver, timeout_ms=60_000) as events:
        events.check()(lambda event, context: None)
        for number in range(WARM + WATCHED):
            watch, block = Watch(), local_transaction()
            block.__enter__()
            with watch:
                events.publish(topic, "EC_PAID", {"number": number}, transactional=True)
                block.__exit__(None, None, None)
            if number >= WARM:
                ways.append(watch.seen)

    way = min(ways, key=len)
    files = {file for file, _ in way}
    assert (len(way) <= FUNCTIONS_MAX, len(files) <= FILES_MAX) == (True, True), f"{len(way)} in {len(files)}: {sorted(way)}"
