"""Our servers or Apache's, for tests that say the same of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.interop.apache import Cluster
from tests.interop.ours import Serve


@contextmanager
def running(who: str, home: Path, settings: Mapping[str, object] | None = None) -> Iterator[Serve | Cluster]:
    """Run ``ours``, or Apache's servers of the version named, in a directory of their own until the block ends."""
    found: Serve | Cluster = Serve(home / "data", settings=settings) if who == "ours" else Cluster(who, home, settings=settings)
    found.start()
    yield found
    found.kill()
