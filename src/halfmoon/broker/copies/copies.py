"""`Copies`: the service for slaves of this broker: their state for monitoring, and the core behind their port."""

from __future__ import annotations

from collections.abc import Mapping

from halfmoon.broker.context import Context
from halfmoon.broker.copies.feeding import Feeding
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.broker.settings import BrokerRole
from halfmoon.instant import Instant
from halfmoon.metrics import Samples
from halfmoon.wire.bodies import CopiesState, SlaveState, to_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus

GIVES_WHOLE_LOG = "slavesGetWholeLog"
"""Name, in the runtime information, of the promise that an empty slave is sent the log from the oldest file on."""


class Copies(Service):
    """The slaves of one broker. ``feeding`` is the core that sends them the log; replies of a SYNC_MASTER wait for it."""

    def __init__(self, context: Context, now: Instant) -> None:
        settings, store = context.settings, context.store
        self._store, self.feeding = store, Feeding(settings, store, now)
        self._settings = settings
        self._is_waited_for = settings.role is BrokerRole.SYNC_MASTER and settings.copies_wanted > 1
        if self._is_waited_for:
            context.pending_replies.slaves = self.feeding

    @property
    def fault(self) -> str | None:
        """Return why sends are not copied although they should be; None: they are, or need not be."""
        if not self._is_waited_for or not self.feeding.is_behind:
            return None
        wanted = self._settings.copies_wanted - 1
        return f"sends are not copied: {self.feeding.count} of {wanted} slaves are connected and not too far behind"

    def handlers(self) -> Handlers:
        """Return the handler of 907."""
        return {GetBrokerHaStatus: self.state}

    def state(self, request: Request) -> Reply:
        """Return which slaves copy the log, and how far."""
        slaves = [
            SlaveState(
                addr=each.remote, slave_ack_offset=each.copied_offset, diff=each.behind_bytes, in_sync=each.is_in_sync,
                transferred_byte_in_second=each.bytes_per_second, transfer_from_where=each.sent_offset, behind_ms=each.behind_ms,
            )
            for each in self.feeding.statuses(request.now.steady)
        ]  # fmt: skip
        count = sum(slave.in_sync for slave in slaves)
        state = CopiesState(
            master_commit_log_max_offset=self._store.end_offset, in_sync_slave_nums=count, ha_connection_info=slaves
        )
        return Reply(body=to_json(state))

    def texts(self, now: Instant) -> Mapping[str, str]:
        """Return the promise to empty slaves, for the runtime information."""
        return {GIVES_WHOLE_LOG: "true"}

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many slaves copy the log, and how far each is behind."""
        statuses = self.feeding.statuses(now.steady)
        yield metrics.SLAVES, broker, len(statuses)
        for status in statuses:
            labels = (*broker, status.remote)
            yield metrics.SLAVE_BYTES, labels, status.behind_bytes
            yield metrics.SLAVE_SECONDS, labels, status.behind_ms / 1000
