"""The pytest plugin of Halfmoon: brokers for tests. Found by pytest when Halfmoon is installed.

* ``halfmoon_broker``: a name server and a broker of the test's own, with a temporary store, for clients of any language.
* ``halfmoon_broker_session``: one for all tests of the session, started when first asked for; tests share its topics.
* ``halfmoon_world``: a broker, a name server and clients in virtual time, without sockets; see `halfmoon.testing.world.World`.
* ``halfmoon_events``: the same for events; see `halfmoon.events.testing.MemoryBus`.

The first two are a `halfmoon.testing.local.LocalCluster`: ``.nameserver`` and ``.broker`` are addresses (``127.0.0.1:port``),
``.data`` the store's directory; ``.stop()``, ``.kill()`` and ``.restart()`` do what they say. This file imports the rest only when
it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from halfmoon.events.testing import MemoryBus
    from halfmoon.testing.local import LocalCluster
    from halfmoon.testing.world import World


@pytest.fixture
def halfmoon_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run a name server and broker of this test's own; see `halfmoon.testing.local.LocalCluster`."""
    yield from _cluster(tmp_path_factory)


@pytest.fixture(scope="session")
def halfmoon_broker_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run a name server and broker that all tests of the session share; see `halfmoon.testing.local.LocalCluster`."""
    yield from _cluster(tmp_path_factory)


@pytest.fixture
def halfmoon_world() -> World:
    """Return a broker and clients in virtual time for this test; see `halfmoon.testing.world.World`."""
    from halfmoon.testing.world import World  # not at the top: as below

    return World()


@pytest.fixture
def halfmoon_events() -> MemoryBus:
    """Return a broker in virtual time for the events of this test; see `halfmoon.events.testing.MemoryBus`."""
    from halfmoon.events.testing import MemoryBus  # not at the top: as below

    return MemoryBus()


def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    from halfmoon.testing.local import LocalCluster  # not at the top: a test run that uses no broker should not load one

    with LocalCluster(tmp_path_factory.mktemp("halfmoon") / "store") as cluster:
        yield cluster
