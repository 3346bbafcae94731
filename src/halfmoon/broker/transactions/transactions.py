"""Transactions of one broker: joins half messages, decisions, check-back and expiry, and keeps their index with the store.

`Transactions` is what the broker core holds; each part has a module of its own: `half` (first phase), `decisions` (second phase),
`checks` (check-back), `expiry`, and `pending` (what operators ask).
"""

from __future__ import annotations

import logging

from halfmoon.broker.context import Context
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC, TRANSACTIONS_GROUP
from halfmoon.broker.request import Handlers
from halfmoon.broker.send.duplicates import Duplicates
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.service import Service
from halfmoon.broker.transactions.checks import Checks
from halfmoon.broker.transactions.decisions import Decisions
from halfmoon.broker.transactions.expiry import Expiry
from halfmoon.broker.transactions.half import HalfMessages
from halfmoon.broker.transactions.late_decisions import LateDecisions
from halfmoon.broker.transactions.pending import Pending
from halfmoon.broker.uptime import BrokerUptime
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.metrics import Samples
from halfmoon.store.transactions.index import TransactionIndex
from halfmoon.wire.headers import transaction as headers

LOOK_AGAIN_MS = 1000
"""How long check-back rests while the store takes no writes."""


class Transactions(Service):
    """All of it. Call `Decisions.settle` once a turn, when the turn's half messages are stored."""

    def __init__(self, context: Context, sends: Sends) -> None:
        store, offsets, now = context.store, context.offsets, context.started
        settled = offsets.get(TRANSACTIONS_GROUP, HALF_TOPIC, 0) or 0
        index = TransactionIndex.open(context.disk, store, store.settings, settled_below=settled, now=now.steady)
        self._store, self._offsets, self.index = store, offsets, index
        self._not_before = self._pay_at = self._clear_at = LONG_AGO
        self._log = RateLimitedLog(logging.getLogger("halfmoon.broker.transactions"), now.steady)
        warn = self._log.warning
        self.half_messages = HalfMessages(sends, index, warn)
        late = LateDecisions(store)
        self.duplicates = Duplicates(context, index, sends, late)
        self.decisions = Decisions(context, index, self.half_messages.cache, sends, late, warn)
        self.expiry = Expiry(context, index, sends, self.half_messages, self.decisions, late, warn)
        self.decisions.expire_void = self.expiry.expire
        newest = index.half(index.end - 1) if index.end else None
        self.uptime = BrokerUptime(context.tables, 0 if newest is None else newest.store_s * 1000, now.date, warn)
        self.checks = Checks(context, index, self.half_messages, self.expiry.expire, self.uptime, warn)
        self.checks.on_round = self._round_ended
        self.decisions.answers.on_not_mine = self.checks.not_mine
        self.work = index.work  # type: ignore[method-assign]  # no call in between: it is asked each turn
        self.pending = Pending(context, index, self.half_messages, self.decisions, self.checks, self.expiry, late)

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        pending = self.pending
        return {
            headers.EndTransaction: self.decisions.end,
            headers.ResumeCheckHalfMessage: self.expiry.resume,
            headers.ListPendingTransactions: pending.list,
            headers.GetTransaction: pending.get,
            headers.CheckTransaction: pending.check,
            headers.DecideTransaction: pending.decide,
            headers.GetTransactionStats: pending.stats,
        }

    def due(self, now: Instant) -> Steady:
        """When `tick` wants to be called."""
        checks_due, index_due = max(self.checks.due(), self._not_before), self.index.due()
        if self.decisions.owed_ops:
            checks_due = min(checks_due, max(self._pay_at, self._not_before))
        if self.index.pin.in_the_way_below:
            checks_due = min(checks_due, self._clear_at)
        return checks_due if index_due is None else min(checks_due, index_due)

    def tick(self, now: Instant) -> None:
        """Check-back, what is owed to the log, and upkeep of the index."""
        self.uptime.seen(now.date)
        if now.steady >= self._clear_at and (below := self.index.pin.in_the_way_below):
            with self._store.maintenance.making_room(self.index.pin):
                self._clear_at = now.steady + (0 if self.checks.clear(below, now.date) else LOOK_AGAIN_MS)
        if self._store.refusal is None:
            if now.steady >= self._pay_at and self.decisions.owed_ops:
                self._pay_at = now.steady + (0 if self.decisions.pay(now.date) else LOOK_AGAIN_MS)
            self.checks.tick(now)
        else:  # nothing can be decided and nothing expires: look again later
            self._not_before = now.steady + LOOK_AGAIN_MS
        self.index.tick(now.steady)
        self._log.tick(now.steady)

    def settings_changed(self, now: Steady) -> None:
        """Pass a changed interval of rounds on."""
        self.checks.settings_changed(now)

    def texts(self, now: Instant) -> dict[str, str]:
        """Return how many are pending, and the age of the oldest."""
        return self.pending.texts(now.date)

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield counts of half messages and decisions, pending ones by producer group, and times of decisions."""
        yield metrics.PENDING_ALL, broker, self.index.pending_count
        for groups in self.pending.groups():
            yield None
            for name, group in groups.items():
                labels = (*broker, name)
                yield metrics.PENDING, labels, group.pending
                yield metrics.PRODUCERS, labels, group.producers
                yield metrics.OLDEST, labels, max(0, now.date - group.oldest_ms) / 1000
        for name, count in self.pending.counters().items():
            yield metrics.OF_TRANSACTIONS[name], broker, count
        yield metrics.DECISION_TIMES, broker, self.decisions.times

    def stop(self, now: Instant) -> None:
        """Take nothing more."""
        self.index.stop(now)

    def close(self, now: Instant) -> None:
        """Give the files back, after the last appends and before the store is closed. Waits."""
        self.index.close(now)

    # ------------------------------------------------------------ as the original keeps it

    def _round_ended(self) -> None:
        """Keep where the half and op queues are settled, so that an Apache broker that opens this directory goes on from there."""
        lowest = self.index.lowest_pending()
        if not self.index.pending_count:
            self.uptime.forget()
        if not lowest:  # nothing was ever settled: no entry is as good as a zero
            return
        self._offsets.put(TRANSACTIONS_GROUP, HALF_TOPIC, 0, lowest)
        self._offsets.put(TRANSACTIONS_GROUP, OP_TOPIC, 0, self._first_op_behind(lowest))

    def _first_op_behind(self, index: int) -> int:
        """Return the offset of the first op record stored after a half message: those before it concern older ones only."""
        store, end = self._store, self._store.queue_max(OP_TOPIC, 0)
        half = self.index.half(index)
        if half is None:
            return end
        low = store.queue_min(OP_TOPIC, 0)
        while low < end:
            middle = (low + end) // 2
            result = store.read(OP_TOPIC, 0, middle, 1)
            place = int.from_bytes(result.pieces[0][28:36], "big") if result.pieces else -1
            if place < half.physical_offset:
                low = middle + 1
            else:
                end = middle
        return low
