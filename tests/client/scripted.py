"""Runs operations in virtual time against scripted servers: no sockets, no sleep. For tests of `halfmoon.client.core`.

A test says what each request is answered with (`Scripted.on`), runs operations, and looks at what was asked (`Scripted.seen`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from random import Random
from typing import Any

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.effects import Call, Gather, Now, OnLoop, Run, RunAside, Sleep, Spawn, SteadyTime, Tell, Wait
from halfmoon.errors import ConnectFailed, RequestTimeout
from halfmoon.wire.bodies import BrokerData, QueueData, TopicRouteData, to_json
from halfmoon.wire.command import Command, reply_command, request_command
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageReply, SendMessageV2
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.table import Header, fields_of

START_MS = 1_700_000_000_000


class Seen:
    """A request that was made: where to, what, when, and whether one-way."""

    def __init__(self, address: str, request: Any, body: bytes, timeout_ms: int, at: int, *, oneway: bool) -> None:
        self.address, self.request, self.body = address, request, body
        self.timeout_ms, self.at, self.oneway = timeout_ms, at, oneway
        self.remark: str | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields as they travel."""
        return fields_of(self.request)


class Reply:
    """What a scripted server answers, and after how long."""

    def __init__(
        self, code: int = 0, header: Header | None = None, body: bytes = b"", remark: str | None = None, *, ms: int = 1
    ) -> None:
        self.code, self.header, self.body, self.remark, self.ms = code, header, body, remark, ms


class Later:
    """A result that the user's code gives only after a while."""

    def __init__(self, ms: int, value: Any = None) -> None:
        self.ms, self.value = ms, value


SILENT = Reply(ms=1 << 40)
"""No answer, ever."""

Answer = Callable[[Seen], "Reply | Exception"]


class Task:
    """An operation that runs."""

    def __init__(self, operation: Generator[Any, Any, Any]) -> None:
        self.operation = operation
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.then: list[Callable[[], None]] = []
        self.wait = 0

    def cancel(self) -> None:
        """End it where it waits."""
        if not self.done:
            self.operation.close()
            self.finish(None, GeneratorExit())

    def finish(self, value: Any, error: BaseException | None) -> None:
        """It has ended."""
        self.done, self.value, self.error = True, value, error
        for action in self.then:
            action()


class Scripted:
    """Virtual time, scripted servers, and the operations that run."""

    def __init__(self) -> None:
        self.now = START_MS
        self.clock_ahead_ms = 0  # how far the clock was set forward; time itself is not moved by it
        self.seen: list[Seen] = []
        self.told: list[Seen] = []
        self.failures: list[BaseException] = []
        self._answers: dict[type, Answer] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()

    @property
    def steady(self) -> int:
        """The clock that nobody sets; it began by itself and says nothing of dates."""
        return self.now - START_MS

    def on(self, request: type[Header], *answers: Reply | Exception | Answer) -> None:
        """Answer a kind of request with these in turn, the last one for ever; an Answer is asked each time."""
        left = list(answers)

        def answer(seen: Seen) -> Reply | Exception:
            one = left.pop(0) if len(left) > 1 else left[0]
            return one if isinstance(one, Reply | Exception) else one(seen)

        self._answers[request] = answer

    def asked(self, request: type[Header]) -> list[Seen]:
        """Return the requests of a kind that were made, one-way or not."""
        return [seen for seen in self.seen if type(seen.request) is request]

    # ------------------------------------------------------------ running

    def run(self, operation: Generator[Any, Any, Any], *, limit_ms: int = 3_600_000) -> Any:
        """Run an operation to its end, and everything beside it; return its result or raise its error."""
        task = self.spawn(operation)
        over = self.now + limit_ms
        while not task.done:
            assert self._events, "the operation waits for ever"
            assert self._events[0][0] <= over, "the operation takes too long"
            self._step()
        if task.error is not None:
            raise task.error
        return task.value

    def run_for(self, ms: int) -> None:
        """Let time pass; nothing that runs by itself may fail meanwhile."""
        over = self.now + ms
        while self._events and self._events[0][0] <= over:
            self._step()
        self.now = over
        assert self.failures == []

    def spawn(self, operation: Generator[Any, Any, Any]) -> Task:
        """Start an operation."""
        task = Task(operation)
        self._at(0, lambda: self._advance(task, None, None))
        return task

    def _at(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ms, next(self._number), action))

    def _step(self) -> None:
        at, _, action = heapq.heappop(self._events)
        self.now = max(self.now, at)
        action()

    def _advance(self, task: Task, value: Any, error: BaseException | None) -> None:
        while not task.done:
            try:
                effect = task.operation.send(value) if error is None else task.operation.throw(error)
            except StopIteration as stop:
                task.finish(stop.value, None)
                return
            except Exception as exc:
                task.finish(None, exc)
                return
            value = error = None
            if type(effect) is Now:
                value = self.now + self.clock_ahead_ms
            elif type(effect) is SteadyTime:
                value = self.steady
            elif type(effect) is OnLoop:
                value = effect.operation
            elif type(effect) is Spawn:
                value = self.spawn(effect.operation)
                value.then.append(partial(self._note, value))
            else:
                task.wait += 1
                self._wait(task, effect, self._resume(task))
                return

    def _note(self, task: Task) -> None:
        if task.error is not None and not isinstance(task.error, GeneratorExit):
            self.failures.append(task.error)

    def _resume(self, task: Task) -> Callable[..., None]:
        number = task.wait

        def resume(value: Any = None, error: BaseException | None = None) -> None:
            if task.wait == number and not task.done:
                task.wait += 1
                self._advance(task, value, error)

        return resume

    def _wait(self, task: Task, effect: Any, resume: Callable[..., None]) -> None:
        if type(effect) is Call:
            self._call(effect, resume)
        elif type(effect) is Tell:
            told = Seen(effect.address, effect.request, effect.body, effect.timeout_ms, self.now, oneway=True)
            told.remark = effect.remark
            self.seen.append(told)
            self.told.append(told)
            answer = self._answers.get(type(effect.request), lambda seen: Reply())(told)
            self._at(0, lambda: resume(None, answer if isinstance(answer, Exception) else None))
        elif type(effect) is Sleep:
            self._at(effect.ms, resume)
        elif type(effect) is Gather:
            self._gather([self.spawn(operation) for operation in effect.operations], resume)
        elif type(effect) is RunAside:
            child = self.spawn(effect.operation)
            child.then.append(lambda: resume(child.value, child.error))
        elif type(effect) is Run:
            self._user_code(effect, resume)
        elif type(effect) is Wait:
            self._signal(effect, resume)
        else:
            raise AssertionError(f"unknown effect {effect!r}")

    def _signal(self, effect: Wait, resume: Callable[..., None]) -> None:
        wake = lambda: self._at(0, lambda: resume(True))  # noqa: E731
        if effect.signal.subscribe(wake):
            wake()
        elif effect.timeout_ms is not None:
            self._at(effect.timeout_ms, lambda: (effect.signal.unsubscribe(wake), resume(False)))

    def _call(self, effect: Call, resume: Callable[..., None]) -> None:
        seen = Seen(effect.address, effect.request, effect.body, effect.timeout_ms, self.now, oneway=False)
        self.seen.append(seen)
        answer = self._answers.get(type(effect.request), lambda seen: Reply(3, remark="not scripted"))(seen)
        if isinstance(answer, Exception):
            self._at(1, lambda: resume(None, answer))
        elif answer.ms >= effect.timeout_ms:
            late = RequestTimeout(f"wait response on the channel <{effect.address}> timeout", effect.address)
            self._at(effect.timeout_ms, lambda: resume(None, late))
        else:
            self._at(answer.ms, lambda: resume(_command(effect.request, answer)))

    def _gather(self, tasks: list[Task], resume: Callable[..., None]) -> None:
        def check() -> None:
            if all(task.done for task in tasks):
                resume([task.error if task.error is not None else task.value for task in tasks])

        for task in tasks:
            task.then.append(check)
        if not tasks:
            self._at(0, lambda: resume([]))

    def _user_code(self, effect: Run, resume: Callable[..., None]) -> None:
        try:
            value = effect.function(*effect.arguments)
        except Exception as exc:
            error = exc
            self._at(0, lambda: resume(None, error))
            return
        if isinstance(value, Later):
            self._at(value.ms, lambda: resume(value.value))
        else:
            self._at(0, lambda: resume(value))


def _command(request: Header, answer: Reply) -> Command:
    return reply_command(request_command(request), answer.code, answer.remark, answer.header, answer.body)


# ---------------------------------------------------------------- scripted clusters


def route(brokers: dict[str, int] | int = 4, *, order: str | None = None, slaves_only: tuple[str, ...] = ()) -> TopicRouteData:
    """Return a route: queues by broker name; the master of ``broker-a`` is at ``broker-a:1``, its slave at ``broker-a:2``."""
    counts = {"broker-a": brokers} if isinstance(brokers, int) else brokers
    return TopicRouteData(
        [BrokerData("c", name, {1: f"{name}:2"} if name in slaves_only else {0: f"{name}:1"}) for name in counts],
        [QueueData(name, number, number, 6) for name, number in counts.items()],
        order_topic_conf=order,
    )


def routes(**by_topic: TopicRouteData) -> Answer:
    """Return the answer of a name server that knows these topics."""

    def answer(seen: Seen) -> Reply:
        found = by_topic.get(seen.request.topic)
        return Reply(17, remark="No topic route info") if found is None else Reply(body=to_json(found))

    return answer


def stored(code: int = 0, *, ms: int = 1) -> Answer:
    """Return the answer of a broker that stores every message."""
    offsets = count()

    def answer(seen: Seen) -> Reply:
        header = SendMessageReply(
            msg_id="7F00000100002A9F0000000000001000", queue_id=seen.request.queue_id, queue_offset=next(offsets)
        )
        return Reply(code, header, ms=ms)

    return answer


REFUSED = ConnectFailed("connect failed", "broker")
REFUSED.refused = True


def producer(script: Scripted, brokers: dict[str, int] | int = 4, kind: type[Sender] = Sender, **values: Any) -> Sender:
    """Return a running sender of group P whose name server knows the topic ``orders`` on these brokers."""
    settings = settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:9876", **values})
    instance = Instance(settings, "10.0.0.1@1", Random(7))
    sender = kind(settings, instance.routes, UniqueIds(b"\x0a\0\0\1", 1, Random(7)))
    sender.running = True
    instance.producer_group = sender.group
    script.on(GetRouteinfoByTopic, routes(orders=route(brokers)))
    script.on(SendMessageV2, stored())
    script.on(SendBatchMessage, stored())
    return sender
