"""What the tables of outcomes share: a broker that asks soon, and shops in real databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.shop import CHECKS, Shop

_numbers = itertools.count(1)

MakeShop = Callable[..., Shop]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker for the tests of a module; one that stops it starts it again."""
    with LocalCluster(tmp_path_factory.mktemp("outcomes") / "store", CHECKS) as cluster:
        yield cluster


@pytest.fixture
def make_shop(broker: LocalCluster, database_url: str) -> Iterator[MakeShop]:
    """Makes shops in this test's database, SQLite's and then PostgreSQL's, each with a topic and groups of its own."""
    made: list[Shop] = []

    def make(**settings: Any) -> Shop:
        made.append(Shop(broker, database_url, f"outcome_{next(_numbers)}", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """A shop as it stands in the tables: two-phase events, one attempt."""
    return make_shop()
