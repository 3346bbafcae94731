"""What tests of consumers at a real broker share: a shop a module, and a topic of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.events.consuming.shop import BusShop, Shop, shop

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("consumers") / "store") as running:
        yield running


@pytest.fixture(params=["bus", pytest.param("broker", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Shop | BusShop:
    """A shop on a bus, and the shared one on a broker: consumers behave alike."""
    return BusShop() if request.param == "bus" else request.getfixturevalue("shared")  # type: ignore[no-any-return]


@pytest.fixture
def topic() -> str:
    return f"TP_ORDER_{next(_NUMBERS)}"
