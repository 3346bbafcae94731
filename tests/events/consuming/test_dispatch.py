"""One event of one group: which function gets it, what it is called with, and what its end means for the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup.ledger import ConsumedBefore, ConsumedKey, NotCommitted
from halfmoon.events.encoding.codec import Codecs
from tests.events.consuming.shop import TOPIC, stored


def dispatch(function: Callable[..., Any], code: str = "EC_PAID", ledger: Any = None, **options: Any) -> Dispatch:
    handler = Handler(group="S_mail", topic=TOPIC, code=code, function=function, dedup=ledger)
    return Dispatch("S_mail", [handler], Codecs(), {id(ledger): ledger} if ledger else {}, **options)


class OpenNote:
    """A ledger whose note is there, in a transaction that is not committed."""

    is_async = False

    def __init__(self) -> None:
        self.provider: Any = self

    @contextmanager
    def fresh(self, **options: Any) -> Iterator[OpenNote]:
        yield self

    def all(self, statement: str, values: Any = None) -> list[tuple[int]]:
        return []

    def lend(self, note: ConsumedKey) -> Any:
        raise ConsumedBefore


def test_an_event_whose_note_is_there_but_not_committed_comes_again():
    outcome = dispatch(lambda event: None, ledger=OpenNote()).consume(stored("EC_PAID"), 2)

    assert not outcome.consumed
    assert isinstance(outcome.error, NotCommitted)


def test_a_function_gets_the_event_alone_where_it_takes_nothing_more():
    seen = []

    assert dispatch(lambda event: seen.append(event.payload)).consume(stored("EC_PAID", 7), 1).consumed
    assert seen == [7]


def test_every_code_goes_to_a_function_of_all_codes_unless_one_is_named():
    seen: list[str] = []

    def every(event: Any) -> None:
        seen.append(f"every: {event.code}")

    def paid(event: Any) -> None:
        seen.append(f"paid: {event.code}")

    functions = {"*": every, "EC_PAID": paid}
    handlers = [Handler(group="S_mail", topic=TOPIC, code=code, function=function) for code, function in functions.items()]
    mine = Dispatch("S_mail", handlers, Codecs(), {})
    for code in ("EC_PAID", "EC_SENT"):
        mine.consume(stored(code), 1)

    assert seen == ["paid: EC_PAID", "every: EC_SENT"]
    assert mine.codes() == {TOPIC: ["*"]}


async def test_a_coroutine_function_is_awaited_and_a_plain_one_that_returns_a_coroutine_is_refused():
    async def handle(event: Any) -> None:
        seen.append(event.payload)

    seen: list[int] = []
    message = stored("EC_PAID", 7)
    mine, disguised = dispatch(handle), dispatch(lambda event: handle(event))

    assert (mine.is_async(message), mine.is_async(stored("EC_SENT")), disguised.is_async(message)) == (True, False, False)
    assert (await mine.consume_async(message, 1)).consumed
    refused = disguised.consume(message, 1)
    assert isinstance(refused.error, UsageError)
    assert "async def" in refused.reason
    assert seen == [7]
