"""Services of a shop as processes: publishers and consumers, and what starts one again whenever it was killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.events.outcomes.forked import Forked
from tests.events.outcomes.shop import Shop

ENDLESS = 1_000_000
"""Orders of a publisher that places some until it is killed."""


class Restarted:
    """A program that is started again whenever it has ended, by a kill or by an error. ``output`` is what it wrote in all."""

    def __init__(self, begin: Callable[[], Forked]) -> None:
        self._begin, self.output = begin, ""
        self._ended = False
        self._process = begin()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while True:
            process = self._process
            self.output += process.stdout.read()
            process.stdout.close()
            process.wait()
            if self._ended:
                return
            time.sleep(0.2)  # while a server is down it ends at once
            self._process = self._begin()

    def kill(self) -> None:
        """Kill it with -9."""
        self._process.kill()

    def end(self) -> None:
        """Kill it for the last time."""
        self._ended = True
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.1)


def options(shop: Shop, mode: str, *, orders: int, seed: int) -> list[str]:
    """Return options of a publisher of a shop."""
    return [
        *("--topic", shop.topic, "--group", shop.producers, "--mode", mode),
        *("--orders", str(orders), "--seed", str(seed)),
    ]


def published(output: str) -> list[str]:
    """Return the ids of the events that a process was about to publish."""
    return [line.split()[1] for line in output.splitlines() if line.startswith("event ") and len(line.split()) == 2]


def consuming(shop: Shop, url: str, *, ready: bool = True) -> Forked:
    """Start a consumer of a shop; ``ready``: wait until it consumes."""
    arguments = [shop.cluster.nameserver, url, "--topic", shop.topic, "--group", f"{shop.group}_dedup"]
    process = Forked("tests.events.outcomes.consuming_victim", arguments)
    assert not ready or process.stdout.readline() == "ready\n"
    return process
