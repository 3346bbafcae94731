"""`World`: a broker, a name server and clients in virtual time, for tests of applications. No socket, no thread, no wall clock.

Brokers and clients are the real cores on a simulated disk and network. Time passes only in the world's own calls: a little while
a call waits for its answer, and as long as `World.advance` is told. The user's functions (listeners, checks) run in the caller's
thread, one after another, and only in `World.advance` and `World.settle`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, Unpack

from halfmoon.broker.settings import BrokerSettings
from halfmoon.client.constructors.options import ProducerOptions, PushOptions, TransactionOptions
from halfmoon.client.core.consume.listener import check_callable
from halfmoon.client.core.produce.transaction import Limits, OpenHalf
from halfmoon.client.settings import settings_of
from halfmoon.effects import Call, Op, Signal, wait
from halfmoon.errors import UsageError
from halfmoon.model import ConsumeFrom, LocalTransactionState, Message, SendResult, StoredMessage
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.clients import SimClient, SimProducer, SimPushConsumer, SimTransactionProducer
from halfmoon.testing.cluster import Cluster
from halfmoon.testing.options import BrokerOptions, StoreOptions
from halfmoon.testing.requests import messages_of, pull_request
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction

T = TypeVar("T")

LARGE: StoreOptions = {
    "commit_log_file_bytes": 8 * 1024 * 1024, "queue_file_bytes": 20 * 5000, "hash_slots": 1000, "index_entries_max": 4000
}  # fmt: skip
"""Store settings: a message may be as large as at a broker."""

SETTLE_MS = 20
"""Virtual time that `World.settle` waits for more to happen: clients and brokers react within a few milliseconds."""

CALLS_MAX = 100_000
"""Calls of the user's code in one `World.settle`."""

CALL_MS = 600_000
"""Virtual time that a call may take."""

UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

LOSABLE: dict[str, Callable[[Any], bool]] = {
    "send": lambda request: isinstance(request, SendMessage | SendMessageV2 | SendBatchMessage),
    "second phase": lambda request: isinstance(request, EndTransaction) and not request.from_transaction_check,
    "check answer": lambda request: isinstance(request, EndTransaction) and bool(request.from_transaction_check),
    "pull": lambda request: isinstance(request, PullMessage),
    "heartbeat": lambda request: isinstance(request, HeartBeat),
}
"""Requests of clients that can be lost, by the name that `World.lose` knows them by."""


def milliseconds(duration: str | float | timedelta) -> int:
    """Return a duration in milliseconds: seconds, a timedelta, or a text such as ``31 min``, ``500ms``, ``2 h``.

    Raises UsageError.
    """
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1000)
    if not isinstance(duration, str):
        return round(duration * 1000)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*", duration)
    if match is None:
        raise UsageError(f"{duration!r:.40} is not a duration (examples: '10 s', '31 min', '2 h', 90)")
    return round(float(match[1]) * UNITS_MS[match[2]])


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in an empty context, and run the coroutine that it may return.

    A thread in which an event loop runs waits while another one calls the function: that may block, or begin a loop of its own.
    """

    def call() -> T:
        found = function(*arguments)
        return asyncio.run(found) if inspect.iscoroutine(found) else found

    context = contextvars.Context()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.run(call)
    with ThreadPoolExecutor(1, "halfmoon-world") as thread:
        return thread.submit(context.run, call).result()


class UserCall:
    """One call of the user's code that a client (``owner``) waits for. ``is_check``: it answers a broker's check."""

    def __init__(self, call: Callable[[], Any], *, is_check: bool, owner: object) -> None:
        self.is_check, self.owner = is_check, owner
        self.ended = Signal()
        self.result: Any = None
        self.error: Exception | None = None
        self._call = call

    def run(self) -> None:
        """Call it, and keep what it returns or raises. An error that is no Exception, such as pytest.fail's, is raised again."""
        try:
            self.result = apart(self._call)
        except Exception as exc:
            self.error = exc
        except BaseException as exc:
            self.error = RuntimeError(f"{type(exc).__name__}: {exc}")
            raise


class World:
    """A broker and a name server in virtual time, and the clients that a test adds.

    ::

        world = World()
        got = []
        world.consumer("orders", got.append)
        world.producer().send(Message("orders", b"paid", delay=1800))
        world.advance("31 min")
        assert [message.body for message in got] == [b"paid"]

    ``seed`` decides everything random. ``start_ms`` is when time begins, in milliseconds since the epoch; None: now. ``store`` and
    ``broker`` are settings by our names. Safe to use from many threads; nothing waits in real time. Raises SettingError.
    """

    def __init__(
        self, *, seed: int = 1, start_ms: int | None = None, store: StoreOptions | None = None, **broker: Unpack[BrokerOptions]
    ) -> None:
        start_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        settings: StoreOptions = {**LARGE, **(store or {})}
        settings_of(StoreSettings, settings)
        settings_of(BrokerSettings, broker)
        self.cluster = Cluster(seed, store=settings, broker=broker, work_us=(0, 0), start_ms=start_ms, delay_us=(0, 0))
        self.lock = threading.RLock()
        self._calls: deque[UserCall] = deque()
        self._clients: dict[object, SimClient] = {}
        """Clients that run the user's code, by owner (see `later`)."""
        self._parts = 0
        self._run(lambda: False, SETTLE_MS)  # the broker registers

    @property
    def now_ms(self) -> int:
        """The time, milliseconds since the epoch."""
        return self.cluster.timeline.now

    # ---------------------------------------------------------------- time

    def advance(self, duration: str | float | timedelta) -> None:
        """Let time pass, and everything happen that becomes due: seconds, a timedelta, or a text such as ``31 min``.

        Raises UsageError.
        """
        end_ms = self.now_ms + milliseconds(duration)
        self.settle()
        while (left_ms := end_ms - self.now_ms) > 0:
            self._call_next(left_ms)
        self.settle()

    def settle(self, *, checks_only: bool = False) -> None:
        """Let happen what happens at once, with the user's functions, or only with those that answer checks.

        Raises UsageError for functions that cause one another without end.
        """
        for _ in range(CALLS_MAX):
            if not self._call_next(SETTLE_MS, checks_only=checks_only):
                return
        raise UsageError(f"{CALLS_MAX} calls and no end: does a consumer publish what it consumes?")

    def ask(self, operation: Op[T], client: SimClient | None = None) -> T:
        """Run an operation of a client (None: a plain one) to its end; return its result. Raises what it raises."""
        with self.lock:
            driver = self.cluster.client if client is None else client.driver
            task = driver.start(operation)
            self.cluster.timeline.run_until(lambda: task.done, CALL_MS)
        return task.result()

    def _run(self, reached: Callable[[], bool], within_ms: int) -> bool:
        with self.lock:
            return self.cluster.timeline.run_until(reached, within_ms)

    def _call_next(self, within_ms: int, *, checks_only: bool = False) -> bool:
        """Run until a client waits for the user's code, and call that; return False when none does for so long."""

        def waiting() -> UserCall | None:
            return next((call for call in self._calls if call.is_check or not checks_only), None)

        with self.lock:
            self._run(lambda: waiting() is not None, within_ms)
            if (call := waiting()) is None:
                return False
            self._calls.remove(call)
        try:
            call.run()
        finally:
            with self.lock:
                call.ended.fire()
        return True

    def forget(self, owner: object) -> None:
        """Forget a client that is gone, and the calls that it still waits for."""
        with self.lock:
            self._clients.pop(owner, None)
            self._calls = deque(call for call in self._calls if call.owner is not owner)

    def later(self, function: Callable[..., Any], owner: object, *, is_check: bool = False) -> Callable[..., Op[Any]]:
        """Return what clients call in place of the user's function: it waits until the world's owner lets that run.

        ``owner`` is any object that stands for the client, for `forget`. Raises UsageError for what is no function.
        """
        check_callable("a client of the world", function)

        def waiting(*arguments: Any) -> Op[Any]:
            call = UserCall(partial(function, *arguments), is_check=is_check, owner=owner)
            self._calls.append(call)
            yield from wait(call.ended)
            if call.error is not None:
                raise call.error
            return call.result

        return waiting

    # ---------------------------------------------------------------- clients

    def _name(self, kind: str) -> str:
        self._parts += 1
        return f"{kind}-{self._parts}"

    def producer(self, group: str = "P_test", **settings: Unpack[ProducerOptions]) -> WorldProducer:
        """Return a new producer. ``settings`` are those of `halfmoon.client.settings.ProducerSettings`."""
        with self.lock:
            return WorldProducer(self, SimProducer(self.cluster, self._name("producer"), group=group, **settings))

    def transaction_producer(
        self, check: Callable[[StoredMessage], Any], group: str = "P_test", **settings: Unpack[TransactionOptions]
    ) -> WorldTransactionProducer:
        """Return a new transactional producer; ``check(message)`` answers brokers. ``settings`` are `TransactionSettings`."""
        owner = object()
        with self.lock:
            client = SimTransactionProducer(
                self.cluster, self._name("producer"), None, check=self.later(check, owner, is_check=True), group=group, **settings
            )
            self._run(lambda: client.instance.heard_by(self.cluster.brokers[0].address), SETTLE_MS)
            self._clients[owner] = client
            return WorldTransactionProducer(self, client, owner)

    def consumer(
        self,
        topic: str,
        function: Callable[[StoredMessage], Any],
        group: str = "C_test",
        *,
        expression: str = "*",
        **settings: Unpack[PushOptions],
    ) -> WorldConsumer:
        """Return a new push consumer: ``function(message)`` is called with one message after another; one that raises comes again.

        Makes the topic, where there is none, with one queue. A new group begins with the oldest message. ``settings`` are
        `PushSettings`.
        """
        check_callable("a consumer of the world", function)
        values: dict[str, Any] = {"group": group, "consume_from": ConsumeFrom.FIRST_OFFSET, **settings}
        return self.subscriber({topic: expression}, lambda messages, context: function(messages[0]), **values)

    def subscriber(self, subscriptions: Mapping[str, str], function: Callable[..., Any], **settings: Any) -> WorldConsumer:
        """As `consumer`, of several topics: ``function(messages, context)`` is the listener of a push consumer."""
        for topic in subscriptions:
            self.create_topic(topic)
        values: dict[str, Any] = {"threads": 1, "consume_batch_max": 1, **settings}
        owner = object()
        later = self.later(function, owner)

        def listen(messages: list[StoredMessage], context: Any) -> Op[Any]:
            return later(messages, context)

        with self.lock:
            client = SimPushConsumer(self.cluster, subscriptions, listen, name=self._name("consumer"), **values)
            self._run(lambda: client.started.done, CALL_MS)
        client.started.result()
        self._clients[owner] = client
        return WorldConsumer(self, client, owner)

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """Make a topic, unless it is there. Raises BrokerError."""
        if self._core.topics.get(topic) is None:
            with self.lock:
                task = self.cluster.create_topic(topic, queues=queues)
                self._run(lambda: task.done, CALL_MS)
            if task.result().code:
                raise UsageError(f"topic {topic!r:.60} is refused: {task.result().remark}")

    # ---------------------------------------------------------------- faults

    def kill(self, part: str | WorldProducer | WorldConsumer = "broker", *, power: bool = False) -> None:
        """End a process at once: the ``"broker"``, the ``"name server"``, or a client's. Of the broker also the ``power`` may go.

        Raises UsageError.
        """
        with self.lock:
            if part == "broker":
                self.cluster.crash(self.cluster.brokers[0], power=power)
            elif part == "name server":
                self.cluster.nameservers[0].kill(power=power)
            elif isinstance(part, str):
                raise UsageError(f"{part!r:.40} is neither 'broker' nor 'name server' nor a client")
            else:
                self.forget(part.owner)
                part.client.kill()
                self.cluster.network.kill(part.client.host)

    def restart(self, part: str = "broker") -> None:
        """Start the ``"broker"``, on what its disk holds, or the ``"name server"``, once it was killed. Raises UsageError."""
        with self.lock:
            if part == "broker":
                self.cluster.restart(self.cluster.brokers[0])
                self.cluster.client.kill()  # what a test looks at is asked on a new connection: the old one may be half open
            elif part == "name server":
                self.cluster.start_nameserver(self.cluster.nameservers[0])
            else:
                raise UsageError(f"{part!r:.40} is neither 'broker' nor 'name server'")

    def lose(self, request: str, times: int = 1, *, answer: bool = False) -> None:
        """Lose the next requests of a kind, or only their answers.

        Kinds: ``send``, ``second phase``, ``check answer``, ``pull``, ``heartbeat``. Raises UsageError.
        """
        if request not in LOSABLE:
            raise UsageError(f"{request!r:.40} is not a request that can be lost: {', '.join(LOSABLE)}")
        self.cluster.losses.append((LOSABLE[request], times, answer))

    def heal(self) -> None:
        """Lose nothing from now on."""
        self.cluster.losses.clear()

    # ---------------------------------------------------------------- what is there

    @property
    def _core(self) -> Any:
        if not self.cluster.brokers[0].running:
            raise UsageError("the broker does not run: call restart()")
        return self.cluster.brokers[0].core

    def messages(self, topic: str, begins: Mapping[int, int] | None = None) -> list[StoredMessage]:
        """Return the messages that consumers of a topic may see, in the order of storing; from the offset ``begins`` of each queue.

        Raises BrokerError, NetworkError.
        """
        config = self._core.topics.get(topic)
        queues = 0 if config is None else config.read_queue_nums
        found = [
            message
            for queue_id in range(queues)
            for message in self.ask(self._queue(topic, queue_id, (begins or {}).get(queue_id, 0)))
        ]
        return sorted(found, key=lambda message: message.physical_offset)

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end of each queue of a topic: the offset of its next message. Raises BrokerError, NetworkError."""
        config, address = self._core.topics.get(topic), self.cluster.brokers[0].address
        queues = 0 if config is None else config.read_queue_nums
        replies = [self.cluster.request(address, GetMaxOffset(topic=topic, queue_id=queue_id)) for queue_id in range(queues)]
        return {queue_id: reply.header(OffsetReply).offset for queue_id, reply in enumerate(replies)}

    def _queue(self, topic: str, queue_id: int, offset: int) -> Op[list[StoredMessage]]:
        found: list[StoredMessage] = []
        while True:
            request = pull_request("readers", topic, queue_id, offset)
            reply = yield Call(self.cluster.brokers[0].address, request, b"", CALL_MS)
            if reply.code == 0:
                found += [message for message, _ in messages_of(reply)]
            elif reply.code not in (20, 21):
                return found
            following = reply.header(PullMessageReply).next_begin_offset
            if following <= offset:
                return found
            offset = following


class WorldProducer:
    """A producer in a world. ``client`` is its core with its machine."""

    client: SimProducer | SimTransactionProducer

    def __init__(self, world: World, client: SimProducer | SimTransactionProducer, owner: object = None) -> None:
        self.client, self.owner, self._world = client, owner, world

    def send(self, message: Message, **options: Any) -> SendResult:
        """Send a message and return where it is. ``options`` and errors are those of `halfmoon.Producer.send`."""
        return self._world.ask(self.client.sender.send(message, **options), self.client)

    async def send_async(self, message: Message, **options: Any) -> SendResult:
        """As `send`, for coroutines; the world does not let them wait."""
        return self.send(message, **options)


class WorldTransactionProducer(WorldProducer):
    """A transactional producer in a world."""

    client: SimTransactionProducer

    def prepare(self, message: Message, **limits: Unpack[Limits]) -> OpenHalf:
        """Store a half message; `decide` or `leave` it. Raises as `send`."""
        half = self.client.transactions.half(message, **limits)
        return self._world.ask(half.store_safe(), self.client)

    def decide(self, half: OpenHalf, *, commit: bool) -> None:
        """Commit a half message, or roll it back: the second phase, one-way. Deciding again sends it again."""
        state = LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK
        with self._world.lock:  # no other thread, and no child forked by one, finds the decision on its way
            self._world.ask(half.decide(state) if half.open else self.client.transactions.second_phase(half, state), self.client)
            self._world._run(lambda: False, 1)  # nobody answers: the decision arrives meanwhile

    def leave(self, half: OpenHalf) -> None:
        """Let checks find out what becomes of a half message."""
        if half.open:
            half.leave()


class WorldConsumer:
    """A push consumer in a world."""

    def __init__(self, world: World, client: SimPushConsumer, owner: object) -> None:
        self.client, self.owner, self._world = client, owner, world

    def close(self) -> None:
        """Stop cleanly: keep the progress and leave the group. Messages that it has not begun with are the next member's."""
        self._world.forget(self.owner)
        self._world.ask(self.client.core.stop(), self.client)
        self.client.kill()
        self._world.forget(self.owner)  # what it began with while it stopped
