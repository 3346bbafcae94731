"""An orderly consumer whose broker has another member goes on soon after that is the master, and keeps the order."""

from __future__ import annotations

import pytest

from halfmoon.client.core.consume.member import AWAY_MS_MAX
from halfmoon.client.core.route_table import LOOK_PAUSE_MS_MAX
from halfmoon.errors import ConnectFailed
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.headers.client import LockBatchMq
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.locking import Locking, orderly
from tests.client.queue_of import started
from tests.client.scripted import Reply, Scripted

FIRST, SECOND = "broker-a:1", "broker-a:2"
SOON_MS = AWAY_MS_MAX + LOOK_PAUSE_MS_MAX + 500
IS_SLAVE = Reply(14, remark="service not available now: this broker is a slave")


class Pair(Locking):
    """A broker of two members. Its master goes at `leave`, in one of three ways; the other is the master after ``away_ms``."""

    def __init__(self, script: Scripted, away_ms: int, how: str) -> None:
        super().__init__(script)
        self.away_ms, self.how = away_ms, how
        self.gone_at: int | None = None
        for kind, answer in list(script._answers.items()):
            script.on(kind, lambda seen, answer=answer: self._refusal(seen) or answer(seen))
        script.on(GetRouteinfoByTopic, lambda seen: self._route())

    def leave(self, core) -> None:
        """The master goes, and its connections with it."""
        self.gone_at = self.script.now
        core.instance.disconnected(FIRST)

    @property
    def _is_back(self) -> bool:
        return self.gone_at is not None and self.script.now - self.gone_at >= self.away_ms

    def _refusal(self, seen) -> Reply | Exception | None:
        if self.how == "dies" and self.gone_at is not None and seen.address == FIRST:
            return ConnectFailed("Connection refused", FIRST)
        master = FIRST if self.gone_at is None else SECOND if self._is_back else ""
        return IS_SLAVE if isinstance(seen.request, LockBatchMq) and seen.address != master else None

    def _route(self) -> Reply:
        members = {0: FIRST, 1: SECOND}
        if self._is_back:
            members = {0: SECOND, 1: FIRST}
        elif self.gone_at is not None and self.how == "unregisters":
            members = {1: SECOND}
        return Reply(body=to_json(TopicRouteData([BrokerData("c", "broker-a", members)], [QueueData("broker-a", 1, 1, 6)])))


@pytest.mark.parametrize("away_ms", [1_000, 7_000, 16_000])
@pytest.mark.parametrize("how", ["dies", "becomes a slave", "unregisters"])
def test_it_locks_its_queues_at_the_next_master_and_goes_on_where_it_was(how: str, away_ms: int):
    script, got = Scripted(), []
    pair = Pair(script, away_ms, how)
    pair.fill(3)
    core = started(script, orderly(script, got.extend))
    pair.leave(core)
    pair.fill(3)

    script.run_for(away_ms)
    before = len(script.asked(LockBatchMq))
    script.run_for(SOON_MS)

    assert [message.queue_offset for message in got] == [0, 1, 2, 3, 4, 5]
    assert {seen.address for seen in script.asked(LockBatchMq)[before:]} >= {SECOND}


@pytest.mark.parametrize("how", ["dies", "becomes a slave", "unregisters"])
def test_while_there_is_no_next_master_it_asks_little_and_consumes_nothing(how: str):
    script, got = Scripted(), []
    pair = Pair(script, 1 << 40, how)
    pair.fill(3)
    core = started(script, orderly(script, got.extend))
    pair.leave(core)
    pair.fill(3)
    before = len(script.seen)

    script.run_for(60_000)

    assert [message.queue_offset for message in got] == [0, 1, 2]
    assert len([seen for seen in script.seen[before:] if not isinstance(seen.request, GetRouteinfoByTopic)]) < 4 * 60
    assert len([seen for seen in script.seen[before:] if isinstance(seen.request, GetRouteinfoByTopic)]) < 2 * 60
