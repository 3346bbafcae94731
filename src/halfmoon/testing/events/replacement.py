"""Replacement of a publisher's broker by a `MemoryBus`, for a test: the publisher is one that a module of the application made."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from halfmoon.errors import UsageError
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.testing.events.bus import MemoryBus

_REPLACED = "_halfmoon_replaced"
_CLOSE_MS = 1_000
"""Longest wait for decisions at the end of a block."""


@contextmanager
def replace(*publishers: Publisher, bus: MemoryBus | None = None) -> Iterator[MemoryBus]:
    """Have publishers use a bus in place of their broker, inside the block; it gives the bus.

    ::

        @pytest.fixture
        def bus():
            with replace(shop.events.events) as bus:
                yield bus

    Everything else of a publisher stays: its sessions, its checks, its settings. Inside the block it begins anew, so that a
    `TestClient` may open and close it; afterwards it is as it was before. Raises UsageError for what is no publisher, for one that
    is replaced already, and for one whose own relay runs.
    """
    if not publishers:
        raise UsageError("replace() takes one publisher or several: replace(events)")
    bus = bus or MemoryBus()
    with ExitStack() as stack:
        for publisher in publishers:
            stack.enter_context(_on(publisher, bus))
        yield bus


@contextmanager
def _on(publisher: Publisher, bus: MemoryBus) -> Iterator[None]:
    if not isinstance(publisher, Publisher):
        raise UsageError(
            f"replace() takes publishers, not {publisher!r:.60}; the events of a Django project follow "
            "override_settings(HALFMOON={…, 'TRANSPORT': bus})"
        )
    if _REPLACED in vars(publisher):
        raise UsageError(f"publisher {publisher.group} is replaced already: leave that block first, or use its bus")
    if publisher._relay is not None:
        raise UsageError(f"publisher {publisher.group} has a relay that would send to its broker: replace it before it is used")
    before = dict(vars(publisher))
    given = {**publisher._arguments, "transport": bus, "nameserver": "", "lazy": False, "codecs": publisher.codecs}
    anew = set(before)
    try:
        Publisher.__init__(publisher, **given)
        anew = {name for name, value in vars(publisher).items() if value is not before.get(name, before)}
        publisher._checks.share(before["_checks"])
        publisher._facade.body_bytes_max = before["_facade"].body_bytes_max
        publisher._retention = None
        setattr(publisher, _REPLACED, True)
        try:
            yield
        finally:
            publisher.close(_CLOSE_MS)
    finally:
        for name in anew | {_REPLACED, "_relay", "_retention", "_started", "_closed"}:
            vars(publisher).pop(name, None)
        vars(publisher).update({name: value for name, value in before.items() if name not in vars(publisher)})
        if publisher._started:
            atexit.register(publisher._at_exit)
