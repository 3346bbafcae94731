"""The two twins: every test of what both have runs once with each."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from halfmoon import columns
from halfmoon.columns import (
    answers,
    batch,
    completions,
    filtering,
    frames,
    keys,
    messages,
    properties,
    reading,
    record,
    signing,
    states,
)

try:
    import halfmoon_native
except ImportError:
    halfmoon_native: Any = None  # type: ignore[no-redef]

MISSING = "halfmoon-native is not installed: make setup builds it where cargo is"
OTHER = "the halfmoon-native that is installed has another interface"


class Twin:
    """The functions of one twin, under the names of `halfmoon.hot`."""

    def __init__(self, name: str, *modules: ModuleType) -> None:
        self.name = name
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


PYTHON = Twin(
    "python",
    reading,
    messages,
    batch,
    frames,
    properties,
    record,
    keys,
    answers,
    filtering,
    completions,
    states,
    signing,
)


def native() -> Twin:
    """Return the compiled twin; skips the test where there is none."""
    if halfmoon_native is None:
        pytest.skip(MISSING)
    if halfmoon_native.INTERFACE != columns.INTERFACE:
        pytest.skip(OTHER)
    return Twin("native", halfmoon_native)


@pytest.fixture(scope="module", params=["python", "native"])
def twin(request: pytest.FixtureRequest) -> Twin:
    """One twin, then the other."""
    return PYTHON if request.param == "python" else native()


@pytest.fixture(scope="module")
def twins() -> tuple[Twin, Twin]:
    """Both twins, the Python one first."""
    return PYTHON, native()


def joined(told):
    """Return answers with those of one connection in one piece, in the order in which connections come first."""
    found = {}
    for peer, frame in told:
        found[peer] = found.get(peer, b"") + frame
    return [*found.items()]


@pytest.fixture(scope="module")
def compiled() -> Twin:
    """The compiled twin, for what it alone does."""
    return native()
