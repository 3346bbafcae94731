"""What tests of publishing share: a transport that records, and a publisher on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.events import Publisher
from tests.events.fakes import Blocks, FakeTransport


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def events(transport: FakeTransport) -> Iterator[Publisher]:
    """A publisher without a database whose check says commit."""
    with Publisher("P_shop", transport=transport, tries_max=2, timeout_ms=2_000) as publisher:
        publisher.check()(lambda event, context: None)
        yield publisher


@pytest.fixture
def database(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "shop.db")


@pytest.fixture
def shop(transport: FakeTransport, database: Blocks) -> Iterator[Publisher]:
    """A publisher with a database and token rows."""
    with Publisher("P_shop", transport=transport, provider=database, tries_max=1) as publisher:
        publisher.create_tables()
        yield publisher
