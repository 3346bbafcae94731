"""Runs operations (generators over `halfmoon.effects`) in virtual time, with real frames over the simulated network.

`Driver` is to a simulation what `runtime.drivers.asyncio_driver` is to asyncio: the same operation runs under both. `Calls` keeps
one connection an address, as a client does, and matches replies by opaque. Nothing here knows what an operation is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from halfmoon import effects
from halfmoon.effects import Op
from halfmoon.errors import ConnectFailed, ConnectionLost, NetworkError, PeerError, RequestTimeout
from halfmoon.testing.network import End, Network
from halfmoon.testing.timeline import Timeline, TimelineTimer
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, decode, encode, request_command
from halfmoon.wire.frame import Inbox

T = TypeVar("T")
Answer = Callable[[Command], None]
Handler = Callable[[str, Command, Answer], None]
Resume = Callable[[Any, BaseException | None], None]
"""Goes on with an operation: gets what it waited for, or an error."""

Loss = tuple[Callable[[Any], bool], int, bool]
"""Requests that will be lost: which ones, how many, and whether only their answers are."""


class StillRunning(RuntimeError):
    """The result of an operation was asked for before it ended."""


class Task(Generic[T]):
    """An operation that runs. ``result()`` is what it returned, or raises what it raised."""

    def __init__(self, operation: Op[T], name: str) -> None:
        self.name = name
        self.done = False
        self._operation = operation
        self._result: T | None = None
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []
        self._abandon: Callable[[], None] = _nothing  # ends the wait that the operation is in
        self._wait_number = 0

    def result(self) -> T:
        """Return what the operation returned. Raises what it raised, or StillRunning."""
        if not self.done:
            raise StillRunning(f"{self.name or 'operation'} has not ended")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        """Error that it raised, if it did."""
        return self._error

    def then(self, action: Callable[[], None]) -> None:
        """Do something when it has ended (at once when it has)."""
        if self.done:
            action()
        else:
            self._then.append(action)

    def cancel(self) -> None:
        """End it where it waits; its ``finally`` clauses run, its result is an error."""
        if not self.done:
            self._abandon()
            self._operation.close()
            self._end(error=StillRunning(f"{self.name} was cancelled"))

    def forget(self) -> None:
        """Let it never go on, as when its process was killed: nothing of it runs any more, no ``finally`` either."""
        self._abandon = _nothing
        self._wait_number += 1
        self._then.clear()

    def _end(self, result: T | None = None, error: BaseException | None = None) -> None:
        self.done, self._result, self._error = True, result, error
        self._wait_number += 1
        then, self._then = self._then, []
        for action in then:
            action()


class Driver:
    """Runs operations at one host. ``now`` is that host's clock."""

    def __init__(self, timeline: Timeline, calls: Calls, now: Callable[[], int], name: str) -> None:
        self._timeline, self._calls, self._now, self._name = timeline, calls, now, name
        self._random = timeline.split(f"driver {name}")
        self._tasks: dict[int, Task[Any]] = {}
        self._number = 0

    def start(self, operation: Op[T], name: str = "") -> Task[T]:
        """Start an operation; it goes on whenever the world runs."""
        task = Task(operation, name)
        self._number += 1
        number = self._number
        self._tasks[number] = task
        task.then(lambda: self._forget_task(number))
        self._timeline.after_us(0, partial(self._advance, task, task._wait_number, None, None))
        return task

    def kill(self) -> None:
        """Forget every operation, as a killed process does."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.forget()
        self._calls.kill()

    def _forget_task(self, number: int) -> None:
        self._tasks.pop(number, None)

    def _advance(self, task: Task[Any], wait_number: int, value: Any, error: BaseException | None) -> None:
        """Go on with an operation until it waits again. ``wait_number`` says which wait has ended: an old one is ignored."""
        if task.done or wait_number != task._wait_number:
            return
        while True:
            task._abandon = _nothing
            try:
                asked = task._operation.send(value) if error is None else task._operation.throw(error)
            except StopIteration as stop:
                return task._end(result=stop.value)
            except Exception as exc:
                return task._end(error=exc)
            task._wait_number += 1
            ready, value = self._begin(task, asked)
            error = None
            if not ready:
                return

    def _begin(self, task: Task[Any], asked: Any) -> tuple[bool, Any]:
        """Begin what an operation asks for: either (True, its answer), or (False, None) and the answer comes later."""
        resume = partial(self._advance, task, task._wait_number)
        if isinstance(asked, effects.Now):
            return True, self._now()
        if isinstance(asked, effects.SteadyTime):
            return True, self._timeline.elapsed_ms
        if isinstance(asked, effects.OnLoop):
            return True, asked.operation
        if isinstance(asked, effects.Spawn):
            return True, self.start(asked.operation, asked.name)
        if isinstance(asked, effects.Sleep):
            task._abandon = self._timeline.after(asked.ms, partial(resume, None, None)).cancel
        elif isinstance(asked, effects.Call):
            task._abandon = self._calls.call(asked, resume)
        elif isinstance(asked, effects.Tell):
            task._abandon = self._calls.tell(asked, resume)
        elif isinstance(asked, effects.Gather):
            self._gather(task, asked, resume)
        elif isinstance(asked, effects.Wait):
            self._wait(task, asked, resume)
        elif isinstance(asked, effects.RunAside):
            self._wait_for(task, asked.operation, resume)
        elif isinstance(asked, effects.Run):
            delay_us = self._random.randint(1, 500)
            task._abandon = self._timeline.after_us(delay_us, partial(self._user_code, task, asked, resume)).cancel
        else:
            raise TypeError(f"{task.name} yielded {asked!r}, which is no effect")
        return False, None

    def _user_code(self, task: Task[Any], asked: effects.Run, resume: Resume) -> None:
        """Run the user's code; what it returns as an operation takes the time that this takes."""
        result, error = _run(asked)
        if inspect.isgenerator(result):
            self._wait_for(task, result, resume)
        else:
            resume(result, error)

    def _wait_for(self, task: Task[Any], operation: Op[Any], resume: Resume) -> None:
        child: Task[Any] = self.start(operation, task.name)
        child.then(lambda: resume(child._result, child._error))
        task._abandon = child.cancel

    def _gather(self, task: Task[Any], asked: effects.Gather, resume: Resume) -> None:
        children = [self.start(operation, task.name) for operation in asked.operations]
        left = len(children)

        def ended() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                resume([child._error if child._error is not None else child._result for child in children], None)

        for child in children:
            child.then(ended)
        if not children:
            self._timeline.after_us(0, lambda: resume([], None))

        def abandon() -> None:
            for child in children:
                child.cancel()

        task._abandon = abandon

    def _wait(self, task: Task[Any], asked: effects.Wait, resume: Resume) -> None:
        timer: TimelineTimer | None = None

        def wake() -> None:
            if timer is not None:
                timer.cancel()
            self._timeline.after_us(0, lambda: resume(True, None))

        def expire() -> None:
            asked.signal.unsubscribe(wake)
            resume(False, None)

        if asked.signal.subscribe(wake):
            self._timeline.after_us(0, lambda: resume(True, None))
            return
        if asked.timeout_ms is not None:
            timer = self._timeline.after(asked.timeout_ms, expire)

        def abandon() -> None:
            asked.signal.unsubscribe(wake)
            if timer is not None:
                timer.cancel()

        task._abandon = abandon


class Calls:
    """Requests of one host: one connection an address, replies matched by opaque, requests of the other side to a handler."""

    def __init__(
        self, timeline: Timeline, network: Network, host: str, *, handler: Handler | None = None,
        opened: Callable[[str], None] = lambda address: None, lost: Callable[[str], None] = lambda address: None,
        serialization: int = JSON, losses: list[Loss] | None = None,
    ) -> None:  # fmt: skip
        self._timeline, self._network, self._host = timeline, network, host
        self._losses = [] if losses is None else losses
        self._handler, self._opened, self._lost, self._serialization = handler, opened, lost, serialization
        self._lines: dict[str, _Line] = {}
        self._opaque = 0

    def call(self, asked: effects.Call, resume: Resume) -> Callable[[], None]:
        """Send a request; ``resume`` gets the reply or an error. Returns what abandons the wait."""
        self._opaque += 1
        line = self._line(asked.address)
        late = RequestTimeout(f"no answer from {asked.address} within {asked.timeout_ms} ms", asked.address)
        abandon = self._await(line, self._opaque, asked.timeout_ms, late, resume)
        command = request_command(asked.request, asked.body, opaque=self._opaque, serialization=self._serialization)
        lost = self._take_loss(asked.request)
        if lost is not None:  # nothing comes back, and the time runs
            line.waiting.pop(self._opaque)
        if lost is not False:
            line.send(encode(command))
        return abandon

    def tell(self, asked: effects.Tell, resume: Resume) -> Callable[[], None]:
        """Send a one-way request; ``resume`` is called once the bytes are handed over. Returns what abandons the wait."""
        self._opaque += 1
        kind, remark = self._serialization, asked.remark
        command = request_command(asked.request, asked.body, opaque=self._opaque, oneway=True, serialization=kind, remark=remark)
        line = self._line(asked.address)
        if self._take_loss(asked.request) is not None or line.send(encode(command)):
            return self._timeline.after_us(0, lambda: resume(None, None)).cancel
        late = RequestTimeout(f"no connection to {asked.address}", asked.address)
        return self._await(line, -self._opaque, asked.timeout_ms, late, lambda reply, error: resume(None, error))

    def _take_loss(self, request: Any) -> bool | None:
        """Return whether a request is to be lost (False), only its answer (True), or nothing (None); one loss is used up."""
        for place, (concerns, times, answer) in enumerate(self._losses):
            if concerns(request):
                self._losses[place : place + 1] = [(concerns, times - 1, answer)] if times > 1 else []
                return answer
        return None

    def _await(self, line: _Line, number: int, timeout_ms: int, late: NetworkError, resume: Resume) -> Callable[[], None]:
        """Wait for the reply with an opaque, or for the connection (a number below 0); return what abandons the wait."""

        def end(reply: Command | None, error: NetworkError | None) -> None:
            abandon()
            resume(reply, error)

        def abandon() -> None:
            line.waiting.pop(number, None)
            timer.cancel()

        timer = self._timeline.after(timeout_ms, lambda: end(None, late))
        line.waiting[number] = end
        return abandon

    def kill(self) -> None:
        """Forget all connections and waits."""
        for line in self._lines.values():
            line.waiting.clear()
            line.dead = True
        self._lines.clear()

    def _line(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None or line.dead:
            line = _Line(self._network, self._host, address, self._handler, self._opened, self._lost)
            self._lines[address] = line
        return line


Ended = Callable[[Command | None, NetworkError | None], None]


class _Line:
    """One connection to an address, being made or open, with what waits for its replies."""

    def __init__(
        self, network: Network, host: str, address: str, handler: Handler | None, opened: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.waiting: dict[int, Ended] = {}
        self.dead = False
        self._address, self._handler, self._opened, self._lost = address, handler, opened, lost
        self._end: End | None = None
        self._unsent: list[bytes] = []
        self._inbox = Inbox()
        network.connect(host, address, self._connected)

    def send(self, frame: bytes) -> bool:
        """Send a frame, or keep it until the connection is made; return whether it was handed over."""
        if self._end is None:
            self._unsent.append(frame)
            return False
        self._end.send([frame])
        return True

    def _connected(self, end: End | ConnectFailed) -> None:
        if isinstance(end, ConnectFailed):
            return self._broke(end)
        if self.dead:
            return end.close()
        if not end.open:  # it died between the other side's accept and now
            return self._broke(ConnectionLost(f"connection to {self._address} lost", self._address))
        self._end = end
        self._opened(self._address)
        end.on_data, end.on_closed = self._data, self._closed
        unsent, self._unsent = self._unsent, []
        end.send(unsent)
        for number in [number for number in self.waiting if number < 0]:
            self.waiting[number](None, None)

    def _data(self, data: bytes) -> None:
        if self.dead:
            return
        try:
            self._inbox.feed(data)
            commands = [decode(frame.header, frame.body, frame.serialization) for frame in self._inbox.frames()]
        except PeerError as exc:
            if self._end is not None:
                self._end.close()
            return self._broke(ConnectionLost(f"{self._address}: {exc}", self._address))
        for command in commands:
            command.body = bytes(command.body)
            if not command.is_response:
                if self._handler is not None:
                    self._handler(self._address, command, self._answer)
            elif command.opaque in self.waiting:
                self.waiting[command.opaque](command, None)

    def _answer(self, reply: Command) -> None:
        if self._end is not None:
            self._end.send([encode(reply)])

    def _closed(self) -> None:
        self._broke(ConnectionLost(f"connection to {self._address} lost", self._address))

    def _broke(self, error: NetworkError) -> None:
        if self.dead:
            return
        self.dead = True
        waiting, self.waiting = self.waiting, {}
        for ended in waiting.values():
            ended(None, error)
        if self._end is not None:
            self._lost(self._address)


def _run(asked: effects.Run) -> tuple[Any, BaseException | None]:
    try:
        found = asked.function(*asked.arguments)
        if inspect.iscoroutine(found):
            found.send(None)
            raise TypeError(f"{asked.function!r} waits for something that a simulated world does not have")
    except StopIteration as stop:
        return stop.value, None
    except Exception as exc:
        return None, exc
    return found, None


def _nothing() -> None:
    pass
