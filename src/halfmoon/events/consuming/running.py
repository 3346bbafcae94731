"""Running consumers as a process: until SIGTERM or SIGINT, then what is in hand is finished. And the module that a name means."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Unpack

from halfmoon.errors import UsageError
from halfmoon.events.consuming.consumers import Consumers, ConsumersOptions
from halfmoon.events.consuming.loop import run_loop

log = logging.getLogger("halfmoon.events")

REGISTERED_EVERY_S = 0.05
"""How often a start looks whether every group is registered."""

Ready = Callable[[Consumers], Any]


class ModuleRefused(UsageError):
    """A module of consumers that cannot be imported, or that declares none. ``name`` is the module's."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"module {name}: {what}")
        self.name = name


def run(*what: object, nameserver: str = "", ready: Ready | None = None, **options: Unpack[ConsumersOptions]) -> int:
    """Consume events until SIGTERM or SIGINT; finish what is in hand, for a bounded time. A second signal ends it at once.

    ::

        run("shop.consumers", nameserver="127.0.0.1:9876")

    ``what`` and ``options`` are those of `Consumers`; a text is the name of a module, which is imported. ``ready(consumers)`` is
    called when every group is registered at the brokers of its topics. In another thread than the main one no signal is heard: use
    `Consumers` there. Returns how many functions still run: their threads end with them, and the process then.

    Raises ModuleRefused, and what `Consumers` raises.
    """
    return run_loop(run_async(*what, nameserver=nameserver, ready=ready, **options))


async def run_async(
    *what: object,
    nameserver: str = "",
    ready: Ready | None = None,
    stop: asyncio.Event | None = None,
    **options: Unpack[ConsumersOptions],
) -> int:
    """As `run`, on the running event loop; also until ``stop`` is set, or until it is cancelled."""
    consumers = Consumers(
        *(module_named(module) if isinstance(module, str) else module for module in what), nameserver=nameserver, **options
    )
    stop = stop or asyncio.Event()
    with _signals(stop, asyncio.current_task()):
        await consumers.start_async()
        try:
            if ready is not None and await _registered(consumers, stop):
                ready(consumers)
            await stop.wait()
        finally:
            log.info("consumers are stopping: groups=%s running=%d", ",".join(consumers.groups), consumers.busy)
            try:
                await consumers.close_async()
            except asyncio.CancelledError:  # by a second signal: what is in hand is left to who gets it next
                log.warning("consumers stopped at once: running=%d", consumers.busy)
    return consumers.busy


async def _registered(consumers: Consumers, stop: asyncio.Event) -> bool:
    """Wait until every group is registered at its brokers (True), or ``stop`` is set."""
    while not consumers.registered and not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), REGISTERED_EVERY_S)
    return not stop.is_set()


@contextmanager
def _signals(stop: asyncio.Event, task: asyncio.Task[Any] | None) -> Iterator[None]:
    """Have the first signal set ``stop``, and the next one cancel the task. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard() -> None:
        if not stop.is_set():
            stop.set()
        elif task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def module_named(name: str) -> ModuleType:
    """Return a module by its dotted name. Raises ModuleRefused when it is not there or raises."""
    if not name or not all(identifier.isidentifier() for identifier in name.split(".")):
        raise ModuleRefused(name, "that is no name of a module; write it with dots, such as shop.consumers")
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise ModuleRefused(
                name, f"there is no module {exc.name}; give a dotted name, and see that PYTHONPATH has its directory"
            ) from exc
        raise ModuleRefused(name, f"it needs {exc.name}, which is not installed ({_where(exc)})") from exc
    except Exception as exc:
        text = exc.msg if isinstance(exc, SyntaxError) else exc  # whose text would name file and line once more
        raise ModuleRefused(name, f"{type(exc).__name__}: {text} ({_where(exc)})") from exc


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "nowhere"
