"""`Copies`: the service for slaves of this broker: their state for monitoring, and the core behind their port."""

from __future__ import annotations

from halfmoon.broker.copies.feeding import Feeding
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.service import Service
from halfmoon.broker.settings import BrokerRole, BrokerSettings
from halfmoon.instant import Instant
from halfmoon.metrics import Samples
from halfmoon.store.store import Store


class Copies(Service):
    """The slaves of one broker. ``feeding`` is the core that sends them the log."""

    def __init__(self, settings: BrokerSettings, store: Store, now: Instant) -> None:
        self.feeding = Feeding(settings, store, now)
        waits = settings.role is BrokerRole.SYNC_MASTER and settings.copies_wanted > 1
        self.waited_for = self.feeding if waits else None
        """The slaves that replies wait for; None: they wait for none."""

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many slaves copy the log, and how far each is behind."""
        statuses = self.feeding.statuses(now.steady)
        yield metrics.SLAVES, broker, len(statuses)
        for status in statuses:
            labels = (*broker, status.remote)
            yield metrics.SLAVE_BYTES, labels, status.behind_bytes
            yield metrics.SLAVE_SECONDS, labels, status.behind_ms / 1000
