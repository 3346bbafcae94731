"""The process's bound on open files, and what of it is kept for the store."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EMFILE

import pytest

from halfmoon.runtime import descriptors
from halfmoon.runtime.descriptors import allow_descriptors, connections_limit, refill_reserve, set_up_reserve, with_reserve


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def all_taken(limits: tuple[int, int]) -> Iterator[list[int]]:
    """Nobody gets a descriptor any more, but for those that are held."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 3000), limits[1]))
    taken: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(4000))
        yield taken
    finally:
        for fd in taken:
            os.close(fd)


def test_the_bound_on_open_files_is_raised_to_what_the_system_allows(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    assert allow_descriptors(300) == limits[1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])


def test_more_than_the_system_allows_is_told(limits: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    hard = limits[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system allows any number of open files")
    assert allow_descriptors(2 * hard + 2) == hard
    assert f"allows {hard} open files" in caplog.text


def test_connections_leave_a_quarter_to_the_store_and_no_more_than_it_may_need() -> None:
    assert connections_limit(256) == 192
    assert connections_limit(20_000) == 20_000 - descriptors.KEPT_MAX


def test_the_store_opens_its_files_when_others_took_every_descriptor(
    limits: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    set_up_reserve()
    with all_taken(limits):
        fds = [with_reserve(lambda: os.open(os.devnull, os.O_RDONLY)) for _ in range(descriptors.RESERVE_MAX // 2)]
        assert caplog.text.count("no descriptor is left") == 1
        with pytest.raises(OSError) as error:
            fds.extend(with_reserve(lambda: os.open(os.devnull, os.O_RDONLY)) for _ in range(descriptors.RESERVE_MAX))
        assert error.value.errno == EMFILE
        for fd in fds:
            os.close(fd)
        refill_reserve()
        assert len(descriptors._reserve) == descriptors.RESERVE_MAX


def test_another_error_takes_nothing_from_the_reserve(limits: tuple[int, int]) -> None:
    set_up_reserve()
    with pytest.raises(FileNotFoundError):
        with_reserve(lambda: os.open("/there/is/none", os.O_RDONLY))
    assert len(descriptors._reserve) == descriptors.RESERVE_MAX


def test_that_the_reserve_is_used_is_said_ever_more_rarely(limits: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    set_up_reserve()
    with all_taken(limits):
        for _ in range(20):
            os.close(with_reserve(lambda: os.open(os.devnull, os.O_RDONLY)))
            refill_reserve()
    assert caplog.text.count("no descriptor is left") == 5
