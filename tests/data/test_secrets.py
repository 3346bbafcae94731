"""Scans and writes at brokers with accounts, and at ones that speak only TLS: settings are those of all clients; none is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import halfmoon.data as hd
from halfmoon import Admin
from halfmoon.errors import HalfmoonError
from halfmoon.testing.local import LocalCluster
from tests.authority import Authority
from tests.broker.access.rule_files import write

pytestmark = pytest.mark.slow

SECRET = "the-secret-of-frames"
ACCOUNTS = f"accounts:\n- {{accessKey: data-frames, secretKey: {SECRET}, admin: true}}\n"


class Guarded(NamedTuple):
    """A cluster with the topic ``rows``, what clients must be given, and what must be shown nowhere."""

    nameserver: str
    settings: Any
    secret: str


@pytest.fixture(params=["accounts", "TLS"], scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place = tmp_path_factory.mktemp("guarded")
    if request.param == "accounts":
        write(place / "store", ACCOUNTS)
        server: dict[str, Any] = {"aclEnable": "true"}
        settings = {"access_key": "data-frames", "secret_key": SECRET}
    else:
        authority = Authority(place / "certificates")
        pair = authority.pair("server")
        server = {
            "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key, "tls.server.mode": "enforcing",
            "tls.client.trustCertPath": authority.ca,
        }  # fmt: skip
        settings = {"tls_ca": str(authority.ca)}
    with LocalCluster(place / "store", server) as running:
        with Admin(nameserver=running.nameserver, **settings) as admin:
            admin.create_topic("rows", queue_count=2)
        yield Guarded(running.nameserver, settings, SECRET if "secret_key" in settings else "no secret")


@pytest.mark.parametrize("read_from", ["auto", "master"])
def test_settings_of_clients_open_what_is_guarded(guarded: Guarded, read_from: str):
    before = hd.table("rows", nameserver=guarded.nameserver, **guarded.settings).num_rows
    assert hd.write(pa.table({"body": ["x"]}), "rows", nameserver=guarded.nameserver, **guarded.settings) == 1
    dataset = hd.scan("rows", nameserver=guarded.nameserver, read_from=read_from, **guarded.settings)

    assert dataset.count_rows() == before + 1
    assert guarded.secret not in repr(dataset)


def test_without_them_nothing_is_read_or_written(guarded: Guarded):
    few = {"nameserver": guarded.nameserver, "retries_max": 0, "request_timeout_ms": 1_000}

    with pytest.raises(HalfmoonError):
        hd.table("rows", **few)
    with pytest.raises(HalfmoonError):
        hd.write(pa.table({"body": ["x"]}), "rows", **few)
