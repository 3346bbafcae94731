"""A scripted broker with one topic's queues full of records, for tests of consumers."""

from __future__ import annotations

from random import Random
from typing import Any

from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.orderly import push_core
from halfmoon.client.core.consume.pull_consumer import HandedOut, PullConsumerCore
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import PullSettings, PushSettings, settings_of
from halfmoon.effects import Op, steady
from halfmoon.wire.bodies import ConsumerIdList, to_json
from halfmoon.wire.headers.client import GetConsumerListByGroup, HeartBeat, UnregisterClient
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, QueryConsumerOffset, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from halfmoon.wire.ids import UniqueIds
from tests.client.messages import record
from tests.client.scripted import Reply, Scripted, Seen, route, routes

ME = "10.0.0.1@1"


class Queues:
    """Records by topic and queue; answers pulls, offsets and membership as a broker does."""

    def __init__(self, script: Scripted, queue_count: int = 1, members: tuple[str, ...] = (ME,), retry: bool = True) -> None:
        self.script = script
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.members = members
        self.hold_ms = 15_000
        topics = {"orders": route(queue_count), **({"%RETRY%C": route(1)} if retry else {})}
        script.on(GetRouteinfoByTopic, routes(**topics))
        script.on(HeartBeat, Reply())
        script.on(UnregisterClient, Reply())
        script.on(GetConsumerListByGroup, lambda seen: Reply(body=to_json(ConsumerIdList(list(self.members)))))
        script.on(QueryConsumerOffset, self._offset)
        script.on(GetMaxOffset, lambda seen: Reply(header=OffsetReply(offset=len(self._of(seen)))))
        script.on(GetMinOffset, Reply(header=OffsetReply(offset=0)))
        script.on(SearchOffsetByTimestamp, Reply(header=OffsetReply(offset=2)))
        script.on(PullMessage, self._pull)
        script.on(ConsumerSendMsgBack, Reply())

    def fill(self, count: int, queue_id: int = 0, topic: str = "orders", **values: Any) -> None:
        """Append messages to a queue."""
        found = self.records.setdefault((topic, queue_id), [])
        for _ in range(count):
            found.append(record(len(found), topic=topic, **values))

    def _of(self, seen: Seen) -> list[bytes]:
        return self.records.get((seen.request.topic, seen.request.queue_id), [])

    def _offset(self, seen: Seen) -> Reply:
        offset = self.committed.get((seen.request.topic, seen.request.queue_id))
        return Reply(22) if offset is None else Reply(header=OffsetReply(offset=offset))

    def _pull(self, seen: Seen) -> Reply:
        request, records = seen.request, self._of(seen)
        found = records[request.queue_offset : request.queue_offset + request.max_msg_nums]
        after = request.queue_offset + len(found)
        if request.queue_offset > len(records):
            return pulled(21, len(records), b"", len(records))
        return pulled(0, after, b"".join(found), len(records)) if found else pulled(19, after, b"", len(records), ms=self.hold_ms)


def pulled(code: int, after: int, body: bytes = b"", end: int = 0, *, ms: int = 1) -> Reply:
    """Return the answer to a pull."""
    header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=after, min_offset=0, max_offset=end)
    return Reply(code, header, body, ms=ms)


class NoFile:
    """Offsets that are kept nowhere."""

    def load(self) -> None:
        return None

    def save(self, data: object) -> None:
        pass


def push(script: Scripted, file: Any = None, allocate: Any = None, **values: Any) -> PushConsumerCore:
    """Return a push consumer of group C that subscribes ``orders``."""
    settings = settings_of(PushSettings, {"group": "C", "nameserver": "ns:1", **values})
    instance = Instance(settings, ME, Random(1))
    offsets = RemoteOffsets("C", instance.routes) if file is None else LocalOffsets(file)
    core = push_core(settings, instance, offsets, UniqueIds(b"\x0a\0\0\1", 1, Random(1)), allocate)
    core.subscribe("orders")
    return core


class Taking(PullConsumerCore):
    """A pull consumer that is asked as the blocking one asks: it takes what is there, and polls where that is nothing."""

    def hand_out(self, timeout_ms: int | None = None, *, count_max: int | None = None) -> Op[HandedOut]:
        place: list[HandedOut | None] = [None]
        self.take((yield from steady()), place, count_max)
        return place[0] or (yield from super().hand_out(timeout_ms, count_max=count_max))


POLLS: type[PullConsumerCore] = PullConsumerCore
"""What kind of pull consumers `poll` makes."""


def poll(script: Scripted, **values: Any) -> PullConsumerCore:
    """Return a pull consumer of group C."""
    settings = settings_of(PullSettings, {"group": "C", "nameserver": "ns:1", **values})
    instance = Instance(settings, ME, Random(1))
    return POLLS(settings, instance, RemoteOffsets("C", instance.routes))


def started(script: Scripted, core: PushConsumerCore | PullConsumerCore) -> Any:
    """Start a consumer with everything that runs beside it."""
    script.run(core.start())
    for operation in core.background_work():
        script.spawn(operation)
    script.run_for(50)
    return core


def listening(script: Scripted, listener: Any, **values: Any) -> Any:
    """Return a started push consumer of group C whose subscription of ``orders`` has this listener."""
    core = push(script, **values)
    core.on_message(listener)
    return started(script, core)
