"""The relay: takes events out of the outbox and sends them, each at least once, with the ids that they were given.

One thread. It is nudged after a commit of this process and looks by itself otherwise. A turn settles what became of the last
batch and claims the next one in a single transaction, then sends it (`halfmoon.events.outbox.batch`). Several relays share an
outbox; one that was killed leaves claims that end by themselves. Whatever fails, database or brokers, it waits a little and goes
on.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from math import inf, isfinite
from typing import Any, Self

import msgspec

from halfmoon.errors import NotRunning, SettingError
from halfmoon.events.checks.tokens import check_table
from halfmoon.events.databases.database import Busy, Provider, Rows
from halfmoon.events.databases.retention import STEP_ROWS, remove_old
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox import status as outbox_status
from halfmoon.events.outbox.backoff import Backoff
from halfmoon.events.outbox.batch import GRACE_S, Batch, counts, event_of, is_final
from halfmoon.events.outbox.claims import (
    CLAIM_MAX_MS,
    CLOSED_MAX,
    WAIT_MAX_MS,
    Claim,
    ClaimedRow,
    Failure,
    claim,
    clock_ms,
    error_text,
    fail,
    idle,
    release,
    remove,
)
from halfmoon.events.outbox.listener import CommitListener
from halfmoon.events.outbox.schemas import REST_MAX_S, REST_MIN_S, Share, Shares, checked
from halfmoon.events.outbox.sent import keep
from halfmoon.events.outbox.status import OutboxFigures
from halfmoon.events.publishing.transport import Transport
from halfmoon.events.tables import OUTBOX, SENT, Table
from halfmoon.events.tracing import step
from halfmoon.settings import setting

RETRY_MIN_MS = 500
"""A row that failed for its own sake waits so long at first, and twice as long each time."""
CLAIM_MIN_MS = 4_000
"""How much longer than a sending a claim lasts at least: the answer's grace, and time to settle."""
LOCK_WAIT_MS, LOCK_WAIT_EACH_MS = 3_000, 100
"""For locks of the database: in SQLite a relay waits its turn among all who write; and for those of one schema among several."""
KEEP_MAX_MS = 3_650 * 86_400_000
CLEAN_EVERY_S = 60
"""How often kept events that are too old are removed: a step, and more of them while more are there."""
_QUICK = 10
"""Looking in vain, past many rows that may not be sent now, takes at most about this fraction of the time."""

log = logging.getLogger("halfmoon.events")


@dataclass(frozen=True, kw_only=True)
class RelaySettings:
    """How a relay works. Times in ms; all are checked."""

    poll_ms: int = setting(1_000, low=10, high=3_600_000, why="How often it looks without being nudged, more or less a quarter.")
    listen: bool = True
    """Whether PostgreSQL tells it of rows of other processes at once, on one more connection. It polls all the same."""
    batch_max: int = setting(200, low=1, high=1_000, why="Rows of one claim.")
    batch_bytes_max: int = setting(16 << 20, low=1, high=1 << 30, why="Of their messages together, which a relay holds in memory.")
    in_flight_max: int = setting(100, low=1, high=1_000, why="Messages under way to brokers at the same time.")
    timeout_ms: int = setting(3_000, low=100, high=60_000, why="Of one sending.")
    claim_ms: int = setting(60_000, low=CLAIM_MIN_MS, high=CLAIM_MAX_MS, why="How long a claim lasts, by the database's clock.")
    """The rows of a relay that was killed wait so long for another."""
    retry_max_ms: int = setting(60_000, low=RETRY_MIN_MS, high=WAIT_MAX_MS, why="The longest that a row which failed waits.")
    attempts_max: int | None = setting(50, low=1, high=1_000_000, why="Tries of a row until it is parked as failed.")
    """50 take three quarters of an hour; None: it is never parked for their number. Tries for which no broker could be reached do
    not count. Rows that can never succeed are parked at once."""
    keep_sent: float | timedelta | None = None
    """How long events stay in the table ``halfmoon_sent`` after they were sent, in seconds or as a timedelta, so that they can be
    listed and sent again; None: not at all. The same for all relays of an outbox: each removes what is too old for it."""
    schemas: str | Collection[str] | None = None
    """The schemas whose outboxes it serves: names, or ``"*"`` for every one of the database that has an outbox and that it may
    change; None: the one that the database finds."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, facts = getattr(self, each.name), each.metadata
            if not facts or (value is None and each.name == "attempts_max"):
                continue
            low, high = facts["low"], facts["high"]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise SettingError(f"relay setting {each.name} is {low} to {high}, not {value!r:.40}")
        if not isinstance(self.listen, bool):
            raise SettingError(f"relay setting listen is True or False, not {self.listen!r:.40}")
        if self.claim_ms < self.timeout_ms + CLAIM_MIN_MS:
            raise SettingError(f"relay setting claim_ms is at least timeout_ms + {CLAIM_MIN_MS}, not {self.claim_ms}")
        checked(self.schemas)
        if self.keep_sent is not None and not (_is_span(self.keep_sent) and 1_000 <= self.keep_ms <= KEEP_MAX_MS):
            raise SettingError(f"relay setting keep_sent is 1 s to 3650 days, seconds or a timedelta, not {self.keep_sent!r:.40}")

    @property
    def keep_ms(self) -> int:
        """``keep_sent`` in ms; 0 for None."""
        span = self.keep_sent or 0
        return round((span.total_seconds() if isinstance(span, timedelta) else span) * 1000)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables that a relay needs."""
        return (OUTBOX, SENT) if self.keep_sent is not None else (OUTBOX,)


class RelayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a relay since its start. ``failed`` counts tries, ``parked`` rows that are not tried any more.

    ``in_hand`` rows are claimed now; ``closed`` are topics whose way is closed, each with the error; ``error`` is what the
    database said when it failed last and has not worked since.
    """

    running: bool
    sent: int
    failed: int
    parked: int
    batches: int
    in_hand: int
    closed: dict[str, str]
    error: str


class Relay:
    """Sends the events of one database's outbox.

    ``transport`` must be started, and is not closed here. ``name`` tells relays apart; None: one of host and process is made.
    Settings are a `RelaySettings`, or its fields by keyword. Raises SettingError. Safe to use from many threads.
    """

    def __init__(
        self,
        provider: Provider,
        transport: Transport,
        settings: RelaySettings | None = None,
        *,
        name: str | None = None,
        **values: Any,
    ) -> None:
        if unknown := values.keys() - {field.name for field in fields(RelaySettings)}:
            raise SettingError(f"RelaySettings has no setting {sorted(unknown)[0]!r}: see RelaySettings")
        if settings is not None and values:
            raise SettingError("give a relay RelaySettings or single settings, not both")
        self.settings = settings or RelaySettings(**values)
        self.name = (name or f"{socket.gethostname()[:60]}:{os.getpid()}:{random.getrandbits(32):08x}")[:100]
        self._provider, self._transport = provider, transport
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._listener: CommitListener | None = None
        self._close_at_s = inf
        self._shares = Shares(provider, self.settings.schemas)
        self._closed_topics: dict[str, Backoff] = {}
        self._counts = {"sent": 0, "failed": 0, "parked": 0, "batches": 0}
        self._in_hand = 0
        self._lock_wait_ms = LOCK_WAIT_MS

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin. Starting again does nothing. Raises NotRunning for one that was closed."""
        with self._lock:
            if self._close_at_s < inf:
                raise NotRunning("the relay is closed: make another one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="halfmoon-outbox-relay", daemon=True)
                self._thread.start()
                self._listener = CommitListener(self._provider, self.wake, self.name) if self.settings.listen else None

    def wake(self) -> None:
        """There are new rows: look now. Returns at once, and is cheap."""
        self._wake.set()

    def close(self, flush_ms: int = 3_000) -> bool:
        """Send what is there for at most so long, then end; returns whether it ended in time. Closing again does nothing.

        Rows that are left stay in the table, for another relay. Waits for sends under way as long as a send may take besides.
        """
        with self._lock:
            if self._close_at_s == inf:
                self._close_at_s = time.monotonic() + flush_ms / 1000
            thread, listener = self._thread, self._listener
        self._wake.set()
        if listener is not None:
            listener.close(0)
        if thread is None:
            return True
        thread.join(flush_ms / 1000 + self.settings.timeout_ms / 1000 + GRACE_S)
        if listener is not None:
            listener.close()
        if thread.is_alive():
            log.warning("the relay did not stop in time, its claims expire in %s ms: relay=%s", self.settings.claim_ms, self.name)
        return not thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------ figures

    def figures(self) -> RelayFigures:
        """Return what it has done, without asking the database."""
        running = self._thread is not None and self._thread.is_alive()
        closed = {topic: rest.error for topic, rest in list(self._closed_topics.items())}
        error = next((backoff.error for backoff in self._backoffs() if backoff.error), "")
        return RelayFigures(running=running, in_hand=self._in_hand, closed=closed, error=error, **self._counts)

    def backlog(self) -> OutboxFigures:
        """Count the outboxes that it serves. Raises what the database raises."""
        return outbox_status.total([outbox_status.backlog(share) for share in self._shares.all()])

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            self._wake.clear()
            closing = self._close_at_s  # a turn that began before may have looked before the last commit
            if self._try(self._shares.backoff, self._turns):
                continue
            failing = next((backoff for backoff in self._backoffs() if backoff.error), None)
            if closing < inf and (failing is None or time.monotonic() >= closing):
                if failing is not None and not failing.told:
                    log.warning("the relay ends without having looked: relay=%s error=%s", self.name, failing.error)
                return
            self._wait()

    def _wait(self) -> None:
        """Until a wake, or until something is to be looked at again, or the time to close is over."""
        now = time.monotonic()
        times = [now + self.settings.poll_ms / 1000 * random.uniform(0.75, 1.25), self._close_at_s]
        times += [backoff.until_s for backoff in (*self._closed_topics.values(), *self._backoffs())]
        times += [share.look_at_s for share in self._shares.known]
        self._wake.wait(max(0.001, min(at for at in times if at > now) - now))

    def _backoffs(self) -> list[Backoff]:
        """Return that of the database, and those of its schemas."""
        return [self._shares.backoff, *(share.backoff for share in self._shares.known)]

    def _try(self, backoff: Backoff, work: Callable[[], bool], where: str = "") -> bool:
        """Work, unless what failed rests; return whether there may be more. Locks of others are told only when they go on."""
        if backoff.rests:
            return False
        try:
            more = work()
        except Exception as exc:
            error = error_text(exc).splitlines()[0]
            if backoff.failed(error, tell=backoff.rest_s > REST_MIN_S or not isinstance(exc, Busy)):
                log.warning("the outbox cannot be read, the relay keeps trying: relay=%s%s error=%s", self.name, where, error)
            return False
        backoff.worked()
        return more

    def _turns(self) -> bool:
        """Take a turn in each schema. Raises what the database raises that is asked which there are."""
        shares, closing, more = self._shares.all(), self._close_at_s < inf, False
        self._lock_wait_ms = LOCK_WAIT_MS if len(shares) == 1 else LOCK_WAIT_EACH_MS
        for share in shares:
            if closing or share.look_at_s <= time.monotonic():
                where = f" schema={share.schema}" if share.schema else ""
                more |= self._try(share.backoff, partial(self._serve, share), where)
        if not closing:
            self._shares.say_others()
        return more

    def _serve(self, share: Share) -> bool:
        more = self._turn(share)
        self._clean(share)
        return more

    def _turn(self, share: Share) -> bool:
        """Settle the last batch, claim and send the next; returns whether there may be more. Raises what the database raises."""
        begun_s = time.monotonic()
        until_s = begun_s + (self.settings.claim_ms - self.settings.timeout_ms) / 1000 - GRACE_S - 1
        resting = {topic for topic, backoff in self._closed_topics.items() if backoff.rests}
        closing = begun_s >= self._close_at_s
        if share.batch is None and (closing or _nothing_to_do(share)):
            return False
        if self.settings.keep_ms and not share.keeps:
            check_table(share, SENT)
            share.keeps = True
        with share.fresh(lock_wait_ms=self._lock_wait_ms) as rows:
            now_ms = clock_ms(rows)
            if share.batch is not None:
                self._settle(rows, share, share.batch, now_ms)
            mine = Claim(self.name, now_ms, now_ms + self.settings.claim_ms)
            sizes = {"count_max": self.settings.batch_max, "bytes_max": self.settings.batch_bytes_max}
            claimed = [] if closing else claim(rows, mine, without=resting, **sizes)
        share.batch = None
        self._in_hand = len(claimed)
        if not claimed:
            if resting or begun_s < share.retry_at_s:
                share.look_at_s = begun_s + min(REST_MAX_S, (time.monotonic() - begun_s) * _QUICK)
            return False
        self._send(share, claimed, until_s)
        return True

    def _clean(self, share: Share) -> None:
        """Remove kept events that are too old, in one short transaction. Raises what the database raises."""
        now_s = time.monotonic()
        if not self.settings.keep_ms or now_s < share.clean_at_s or self._close_at_s < inf:
            return
        share.clean_at_s = now_s + CLEAN_EVERY_S
        with share.fresh() as rows:
            now_ms = clock_ms(rows)
        if remove_old(share, SENT, "sent_ms", now_ms, self.settings.keep_ms, steps_max=1) >= STEP_ROWS:
            share.clean_at_s = 0.0

    def _settle(self, rows: Rows, share: Share, batch: Batch, now_ms: int) -> None:
        if self.settings.keep_ms:
            keep(rows, self.name, batch.sent, now_ms)
        if lost := len(batch.sent) - remove(rows, self.name, batch.sent):
            log.warning(
                "%d outbox rows were sent after their claim had expired, consumers may get them twice: relay=%s", lost, self.name
            )
        fail(rows, self.name, share.failed, now_ms)
        release(rows, self.name, [row.seq for row in batch.unsent])

    def _send(self, share: Share, claimed: list[ClaimedRow], until_s: float) -> None:
        limits = {"in_flight_max": self.settings.in_flight_max, "timeout_ms": self.settings.timeout_ms}
        batch = Batch(self._transport, claimed, self._closed_topics.keys(), **limits)
        batch.run(until_s, lambda: self._close_at_s)
        for topic in batch.up:
            if self._closed_topics.pop(topic, None):
                log.info("topic %s can be reached again: relay=%s", topic, self.name)
        for topic, error in batch.down.items():
            while len(self._closed_topics) >= CLOSED_MAX and topic not in self._closed_topics:
                del self._closed_topics[next(iter(self._closed_topics))]
            self._closed_topics.setdefault(topic, Backoff(REST_MIN_S, REST_MAX_S)).failed(error_text(error))
        share.batch, share.failed = batch, [self._failure(row, error, batch.up) for row, error in batch.failed]
        waits_ms = [failure.wait_ms for failure in share.failed if failure.wait_ms < PARKED_MS]
        share.retry_at_s = max(share.retry_at_s, time.monotonic() + max(waits_ms, default=0) / 1000)
        for name, count in (("batches", 1), ("sent", len(batch.sent)), ("failed", len(batch.failed))):
            self._counts[name] += count

    def _failure(self, row: ClaimedRow, error: BaseException, up: Collection[str]) -> Failure:
        """Say when a row is tried again, or park it."""
        limit = self.settings.attempts_max
        counted = counts(error, topic_is_up=row.topic in up)
        parked = is_final(error) or (limit is not None and row.attempts >= limit and counted)
        step("not relayed", event_of(row), attempt=row.attempts, decision="parked" if parked else "tried again", error=error)
        if parked:
            self._counts["parked"] += 1
            log.warning(
                "an event of the outbox is parked, later events of its key go on without it; see `halfmoon outbox list --failed`: "
                "event=%s topic=%s attempt=%d reason=%s relay=%s",
                row.event_id, row.topic, row.attempts, error_text(error), self.name,
            )  # fmt: skip
            return Failure(row.seq, error_text(error), PARKED_MS)
        if not counted and (rest := self._closed_topics.get(row.topic)):
            wait_ms = int(2000 * rest.rest_s)  # behind others of its topic, so that one row alone does not keep the topic closed
        else:
            wait_ms = min(self.settings.retry_max_ms, RETRY_MIN_MS << min(20, max(0, row.attempts - 1)))
        return Failure(row.seq, error_text(error), wait_ms, int(counted))


def _nothing_to_do(share: Share) -> bool:
    """Return whether a database with a single lock for writing need not be asked for it."""
    if share.dialect != "sqlite":
        return False
    with share.fresh() as rows:
        return idle(rows)


def _is_span(value: object) -> bool:
    return isinstance(value, timedelta) or (isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value))
