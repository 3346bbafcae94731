"""What every store of a lease promises, once with PostgreSQL, with etcd and with Kubernetes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.limits import LEASE_RECORD_BYTES_MAX
from halfmoon.ports import LeaseStore
from tests.runtime.leases import systems
from tests.runtime.leases.systems import KubernetesSystem, System

WELL_MS = 30_000
"""Time for a call of which the answer comes."""
SOON_MS = 500
"""Time for a call of which no answer comes."""


@pytest.fixture(scope="module", params=["postgresql", "etcd", "kubernetes"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    started = systems.system(request.param, tmp_path_factory.mktemp(request.param))
    yield started
    started.close()


@pytest.fixture
def name() -> str:
    return systems.new_name()


@pytest.fixture
def system(running: System) -> Iterator[System]:
    yield running
    if isinstance(running, KubernetesSystem):
        assert running.api.faults == []


def first(store: LeaseStore, text: bytes = b"{}") -> str:
    """Write the first record and return its version."""
    version = store.write(text, None, WELL_MS)
    assert version is not None
    return version


def test_the_first_record_is_written_once(system: System, name: str) -> None:
    ours, theirs = system.store(name), system.store(name)
    assert ours.read(WELL_MS) is None
    version = ours.write(b'{"holder": "a"}', None, WELL_MS)
    assert version is not None
    assert theirs.write(b'{"holder": "b"}', None, WELL_MS) is None
    assert theirs.read(WELL_MS) == ours.read(WELL_MS) == (b'{"holder": "a"}', version)


def test_a_write_replaces_the_version_expected_and_no_other(system: System, name: str) -> None:
    store = system.store(name)
    assert store.write(b"0", "1", WELL_MS) is None  # there is none yet
    versions = [first(store, b"0")]
    for text in (b"1", b"2", b"2"):
        version = store.write(text, versions[-1], WELL_MS)
        assert version is not None
        versions.append(version)
    assert len(set(versions)) == 4
    for stale in (*versions[:-1], "nonsense", "-1", "", "9" * 30):
        assert system.store(name).write(b"3", stale, WELL_MS) is None
    assert store.read(WELL_MS) == (b"2", versions[-1])


def test_of_two_writers_at_once_one_wins_each_round(system: System, name: str) -> None:
    stores, gate = [system.store(name) for _ in range(2)], threading.Barrier(2)
    version = first(stores[0])

    def write(store: LeaseStore, text: bytes, expected: str) -> str | None:
        gate.wait(60)
        return store.write(text, expected, WELL_MS)

    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            texts = [b"a%d" % number, b"b%d" % number]
            made = list(pool.map(write, stores, texts, [version, version]))
            [won] = [index for index in (0, 1) if made[index] is not None]
            assert stores[1].read(WELL_MS) == (texts[won], made[won])
            version = made[won] or ""


def test_increments_of_several_threads_are_all_counted(system: System, name: str) -> None:
    first(system.store(name), b"0")

    def count() -> int:
        store, done = system.store(name), 0
        while done < 50:
            found = store.read(WELL_MS)
            assert found is not None
            done += store.write(b"%d" % (int(found.text) + 1), found.version, WELL_MS) is not None
        store.close()
        return done

    with ThreadPoolExecutor(4) as pool:
        counts = [job.result() for job in [pool.submit(count) for _ in range(4)]]
    found = system.store(name).read(WELL_MS)
    assert found is not None
    assert int(found.text) == sum(counts) == 200


def test_records_of_two_names_are_apart(system: System, name: str) -> None:
    ours, theirs = system.store(name), system.store(f"{name}x")
    first(ours, b"ours")
    assert theirs.read(WELL_MS) is None
    first(theirs, b"theirs")
    assert ours.read(WELL_MS) != theirs.read(WELL_MS)


def test_any_text_comes_back_as_it_was_and_a_longer_one_is_refused(system: System, name: str) -> None:
    store = system.store(name)
    text = '{"a": "\\"quoted\\" \'\' $1 {name} %s \\u0000 € 半月 \U0001f319"}\n'.encode()
    version = first(store, text)
    assert store.read(WELL_MS) == (text, version)
    longest = b'"' + b"x" * (LEASE_RECORD_BYTES_MAX - 2) + b'"'
    second = store.write(longest, version, WELL_MS)
    assert store.read(WELL_MS) == (longest, second)
    for wrong in (longest + b" ", b"\0", b"\xff"):
        with pytest.raises(ValueError):
            store.write(wrong, second, WELL_MS)
    assert store.read(WELL_MS) == (longest, second)


def test_a_call_ends_while_the_system_hangs_and_the_next_one_works_once_it_goes_on(system: System, name: str) -> None:
    ours, theirs = system.store(name), system.store(name)
    version = first(ours, b"before")
    system.hang()
    try:
        with pytest.raises(LeaseUnavailable, match="no answer within"):
            ours.write(b"during", version, SOON_MS)
        with pytest.raises(LeaseUnavailable, match="no answer within"):
            ours.read(SOON_MS)
        with pytest.raises(LeaseUnavailable, match="no answer within"):  # on a first connection
            theirs.read(SOON_MS)
    finally:
        system.resume()
    found = ours.read(WELL_MS)
    assert found is not None
    assert found.text in (b"before", b"during")
    while (after := ours.write(b"after", found.version, WELL_MS)) is None:  # "during" was carried out only now
        found = ours.read(WELL_MS)
        assert found is not None
        assert found.text == b"during"
    assert theirs.read(WELL_MS) == (b"after", after)


def test_a_killed_system_keeps_the_record_and_the_first_call_after_its_start_works(system: System, name: str) -> None:
    ours, theirs = system.store(name), system.store(name)
    version = first(ours, b"kept")
    assert theirs.read(WELL_MS) is not None
    system.kill()
    with pytest.raises(LeaseUnavailable):
        ours.read(SOON_MS)
    with pytest.raises(LeaseUnavailable):
        ours.write(b"lost", version, SOON_MS)
    system.start()
    assert ours.read(WELL_MS) == (b"kept", version)
    assert theirs.write(b"new", version, WELL_MS) is not None  # its connection broke while it was not looking


def test_a_closed_store_opens_again_and_any_thread_may_use_it(system: System, name: str) -> None:
    store = system.store(name)
    version = first(store)
    store.close()
    store.close()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.read, WELL_MS).result() == (b"{}", version)
    assert store.read(WELL_MS) == (b"{}", version)
