"""A slave beside a talk with its master, without sockets: its port is talked to as a broker's is."""

from __future__ import annotations

from random import Random
from typing import Any

from halfmoon.broker.copies.serving import Serving
from halfmoon.broker.copies.standby import TABLES, Standby
from halfmoon.store.epochs import Epochs
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import from_json, to_json
from tests.broker.copies.slave import log_of
from tests.broker.talk import Talk


class SlaveTalk(Talk):
    """A slave's port. `copy_log` and `copy_tables` bring what the master of another talk has; ``wakes`` counts asks for a turn."""

    def __init__(self, master: Any, disk: Any = None, **settings: Any) -> None:
        self.master, self.wakes = master, 0
        super().__init__("slave", disk=disk or SimDisk(Random(7)), **{"broker_id": 1, **settings})

    def open(self) -> None:
        """Start on its directory."""
        self.opaque = 0
        self.standby = Standby(self.settings, self.store_settings, self.disk, Epochs(self.disk, "5" * 32, ()), self.instant)
        self.broker = Serving(self.standby, self.settings, self.disk, Random(1), self.instant)
        self.broker.wake = self._woken
        self.begin(self.broker)

    def _woken(self) -> None:
        self.wakes += 1

    def copy_log(self, size: int | None = None) -> None:
        """Append the next bytes of the master's log, or all that are left."""
        copying = self.standby.store.copying()
        self.take(log_of(self.master, copying.received)[:size])

    def take(self, data: bytes) -> None:
        """Append bytes as a turn of the slave's connection to its master does, and give its port the turn that it asks for."""
        wakes = self.wakes
        self.standby.store.copying().take(data)
        for effect in self.standby.effects():
            effect.done(effect.run(), self.instant)
        if self.wakes > wakes:
            self.turn()

    def copy_tables(self) -> None:
        """Bring the master's tables."""
        for path, (header, body) in TABLES.items():
            self.standby.on_table(path, to_json(from_json(body, self.master.ask(header()).body, bounds=None)))
        self.turn()

    def copy(self) -> None:
        """Bring all."""
        self.copy_log()
        self.copy_tables()
