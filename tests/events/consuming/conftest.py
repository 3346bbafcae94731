"""What tests of consumers at a real broker share: a shop a module, and a topic of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.events.consuming.shop import Shop, shop

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("consumers") / "store") as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"TP_ORDER_{next(_NUMBERS)}"
