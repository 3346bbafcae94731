"""An error that a client raises shows the user's own code and the reason, not how the client works inside."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable

import pytest

from halfmoon import Admin, AsyncProducer, HalfmoonError, Message, Producer
from halfmoon.effects import Op

NOWHERE = "127.0.0.1:1"


def blocking() -> None:
    with Producer(group="P", nameserver=NOWHERE) as producer:
        producer.send(Message("T", b"x"))


def of_asyncio() -> None:
    async def send() -> None:
        async with AsyncProducer(group="P", nameserver=NOWHERE) as producer:
            await producer.send(Message("T", b"x"))

    asyncio.run(send())


def of_operators() -> None:
    with Admin(nameserver=NOWHERE) as admin:
        admin.topics()


def ours(error: BaseException | None) -> list[str]:
    """Return the functions of Halfmoon in the traceback of an error and those of its causes."""
    found: list[str] = []
    while error is not None:
        found += [frame.name for frame in traceback.extract_tb(error.__traceback__) if "/src/halfmoon/" in frame.filename]
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.parametrize("call", [blocking, of_asyncio, of_operators])
def test_a_wrong_address_is_shown_with_the_callers_frames_and_few_of_ours(call: Callable[[], None]) -> None:
    with pytest.raises(HalfmoonError, match="no name server answers") as raised:
        call()
    assert len(ours(raised.value)) <= 3
    assert any(frame.name == call.__name__ for frame in traceback.extract_tb(raised.value.__traceback__))


def test_at_debug_all_frames_are_shown() -> None:
    logger = logging.getLogger("halfmoon")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        with pytest.raises(HalfmoonError) as raised:
            blocking()
    finally:
        logger.setLevel(level)
    assert len(ours(raised.value)) > 5


def test_what_the_users_code_raises_inside_keeps_its_frames() -> None:
    def inner() -> None:
        raise HalfmoonError("mine")

    def choose(*_: object) -> None:
        inner()

    with Producer(group="P", nameserver=NOWHERE) as producer, pytest.raises(HalfmoonError) as raised:
        producer.run(_operation(choose))
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][-2:] == ["choose", "inner"]


def _operation(function: Callable[[], None]) -> Op[None]:
    function()
    yield
