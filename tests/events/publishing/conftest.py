"""What tests of publishing share: a transport that records, and a publisher on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halfmoon.events import Publisher
from tests.events.fakes import FakeTransport


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def events(transport: FakeTransport) -> Iterator[Publisher]:
    """A publisher without a database whose check says commit."""
    with Publisher("P_shop", transport=transport, tries_max=2, timeout_ms=2_000) as publisher:
        publisher.check()(lambda event, context: None)
        yield publisher
