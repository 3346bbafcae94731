"""Fixtures of the interop tests: Apache's clients and brokers, and ours as a user starts it.

``INTEROP_TARGET=4.9.7`` runs the tests of our broker against Apache's of that version instead: it tests the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import jars
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import Serve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this directory, and skip those of Java's clients and brokers where Java or Maven is missing."""
    reason = jars.missing()
    for item in items:
        if item.nodeid.startswith("tests/interop/"):
            item.add_marker("interop")
            if reason and not item.nodeid.startswith("tests/interop/clients/"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., JavaPeer]]:
    """Return ``java(version, serialization)``: a JVM with that client, one for all tests that ask for the same."""
    peers: dict[tuple[str, str], JavaPeer] = {}

    def peer(version: str = "4.9.7", serialization: str = "JSON") -> JavaPeer:
        key = (version, serialization)
        if key not in peers:
            peers[key] = JavaPeer(version, tmp_path_factory.mktemp(f"java-{version}-{serialization}"), serialization)
        return peers[key]

    yield peer
    for found in peers.values():
        found.stop()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    """Our name server and broker, one for all tests that only send and receive."""
    version = os.environ.get("INTEROP_TARGET")
    home = tmp_path_factory.mktemp("target")
    server: Serve | Cluster = Cluster(version, home) if version else Serve(home / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def apache(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return ``apache(version, **options)``: a running Apache cluster that ends with the test."""
    clusters: list[Cluster] = []

    def start(version: str, home: str = "apache", **options: object) -> Cluster:
        clusters.append(Cluster(version, tmp_path / home, **options))  # type: ignore[arg-type]
        return clusters[-1].start()

    yield start
    for cluster in clusters:
        cluster.kill()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """Return ``serve(data, settings)``: our servers on that directory, ended with the test."""
    servers: list[Serve] = []

    def start(data: Path | None = None, **settings: object) -> Serve:
        servers.append(Serve(data or tmp_path / "data", settings=settings))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()
