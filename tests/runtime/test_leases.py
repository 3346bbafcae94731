"""Stores of leases are chosen by a URL, and a wrong one is refused in words that give away no password."""

from __future__ import annotations

import sys

import pytest

from halfmoon.errors import SettingError
from halfmoon.runtime.leases import lease_store
from halfmoon.runtime.leases.etcd import EtcdLease
from halfmoon.runtime.leases.kubernetes import KubernetesLease

NAME = "DefaultCluster/broker-a"


def refusal(url: str, name: str = NAME) -> str:
    with pytest.raises(SettingError) as caught:
        lease_store(url, name)
    return str(caught.value)


def test_the_url_says_in_which_system_the_lease_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert type(lease_store("etcd://a:2379,b:2379/halfmoon", NAME)) is EtcdLease
    assert type(lease_store("kubernetes://shop/lease", NAME)) is KubernetesLease
    for url in ("", "etcd", "http://a/b", "mysql://a/b", "Etcd://a/b", "s3cret@a:1"):
        assert "use postgresql://" in refusal(url)
        assert "s3cret" not in refusal(url)


@pytest.mark.parametrize("name", ["", "broker-a", "a/b/c", "a/", "/b", "a/b\n", "../b/c", f"a/{'b' * 128}", "a /b", "ä/b"])
def test_a_name_that_is_not_cluster_and_broker_is_refused(name: str) -> None:
    assert "is not cluster/broker" in refusal("etcd://a/b", name)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "halfmoon.runtime.leases.postgresql", raising=False)
    monkeypatch.delattr("halfmoon.runtime.leases.postgresql", raising=False)
    assert "pip install 'psycopg[binary]'" in refusal("postgresql://halfmoon:s3cret@a/b")
