"""Shops on a database of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.events.sqlalchemy.shops import Shop, opened


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with opened(database_url) as shop:
        yield shop


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    with opened(sqlite_url) as shop:
        yield shop
