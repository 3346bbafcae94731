"""The blocking client is what the generator makes of the asyncio one."""

from __future__ import annotations

import inspect

import pytest

import halfmoon
from halfmoon.client import aio, sync
from tools import generate_sync

PAIRS = [
    (aio.AsyncProducer, sync.Producer),
    (aio.AsyncPushConsumer, sync.PushConsumer),
    (aio.AsyncPullConsumer, sync.PullConsumer),
]


def test_the_generated_file_is_fresh():
    for target in generate_sync.TARGETS:
        assert generate_sync.generate(target) == (generate_sync.CLIENT / f"{target}.py").read_text(), "stale: run make docs"


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_every_public_method_is_there_with_the_same_parameters_and_does_not_need_await(asynchronous, blocking):
    names = [name for name in vars(asynchronous) if not name.startswith("_") and callable(getattr(asynchronous, name))]

    for name in [*names, "start", "close"]:
        here, there = getattr(blocking, name), getattr(asynchronous, name)
        assert inspect.signature(here).parameters.keys() == inspect.signature(there).parameters.keys()
        assert here.__doc__
        assert not inspect.iscoroutinefunction(here)


def test_every_public_name_of_the_package_is_there():
    for name in halfmoon.__all__:
        assert getattr(halfmoon, name).__name__ == name
    assert set(halfmoon.__all__) <= set(dir(halfmoon))
    with pytest.raises(AttributeError):
        _ = halfmoon.Nothing
