"""Runs each promise with every adapter that can be asked for it; an adapter is made once, with a database of its own."""

from __future__ import annotations

import pytest

from tests.events.contract.adapter import Adapter
from tests.events.contract.adapters import ADAPTERS, DRIVERS, made, traits_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask those that have the traits which a promise needs (`needs`)."""
    if "data" in metafunc.fixturenames:
        needed: frozenset[str] = getattr(metafunc.function, "needs", frozenset())
        names = [name for name in ADAPTERS if needed <= traits_of(name)]
        if metafunc.module.__name__.endswith(("finding", "histories")):  # where another driver of the same kind changes nothing
            names = [name for name in names if name not in DRIVERS]
        marks = {name: [] if ADAPTERS[name][1] == "sqlite" else [pytest.mark.slow] for name in names}
        metafunc.parametrize("data", [pytest.param(name, marks=marks[name]) for name in names], indirect=True, ids=names)


@pytest.fixture(scope="session")
def _adapters() -> dict[str, Adapter]:
    return {}


@pytest.fixture
def data(request: pytest.FixtureRequest, _adapters: dict[str, Adapter], tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """An adapter by its name, on empty tables."""
    name = request.param
    if name not in _adapters:
        dialect = ADAPTERS[name][1]
        if dialect == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('contract') / 'rows.db'}"
        else:
            url = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[dialect]).create()
        _adapters[name] = made(name, url)
    return _adapters[name]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a promise where its adapter's transactions live."""
    adapter = pyfuncitem.funcargs.get("data")
    if not isinstance(adapter, Adapter):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    adapter.run(lambda: pyfuncitem.obj(**arguments))
    return True
