"""A group in this process: what it refuses, what it asks a bus for, and what is skipped when nobody was online."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.aio import PushSettings
from halfmoon.errors import GroupNotFound, NoRoute, UsageError
from halfmoon.events.consuming import member as members
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.loop import LoopThread
from halfmoon.events.consuming.member import Member, skip_what_was_missed
from halfmoon.events.consuming.on import Handler
from halfmoon.events.encoding.codec import Codecs
from halfmoon.model import MessageModel, MessageQueue
from halfmoon.results import OffsetMove
from tests.events.consuming.shop import TOPIC, stored


def member(*handlers: Handler, bus: FakeBus, **settings: Any) -> Member:
    return Member(Dispatch("S_mail", handlers, Codecs(), {}), list(handlers), settings, bus)  # type: ignore[arg-type]


def handler(topic: str, code: str, *, persistence: bool = True, function: Callable[..., Any] = lambda event: None) -> Handler:
    return Handler(group="S_mail", topic=topic, code=code, function=function, persistence=persistence)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"consume_batch_max": 4}, "one event at a time"),
        ({"model": MessageModel.BROADCASTING}, "model=BROADCASTING"),
    ],
)
def test_settings_that_events_or_a_bus_cannot_have_are_refused(settings: dict[str, Any], text: str):
    with pytest.raises(UsageError, match=text):
        member(handler(TOPIC, "EC_PAID"), bus=FakeBus(), **settings)


class FakeBus:
    """Keeps what a member subscribed with."""

    def subscribe(
        self, group: str, topics: Any, deliver: Any, *, from_end: Any = (), reconsume_max: int = -1, orderly: bool = False
    ) -> Callable[[], None]:
        self.asked = (group, dict(topics), list(from_end), reconsume_max)
        self.deliver, self.left = deliver, False

        def leave() -> None:
            self.left = True

        return leave


async def test_a_member_asks_a_bus_for_its_codes_and_leaves_it_when_it_is_closed(caplog: pytest.LogCaptureFixture):
    def fail(event: Any) -> None:
        raise ConnectionError("no mail server")

    bus = FakeBus()
    mine = member(
        handler("TP_A", "EC_2", persistence=False), handler("TP_A", "EC_1"), handler(TOPIC, "*", persistence=False, function=fail),
        bus=bus, reconsume_max=3,
    )  # fmt: skip
    loop = LoopThread("events")
    await mine.start(loop)

    assert bus.asked == ("S_mail", {TOPIC: ["*"], "TP_A": ["EC_1", "EC_2"]}, [TOPIC], 3), "a topic is skipped if all its codes are"
    assert bus.deliver(stored("EC_PAID"), 1) == (False, "ConnectionError: no mail server")
    (line,) = [record for record in caplog.records if record.levelno > logging.INFO]
    assert line.getMessage().startswith(f"listener failed: group=S_mail topic={TOPIC} queue=")
    assert line.exc_info is not None
    assert mine.assignment() == []
    await mine.close()
    loop.stop()
    assert bus.left


class FakeAdmin:
    """Answers what the offsets of a group would become, and keeps what they were set to."""

    def __init__(self, *moves: OffsetMove, error: Exception | None = None) -> None:
        self.moves, self.error = list(moves), error
        self.made: list[str] = []
        self.set: list[dict[MessageQueue, int]] = []

    def __call__(self, **_: Any) -> FakeAdmin:
        return self

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def create_group(self, group: str) -> None:
        self.made.append(group)

    async def reset_offsets(self, group: str, topic: str, to: Any, *, dry_run: bool = False) -> list[OffsetMove]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if not dry_run:
            self.set.append(to)
        return self.moves


A, B, C = (MessageQueue(TOPIC, "broker-a", number) for number in range(3))


@pytest.mark.parametrize(
    ("admin", "made", "moved"),
    [
        (FakeAdmin(OffsetMove(A, 3, 9), OffsetMove(B, None, 5), OffsetMove(C, 7, 7)), [], [{A: 9, B: 5}]),
        (FakeAdmin(OffsetMove(A, 9, 3)), [], []),
        (FakeAdmin(OffsetMove(A, 3, 9, members=1), OffsetMove(B, 3, 9)), [], []),
        (FakeAdmin(OffsetMove(A, None, 9), error=GroupNotFound("S_mail")), ["S_mail"], [{A: 9}]),
        (FakeAdmin(OffsetMove(A, 3, 9), error=NoRoute(TOPIC)), [], []),
    ],
    ids=["forward", "never back", "somebody is online", "a new group", "no such topic"],
)
async def test_a_group_is_moved_behind_what_it_missed(
    monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, made: list[str], moved: list[dict[MessageQueue, int]]
):
    monkeypatch.setattr(members, "AsyncAdmin", admin)

    await skip_what_was_missed(PushSettings(group="S_mail", nameserver="127.0.0.1:1"), [TOPIC])

    assert (admin.made, admin.set) == (made, moved)
