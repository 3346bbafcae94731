"""`Service`, the contract between the broker and its parts, and `Services`, the parts of one broker. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from halfmoon.broker.request import Handler, Handlers
from halfmoon.effects import CoreEffect
from halfmoon.instant import Instant, Steady
from halfmoon.metrics import Samples
from halfmoon.wire.table import request_type

H = TypeVar("H", bound=Callable[..., Any])


def handled_last(handler: H) -> H:
    """Declare that a request is handled after all others of its turn: it reads what they made visible."""
    handler.handled_last = True  # type: ignore[attr-defined]
    return handler


class Service:
    """One part of the broker: the requests that it answers, and its share in what happens to the broker.

    A new part is a class with this base and its place in the list of `halfmoon.broker.broker.Broker._register`, and nowhere else;
    one that slaves have, too, also in that of `halfmoon.broker.copies.serving.Serving`.
    Each fact about a request stands where it is written: the permission and the object that it needs at the class of its header
    (``@request(…, needs=…)``); at the method that answers it the tables that it changes, which are saved before the answer
    (`halfmoon.broker.saving.saves`), and whether it is handled last in a turn (`handled_last`). ::

        class Locks(Service):
            def handlers(self) -> Handlers:
                return {LockBatchMq: self.lock, UnlockBatchMq: self.unlock}

            def lost(self, peer: int, *, by_us: bool) -> None:
                ...

    All hooks have a default that does nothing. The broker calls those alone that a service overrides, so that the others cost
    nothing, and calls them in the order of the tuple. No hook may wait.
    """

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {}

    def due(self, now: Instant) -> Steady | None:
        """Return when `tick` wants to be called next; None: at no time."""
        return None

    def tick(self, now: Instant) -> None:
        """Do what time asks for: deadlines and periodic work. May come early."""

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Forget a connection that was lost; ``by_us``: the broker closed it."""

    def topic_deleted(self, topic: str) -> None:
        """Forget a topic that was deleted."""

    def group_deleted(self, group: str) -> None:
        """Forget a consumer group that was deleted."""

    def settings_changed(self, now: Steady) -> None:
        """Heed settings that an operator changed: no interval that is under way lasts longer than it says now."""

    def work(self) -> Sequence[CoreEffect]:
        """Take out what is to be run where waiting is allowed. Called at the end of each turn, before its answers leave."""
        return ()

    def texts(self, now: Instant) -> Mapping[str, str]:
        """Return what it adds to the runtime information (28)."""
        return {}

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield the present values of its metrics; ``broker`` is the label that they begin with. Changes nothing."""
        return iter(())

    def stop(self, now: Instant) -> None:
        """Begin a clean stop: take nothing more, and answer what waits."""

    def close(self, now: Instant) -> None:
        """Give files back, after the last append and before the store is closed. Waits for the device."""


class Services:
    """The parts of one broker, in order. ``ticks`` and ``works`` are overridden hooks, which the broker calls by itself."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self.parts: list[Service] = []
        self.ticks: list[Callable[[Instant], None]] = []
        self.works: list[Callable[[], Sequence[CoreEffect]]] = []

    def register(self, *services: Service | None) -> None:
        """Register the parts, once; None is one that the settings leave out."""
        self.parts = [service for service in services if service is not None]
        for name, default in vars(Service).items():
            if not name.startswith("_"):
                hooks = [getattr(service, name) for service in self.parts]
                self._hooks[name] = [hook for hook in hooks if getattr(hook, "__func__", hook) is not default]
        self.ticks, self.works = self._hooks["tick"], self._hooks["work"]

    def handlers(self) -> Iterator[tuple[int, Handler]]:
        """Yield the code of each request and its handler."""
        for handlers in self._hooks["handlers"]:
            yield from ((request_type(header).code, handler) for header, handler in handlers().items())

    def dues(self, now: Instant) -> Iterator[Steady | None]:
        """Yield when each service wants its next tick."""
        return (due(now) for due in self._hooks["due"])

    def call(self, hook: str, *arguments: Any, **named: Any) -> None:
        """Call a hook of all services that override it; one that comes rarely."""
        for overridden in self._hooks[hook]:
            overridden(*arguments, **named)

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield the values of the metrics of all services."""
        for of_service in self._hooks["samples"]:
            yield from of_service(broker, now)
            yield None

    def texts(self, now: Instant) -> dict[str, str]:
        """Return the runtime information (28) of all services."""
        texts: dict[str, str] = {}
        for of_service in self._hooks["texts"]:
            texts |= of_service(now)
        return texts
