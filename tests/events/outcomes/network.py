"""A network between clients and the brokers of a cluster, which loses what a test names: requests, answers, one-way messages.

Clients are given `Network.nameserver`; the routes that come back through it lead to the broker through here, too. Frames pass as
they are; only the outcome of losing one is the test's business.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, Self

from halfmoon.wire.command import Command, decode, encode, reply_command

SEND, SEND_BATCH, END_TRANSACTION, CHECK = 310, 320, 37, 39
SYSTEM_ERROR = 1

_PREFIX = Struct(">iI")
_HOST = "127.0.0.1"

Matches = Callable[[Command], bool]


class Fault(NamedTuple):
    """What happens to requests of a code that match: ``request`` lost, ``answer`` lost, or ``refuse`` (an answer of our own)."""

    kind: str
    code: int
    matches: Matches
    refusal: int = 0


def is_half(command: Command) -> bool:
    """Whether a send stores a half message."""
    return b"TRAN_MSG\x01true" in _properties(command)


def is_plain(command: Command) -> bool:
    """Whether a send is seen by consumers at once."""
    return not is_half(command)


def once() -> Matches:
    """A match that holds for the first command."""
    left = iter([True])
    return lambda command: next(left, False)


def _properties(command: Command) -> bytes:
    return (command.fields.get("i") or command.fields.get("properties") or "").encode()


class Network:
    """Passes on what clients and the brokers of a cluster say to each other. A context manager; belongs to one test."""

    def __init__(self, nameserver: str, *brokers: str) -> None:
        self._targets = {"nameserver": nameserver, **{f"broker {number}": broker for number, broker in enumerate(brokers)}}
        self._addresses: dict[str, str] = {}
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy network", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Future[None]] = set()
        self._closed = False
        self.passed: Counter[int] = Counter()
        """Requests that clients sent and that reached a broker, by code."""
        self.lost: Counter[str] = Counter()
        """What was lost or refused, by kind of fault."""
        self.asked = 0
        """Checks that a broker sent to clients and that reached them."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Cut everything and end. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)
            self._loop.close()

    @property
    def nameserver(self) -> str:
        """The address that clients are given."""
        return self._addresses["nameserver"]

    # ------------------------------------------------------------ faults

    def lose(self, what: str, code: int, matches: Matches = lambda command: True) -> None:
        """From now on lose each ``request`` of a code on its way to a broker, or each ``answer`` to one on its way back."""
        with self._lock:
            self._faults.append(Fault(what, code, matches))

    def refuse(self, code: int, refusal: int, matches: Matches = lambda command: True) -> None:
        """From now on answer requests of a code with an error, and tell no broker."""
        with self._lock:
            self._faults.append(Fault("refuse", code, matches, refusal))

    def break_sends(self, how: str) -> None:
        """From now on have all sends ``refused``, or their ``request lost`` or ``answer lost``."""
        if how == "refused":
            self.refuse(SEND, SYSTEM_ERROR)
        else:
            self.lose(how.removesuffix(" lost"), SEND)

    def heal(self) -> None:
        """Lose nothing any more."""
        with self._lock:
            self._faults.clear()

    def _fault(self, command: Command) -> Fault | None:
        with self._lock:
            return next((one for one in self._faults if one.code == command.code and one.matches(command)), None)

    # ------------------------------------------------------------ on the loop

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _open(self) -> None:
        for name in self._targets:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
                self._serving.add(task := asyncio.ensure_future(self._serve(name, reader, writer)))
                await task
                self._serving.discard(task)

            server = await asyncio.start_server(serve, _HOST, 0)
            self._servers.append(server)
            self._addresses[name] = f"{_HOST}:{server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._targets[name].rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        waiting: dict[int, Fault] = {}
        up = asyncio.create_task(self._requests(name, reader, writer, far_writer, waiting))
        down = asyncio.create_task(self._answers(name, far_reader, writer, waiting))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            for one in (writer, far_writer):
                one.transport.abort()
            self._writers -= {writer, far_writer}

    async def _requests(
        self,
        name: str,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        on: asyncio.StreamWriter,
        waiting: dict[int, Fault],
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                raw, command = await _frame(reader)
                fault = None if name == "nameserver" or command.is_response else self._fault(command)
                if fault is not None and fault.kind != "answer":
                    self.lost[fault.kind] += 1
                    if fault.kind == "refuse":
                        back.write(encode(reply_command(command, fault.refusal, "refused by the test")))
                    continue
                if fault is not None:
                    waiting[command.opaque] = fault
                if name != "nameserver" and not command.is_response:
                    self.passed[command.code] += 1
                on.write(raw)

    async def _answers(self, name: str, reader: asyncio.StreamReader, on: asyncio.StreamWriter, waiting: dict[int, Fault]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                raw, command = await _frame(reader)
                if command.is_response and (fault := waiting.pop(command.opaque, None)) is not None:
                    self.lost[fault.kind] += 1
                    continue
                if not command.is_response and command.code == CHECK:
                    if (fault := self._fault(command)) is not None:
                        self.lost[fault.kind] += 1
                        continue
                    self.asked += 1
                if name == "nameserver" and command.body:
                    for target, real in self._targets.items():
                        command.body = bytes(command.body).replace(real.encode(), self._addresses[target].encode())
                    raw = encode(command)
                on.write(raw)


async def _frame(reader: asyncio.StreamReader) -> tuple[bytes, Command]:
    prefix = await reader.readexactly(_PREFIX.size)
    total, word = _PREFIX.unpack(prefix)
    rest = await reader.readexactly(total - 4)
    serialization, length = word >> 24, word & 0xFFFFFF
    return prefix + rest, decode(rest[:length], rest[length:], serialization)
