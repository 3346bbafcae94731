"""A simulated network: connections that delay, split, join, lose and cut; hosts that vanish. Bytes only, no frames, no threads.

What TCP promises is kept: bytes of one direction arrive in order and once, or the connection ends. What TCP leaves open is
drawn from the seed: when bytes arrive, how they are cut and joined, and how much of what was on its way arrives before a
connection is lost. A host without power answers nothing, so its peers hold half-open connections until they write to it after
it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from halfmoon.errors import ConnectFailed
from halfmoon.testing.timeline import Timeline

KNOCK_AGAIN_US, KNOCK_AGAIN_MAX_US = 1_000_000, 64_000_000
"""Pauses before a host without an answer knocks again: a second, then twice that, as Linux does."""

DELAY_US = 40, 400
"""Least and longest time that a piece of bytes takes, microseconds."""


class End:
    """One side of a connection. Set ``on_data`` and ``on_closed``; they are called in virtual time, never from within `send`."""

    def __init__(self, network: Network, host: str, local: str, remote: str) -> None:
        self.network, self.host, self.local, self.remote = network, host, local, remote
        self.other: End = self
        self.open = True
        self.on_data: Callable[[bytes], None] = _ignore
        self.on_closed: Callable[[], None] = lambda: None
        self._outgoing: deque[tuple[int, list[Any] | None]] = deque()  # when it may arrive, pieces; None: the end of the stream
        self._rest = b""  # arrived, not yet handed over
        self._arrival_us = 0
        self._broken = False  # the connection is lost, and this side does not know it yet

    def send(self, pieces: Iterable[Any]) -> None:
        """Send pieces of bytes; on a closed end they are lost. The pieces are copied when they leave, a little later."""
        if self.open and not self._broken:
            self.network._post(self, list(pieces))

    def close(self) -> None:
        """Close this side: what was sent still arrives, then the other side is told. Nothing more is handed over here."""
        if self.open:
            self.open = False
            self.network._forget(self)
            self.network._post(self, None)


class Network:
    """All connections between hosts. A host is a name such as ``10.0.0.1``; an address is ``host:port``.

    ``delay_us`` are the least and the most a piece takes; ``split_chance`` is how often an arrival is cut in two.
    """

    def __init__(self, timeline: Timeline, *, delay_us: tuple[int, int] = DELAY_US, split_chance: float = 0.15) -> None:
        self.delay_us, self.split_chance = delay_us, split_chance
        self._timeline = timeline
        self._random = timeline.split("network")
        self._listeners: dict[str, Callable[[End], None]] = {}
        self._cuts: set[frozenset[str]] = set()
        self._cut_off: dict[str, frozenset[str]] = {}
        self._dark: set[str] = set()
        self._ends: dict[str, list[End]] = {}
        self._port = 30_000

    # ---------------------------------------------------------------- connections

    def listen(self, address: str, accept: Callable[[End], None]) -> None:
        """Take connections at an address: ``accept`` gets this side's end and sets its callbacks."""
        self._listeners[address] = accept

    def unlisten(self, address: str) -> None:
        """Refuse connections at an address from now on."""
        self._listeners.pop(address, None)

    def connect(self, host: str, address: str, done: Callable[[End | ConnectFailed], None]) -> None:
        """Connect from a host to an address. ``done`` gets the end or a refusal; it is never called when nobody ever answers."""
        self._timeline.after_us(self._delay(), lambda: self._knock(host, address, done, KNOCK_AGAIN_US))

    def _knock(self, host: str, address: str, done: Callable[[End | ConnectFailed], None], again_us: int) -> None:
        target = address.rpartition(":")[0]
        if host in self._dark:
            return
        if self.apart(host, target):
            if again_us <= KNOCK_AGAIN_MAX_US:
                self._timeline.after_us(again_us, lambda: self._knock(host, address, done, 2 * again_us))
            elif self._is_cut_off(host, target):
                done(ConnectFailed(f"connection to {address} timed out", address))
            return
        accept = self._listeners.get(address)
        if accept is None:
            error = ConnectFailed(f"connection to {address} refused", address)
            error.refused = True
            self._timeline.after_us(self._delay(), lambda: done(error))
            return
        self._port += 1
        near = End(self, host, f"{host}:{self._port}", address)
        far = End(self, target, address, near.local)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends.setdefault(end.host, []).append(end)
        accept(far)
        self._timeline.after_us(self._delay(), lambda: done(near))

    def connections(self, host: str) -> list[End]:
        """Return the open ends at a host, oldest first."""
        return list(self._ends.get(host, ()))

    # ---------------------------------------------------------------- faults

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two hosts until `heal`; their connections stay, and wait."""
        self._cuts.add(frozenset((one, other)))

    def cut_off(self, host: str, but: Iterable[str]) -> None:
        """Let nothing through between a host and all others ``but`` some until `heal`, also those that are added later."""
        self._cut_off[host] = frozenset((host, *but))

    def heal(self) -> None:
        """Undo every `cut` and `cut_off`; what waited is delivered."""
        self._cuts.clear()
        self._cut_off.clear()
        for end in [end for ends in self._ends.values() for end in ends]:
            self._wake(end)
            self._wake(end.other)

    def apart(self, one: str, other: str) -> bool:
        """Whether nothing passes between two hosts: they are cut off, or one has no power."""
        is_cut = self._is_cut_off(one, other) or frozenset((one, other)) in self._cuts
        return is_cut or one in self._dark or other in self._dark

    def _is_cut_off(self, one: str, other: str) -> bool:
        return other not in self._cut_off.get(one, (other,)) or one not in self._cut_off.get(other, (one,))

    def lose(self, end: End) -> None:
        """Break a connection: some of what is on its way is lost, and both sides are told, each at its own time."""
        for side in (end, end.other):
            self._lose_tail(side)
            side._broken = True
            self._timeline.after_us(self._delay(), partial(self._tell_closed, side))

    def half_open(self, end: End) -> None:
        """Break a connection for one side only; the other learns of it when it writes."""
        self._lose_tail(end.other)
        end._outgoing.clear()
        self._tell_closed(end)

    def kill(self, host: str) -> None:
        """End the process of a host: its system closes its connections, and some of what was not sent yet is lost."""
        for address in [address for address in self._listeners if address.rpartition(":")[0] == host]:
            self.unlisten(address)
        for end in self.connections(host):
            self._lose_tail(end)
            end.close()

    def power_off(self, host: str) -> None:
        """Take a host's power: nobody is told anything."""
        for address in [address for address in self._listeners if address.rpartition(":")[0] == host]:
            self.unlisten(address)
        for end in self._ends.pop(host, []):
            end.open, end._rest = False, b""
            end._outgoing.clear()
        self._dark.add(host)

    def power_on(self, host: str) -> None:
        """Give a host its power back; whoever still writes on an old connection is told that it is gone."""
        self._dark.discard(host)
        for end in [end for ends in self._ends.values() for end in ends]:
            self._wake(end)

    # ---------------------------------------------------------------- delivery

    def _delay(self) -> int:
        low, high = self.delay_us
        return self._random.randint(low, high)

    def _post(self, end: End, pieces: list[Any] | None) -> None:
        end._arrival_us = max(end._arrival_us, self._timeline.now_us + self._delay())
        end._outgoing.append((end._arrival_us, pieces))
        self._timeline.after_us(end._arrival_us - self._timeline.now_us, lambda: self._arrive(end))

    def _wake(self, end: End) -> None:
        if end._outgoing or end._rest:
            self._timeline.after_us(self._delay(), lambda: self._arrive(end))

    def _arrive(self, end: End) -> None:
        """Hand over what has arrived of the bytes that ``end`` sent."""
        other, queue = end.other, end._outgoing
        if self.apart(end.host, other.host):
            return  # it stays in the queue until the cut heals or the power is back
        data, ended = end._rest, False
        while queue and queue[0][0] <= self._timeline.now_us and not ended:
            pieces = queue.popleft()[1]
            ended = pieces is None
            if pieces is not None:
                data += b"".join(pieces)
        end._rest = b""
        if not other.open:
            if data and end.open:  # the other side is gone: its system says so
                self._timeline.after_us(self._delay(), lambda: self._tell_closed(end))
            return
        if len(data) > 1 and self._random.random() < self.split_chance:
            at = self._random.randrange(1, len(data))
            data, end._rest = data[:at], data[at:]
            if ended:
                queue.appendleft((self._timeline.now_us, None))
                ended = False
            self._timeline.after_us(self._delay(), lambda: self._arrive(end))
        if data:
            other.on_data(data)
        if ended:
            self._tell_closed(other)

    def _tell_closed(self, end: End) -> None:
        if end.open:
            end.open = False
            self._forget(end)
            end.on_closed()

    def _lose_tail(self, end: End) -> None:
        for _ in range(self._random.randint(0, len(end._outgoing))):
            end._outgoing.pop()
        if end._rest and self._random.random() < 0.5:
            end._rest = b""
            end._outgoing.clear()

    def _forget(self, end: End) -> None:
        ends = self._ends.get(end.host)
        if ends and end in ends:
            ends.remove(end)


def _ignore(data: bytes) -> None:
    """Bytes for an end that nobody reads yet."""
