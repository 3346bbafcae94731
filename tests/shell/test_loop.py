"""The loop of a program and its bound on open files."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator

import pytest
import uvloop

from halfmoon.shell.loop import allow_descriptors, run_loop


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_program_runs_on_uvloop_and_gets_its_result() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert run_loop(main()) is uvloop.Loop


def test_the_bound_on_open_files_is_raised_to_what_is_wanted(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    assert allow_descriptors(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, limits[1])


def test_the_bound_on_open_files_is_never_lowered(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    assert allow_descriptors(300) == 512
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512


def test_more_than_the_system_allows_is_told(limits: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    hard = limits[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system allows any number of open files")
    assert allow_descriptors(2 * hard + 2) == hard
    assert f"allows {hard} open files" in caplog.text
