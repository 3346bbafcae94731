"""MemoryBus from many threads, and without any extra package."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from halfmoon.events import Consumers, Event, Publisher, local_transaction
from halfmoon.events.consuming.on import Handler
from halfmoon.events.testing import MemoryBus

PAID = ("TP_ORDER", "EC_PAID")


def handler(function: Any, **options: Any) -> Handler:
    return Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=function, **options)


def test_many_threads_publish_decide_and_are_asked_at_once():
    bus, data, got, lock = MemoryBus(checks_max=10**6), set(), Counter[str](), threading.Lock()

    def check(event: Event, context: Any) -> None:
        if event.id not in data:
            context.set_rollback_only()

    shops = [Publisher(f"P_shop{n}", transport=bus) for n in range(4)]  # who runs a transaction is who is asked about it
    for shop in shops:
        shop.check()(check)
        shop.start()

    def consume(event: Event) -> None:
        with lock:
            got[event.id] += 1

    def work(shop: Publisher, number: int) -> None:
        for n in range(50):
            event = shop.event(*PAID, n, transactional=True)
            try:
                with local_transaction(commit=lambda event=event: data.add(event.id)):
                    shop.publish(event)
                    if n % 5 == number:
                        raise LookupError
            except LookupError:
                pass

    stop = threading.Event()

    def broker() -> None:
        while not stop.is_set():
            bus.check_now()
            bus.deliver()

    with Consumers(handler(consume), bus=bus):
        bus.lose_second_phase(60)
        threads = [threading.Thread(target=work, args=(shop, n)) for n, shop in enumerate(shops)]
        asking = threading.Thread(target=broker)
        for thread in [*threads, asking]:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        asking.join()
        bus.check_now()
        bus.deliver()

    assert bus.pending == ()
    assert bus.expired == ()
    assert set(got) == data
    assert set(got.values()) == {1}
    assert (len(data), len(bus.rolled_back)) == (160, 40)
    for shop in shops:
        shop.close()


@pytest.mark.slow
def test_without_any_extra_package_events_are_published_and_consumed():
    script = """
import sys
for name in ("sqlalchemy", "django", "opentelemetry", "pydantic"):
    sys.modules[name] = None
from halfmoon.events import Consumers, Publisher, on
from halfmoon.events.testing import MemoryBus
bus = MemoryBus()
@on("S_mail", "TP_ORDER", "EC_PAID")
def mail(event): print(event.payload)
with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
    shop.publish("TP_ORDER", "EC_PAID", {"order_id": 42})
    bus.deliver()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("{'order_id': 42}\n", "")
