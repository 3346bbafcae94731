"""Leases in Kubernetes: requests as its API documents them, its refusals, and what people find in the object."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.errors import LeaseUnavailable, SettingError
from halfmoon.ports import LeaseStore
from halfmoon.runtime.leases.kubernetes import KubernetesLease, from_url
from tests.authority import Authority
from tests.runtime.leases.kubernetes_api import Refused
from tests.runtime.leases.systems import KubernetesSystem, new_name

WELL_MS = 30_000
LEASES = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesSystem]:
    started = KubernetesSystem(tmp_path_factory.mktemp("kubernetes"))
    yield started
    started.close()


@pytest.fixture
def system(running: KubernetesSystem) -> Iterator[KubernetesSystem]:
    running.api.calls.clear()
    yield running
    assert running.api.faults == []


@pytest.fixture
def store(system: KubernetesSystem) -> LeaseStore:
    system.api.objects.clear()
    return system.store("DefaultCluster/broker-a")


def reason(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(LeaseUnavailable) as caught:
        call(*arguments)
    assert "token-" not in str(caught.value)
    return str(caught.value)


def lease(system: KubernetesSystem) -> dict[str, Any]:
    return system.api.objects["shop", "defaultcluster-broker-a"]


def test_the_verbs_and_paths_are_those_of_the_reference(system: KubernetesSystem, store: LeaseStore) -> None:
    store.read(WELL_MS)
    version = store.write(b"1", None, WELL_MS)
    store.write(b"2", version, WELL_MS)
    own = f"{LEASES}/defaultcluster-broker-a"
    assert system.api.calls == [("GET", own), ("POST", LEASES), ("PUT", own)]


def test_people_see_the_holder_and_the_epoch(system: KubernetesSystem, store: LeaseStore) -> None:
    version = store.write(b'{"holder": "broker-a/0", "epoch": 3}', None, WELL_MS)
    assert lease(system)["spec"] == {"holderIdentity": "broker-a/0", "leaseTransitions": 3}
    version = store.write(b'{"holder": "broker-a/1", "epoch": 4}', version, WELL_MS)
    assert lease(system)["spec"] == {"holderIdentity": "broker-a/1", "leaseTransitions": 4}
    store.write(b"{}", version, WELL_MS)
    assert lease(system)["spec"] == {}


def test_what_others_write_into_the_object_stays(system: KubernetesSystem, store: LeaseStore) -> None:
    store.write(b"1", None, WELL_MS)
    lease(system)["metadata"]["labels"] = {"team": "shop"}
    lease(system)["metadata"]["annotations"]["shop/note"] = "mine"
    found = store.read(WELL_MS)
    assert found is not None
    version = store.write(b"2", found.version, WELL_MS)
    store.write(b"3", version, WELL_MS)
    metadata = lease(system)["metadata"]
    assert metadata["labels"] == {"team": "shop"}
    notes = {"shop/note": "mine", "halfmoon/record": "3", "halfmoon/pair": "DefaultCluster/broker-a"}
    assert metadata["annotations"] == notes


def test_a_removed_lease_has_changed_and_can_be_made_again(system: KubernetesSystem, store: LeaseStore) -> None:
    version = store.write(b"1", None, WELL_MS)
    system.api.objects.clear()
    assert store.write(b"2", version, WELL_MS) is None
    assert store.read(WELL_MS) is None
    assert store.write(b"3", None, WELL_MS) is not None


def test_a_lease_of_other_brokers_or_of_no_broker_is_left_alone(system: KubernetesSystem, store: LeaseStore) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(system.api.port)}
    other = KubernetesLease("shop", "defaultcluster-broker-a", new_name(), account=system.account, environment=environment)
    other.write(b"1", None, WELL_MS)
    assert "belongs to the brokers DefaultCluster/broker-" in reason(store.read, WELL_MS)
    assert store.write(b"2", None, WELL_MS) is None
    del lease(system)["metadata"]["annotations"]
    assert "has no annotation halfmoon/record" in reason(store.read, WELL_MS)


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (401, "Unauthorized", "Unauthorized"),
        (403, "Forbidden", 'leases.coordination.k8s.io "x" is forbidden: User "y" cannot get resource "leases"'),
        (404, "", "page not found"),
        (409, "", "quota"),
        (429, "TooManyRequests", "please try again later"),
        (500, "InternalError", "etcdserver: request timed out"),
        (504, "Timeout", "the server was unable to return a response in the time allotted"),
    ],
)
def test_an_error_of_the_api_is_no_answer(system: KubernetesSystem, store: LeaseStore, code: int, name: str, message: str) -> None:
    version = store.write(b"1", None, WELL_MS)
    for call in ((store.read,), (store.write, b"2", version), (store.write, b"2", None)):
        system.api.failures.append(Refused(code, name, message))
        assert f"answers {code}: {message}" in reason(*call, WELL_MS)
    assert store.read(WELL_MS) == (b"1", version)


def test_a_conflict_of_another_kind_does_not_count_as_a_lost_race(system: KubernetesSystem, store: LeaseStore) -> None:
    system.api.failures.append(Refused(409, "Conflict", "quota: please try again"))
    assert "answers 409" in reason(store.write, b"1", None, WELL_MS)


def test_a_namespace_that_is_missing_is_an_error(system: KubernetesSystem) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(system.api.port)}
    store = KubernetesLease("nowhere", "x", new_name(), account=system.account, environment=environment)
    assert store.read(WELL_MS) is None
    assert 'answers 404: namespaces "nowhere" not found' in reason(store.write, b"1", None, WELL_MS)


def test_a_token_that_is_rotated_is_read_again(system: KubernetesSystem, store: LeaseStore) -> None:
    version = store.write(b"1", None, WELL_MS)
    system.rotate("token-2")
    assert store.read(WELL_MS) == (b"1", version)
    system.api.token = "token-3"
    assert "answers 401" in reason(store.read, WELL_MS)
    system.rotate("token-3")
    assert store.read(WELL_MS) == (b"1", version)


def test_an_api_with_the_certificate_of_another_authority_gets_no_token(
    system: KubernetesSystem, store: LeaseStore, tmp_path: Path
) -> None:
    right = (system.account / "ca.crt").read_bytes()
    shutil.copy(Authority(tmp_path / "other").ca, system.account / "ca.crt")
    system.api.calls.clear()
    try:
        assert "nobody trusted signed the certificate" in reason(store.read, WELL_MS)
        assert system.api.calls == []
    finally:
        (system.account / "ca.crt").write_bytes(right)
    assert store.read(WELL_MS) is None


@pytest.mark.parametrize(
    ("file", "content"), [("token", None), ("token", b"a\nb"), ("token", b"\xff"), ("ca.crt", None), ("ca.crt", b"x")]
)
def test_files_of_the_account_that_are_missing_or_damaged_are_named(
    system: KubernetesSystem, store: LeaseStore, tmp_path: Path, file: str, content: bytes | None
) -> None:
    account = shutil.copytree(system.account, tmp_path / "account")
    (account / file).unlink() if content is None else (account / file).write_bytes(content)
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(system.api.port)}
    broken = KubernetesLease("shop", "x", new_name(), account=account, environment=environment)
    system.api.calls.clear()
    assert ("token" if file == "token" else "CA certificates") in reason(broken.read, WELL_MS)
    assert system.api.calls == []


@pytest.mark.parametrize("url", ["kubernetes://", "kubernetes://a", "kubernetes://a/", "kubernetes://a/b/c", "kubernetes://A/b",
                                 "kubernetes://a/..", "kubernetes://a/b?c", "kubernetes://-a/b", f"kubernetes://{'a' * 64}/b",
                                 f"kubernetes://a/{'.'.join(['b' * 60] * 5)}", "kubernetes://a/b\n"])  # fmt: skip
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="kubernetes://namespace/name"):
        from_url(url, new_name())


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match="KUBERNETES_SERVICE_HOST"):
        KubernetesLease("shop", "x", new_name(), environment={})
