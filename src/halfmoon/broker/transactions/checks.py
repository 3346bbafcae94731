"""Check-back: asks producers about half messages that stay undecided, and lets those expire that nobody decides.

A *round* begins each check interval and looks at the pending half messages in the order of storing. A group that has used up its
check rate is *throttled*: its half messages get a queue of their own, so that it delays no other group. A check counts once it is
sent: without a live producer none is counted. It and those before it count no more once a producer answers that it
knows the transaction and that it is open: only silence makes a half message expire. Where a member answers that it cannot tell, the
check does not count, and the next member is asked at once (`halfmoon.broker.transactions.walks`). Ages are of the broker's clock,
and those after which nobody is asked any more are counted in time that it lived (`halfmoon.broker.uptime`). Told the time, never
looks at it.

Follows TransactionalMessageServiceImpl.check and AbstractTransactionalMessageCheckListener (RocketMQ 4.9.8).
Differs: a producer may say that a transaction is open, or not its own; the one that sent the half message is asked first; no copy
of the half message is written to ask a question; rounds are sliced, so that the broker answers others meanwhile; checks have a rate
per group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from halfmoon.broker.consumers.clients import GroupMember
from halfmoon.broker.context import Context
from halfmoon.broker.names import HALF_TOPIC
from halfmoon.broker.transactions.answers import Answer
from halfmoon.broker.transactions.check_rate import ThrottledGroups, TokenBucket
from halfmoon.broker.transactions.half import CHECK_TIMES, IMMUNITY, PRODUCER_GROUP, HalfMessages, checks_written, real_queue
from halfmoon.broker.transactions.walks import ASKED_MAX, Walks, first_asked, next_asked, sender_of
from halfmoon.broker.uptime import BrokerUptime
from halfmoon.errors import AccessRefused, BrokerError, CorruptRecord
from halfmoon.hot import Parts, tag_hash
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.store.records import whole_record
from halfmoon.store.transactions.index import Check, Half, State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import Language
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.transaction import CheckTransactionState
from halfmoon.wire.ids import offset_msg_id
from halfmoon.wire.properties import with_pairs
from halfmoon.wire.record import encode_record
from halfmoon.wire.table import request_type

log = logging.getLogger("halfmoon.broker.transactions")

LOOKS_A_TICK, ASKS_A_TICK, BYTES_A_TICK, GROUPS_A_TICK = 128, 16, 1024 * 1024, 128
"""Bounds of one call of `Checks.tick`, some 2 ms: half messages that a round looks at, and as many of throttled groups; messages
checked or expired; bytes of half records read (and one record more); groups learned."""
RECORDS_A_LOOK = 4096
CHECK = request_type(CheckTransactionState).code
GONE = "its record is gone or damaged"
EARLY_ROUND_MS_MIN = 1_000
IMMUNITY_MAX_S = 31 * 24 * 3600


class CheckCounters(msgspec.Struct):
    """Events since the start."""

    sent: int = 0
    unanswered: int = 0
    rounds: int = 0


class _Look(NamedTuple):
    """The outcome of looking at one half message. ``throttled``: its group has used up its check rate."""

    throttled: bool = False


Expire = Callable[[Half, Parts | None, str, int], bool]
"""Expire a half message for a reason; its parts are None when its record is gone. False: not now, the store takes nothing."""


class Checks:
    """The rounds. ``on_round(now)`` is called when one has ended."""

    bytes_a_tick = BYTES_A_TICK
    groups_a_tick = GROUPS_A_TICK
    asks_a_tick = ASKS_A_TICK
    asked_max = ASKED_MAX

    def __init__(
        self, context: Context, index: TransactionIndex, halves: HalfMessages, expire: Expire, uptime: BrokerUptime,
        warn: Callable[..., None],
    ) -> None:  # fmt: skip
        settings, store, now = context.settings, context.store, context.started
        self._settings, self._store, self._index, self._half_messages = settings, store, index, halves
        self._clients, self._peers, self._host, self._random = context.clients, context.peers, context.host, context.random
        self._expire, self._uptime, self._warn, self._access = expire, uptime, warn, context.access
        self.counters = CheckCounters()
        self._early_until = now.steady + settings.transaction_check_interval_ms if settings.lease else now.steady
        self._answers_lost_ms = now.date if settings.lease else 0  # answers to checks before this went to the master before
        self.next_round_at = now.steady + self._pause_ms(now.steady)
        self.on_round: Callable[[], None] = lambda: None
        self._at: int | None = None  # where the round is; None: none is under way
        self._end = 0
        self._throttled, self.walks = ThrottledGroups(), Walks()
        self._walks_due: Steady | None = None  # when the next member is asked somewhere; None: nowhere
        self._buckets: dict[int, TokenBucket] = {}
        self._hashes: dict[str, int] = {}
        """Groups with producers at the begin of the round; the state table knows groups by the hash of their names."""
        self._unlearned: list[str] = []
        self._live: frozenset[int] = frozenset()
        self._asks_left = self._bytes_left = 0
        self._opaque = 0

    # ------------------------------------------------------------ time

    def due(self) -> Steady:
        """When `tick` wants to be called."""
        if self._at is not None:
            return LONG_AGO
        dues = (self.next_round_at, self._throttled.due(), self._walks_due)
        return min(due for due in dues if due is not None)

    def _pause_ms(self, now: Steady) -> int:
        """Return the time until the next round.

        In its first interval a member of a pair, which may have just taken over, has a round each ``transactionTimeOut``: decisions
        may be lost with the master before, and producers register within that time.
        """
        interval_ms = self._settings.transaction_check_interval_ms
        early_ms = max(self._settings.transaction_timeout_ms, EARLY_ROUND_MS_MIN)
        return min(early_ms, interval_ms) if now < self._early_until else interval_ms

    def settings_changed(self, now: Steady) -> None:
        """Bring the next round forward if the interval is shorter now."""
        self.next_round_at = min(self.next_round_at, now + self._settings.transaction_check_interval_ms)

    def tick(self, now: Instant) -> None:
        """Begin a round when it is due, or continue it; a call takes some 2 ms."""
        if now.steady >= self.next_round_at and self._at is None:
            self._begin(now.steady)
        self._asks_left, self._bytes_left = self.asks_a_tick, self.bytes_a_tick
        if self._walks_due is not None and now.steady >= self._walks_due:
            self._walk_on(now)
            self._leave_some()
        looks = LOOKS_A_TICK
        while looks > 0 and not self._spent and (group := self._throttled.next(now.steady)) is not None:
            looks = self._check_throttled(group, looks, now)
        if self._unlearned:
            self._learn_live(now.steady)
        elif self._at is not None:
            self._leave_some()
            self._go_on(self._at, now)

    @property
    def _spent(self) -> bool:
        return self._asks_left <= 0 or self._bytes_left <= 0

    def _leave_some(self) -> None:
        """Let what follows in this tick move on, too, whatever those before it used up."""
        self._asks_left, self._bytes_left = max(self._asks_left, 1), max(self._bytes_left, 1)

    def _begin(self, now: Steady) -> None:
        self.next_round_at = now + self._pause_ms(now)
        self.counters.rounds += 1
        self._at, self._end = self._index.lowest_pending(), self._index.end
        groups = self._clients.producers
        self._hashes = {group: code for group, code in self._hashes.items() if group in groups}
        self._unlearned = [group for group in groups if group not in self._hashes]
        self._learn_live(now)

    def _learn_live(self, now: Steady) -> None:
        """Compute the hashes of some groups that have producers; once all are known, the round goes on."""
        for group in self._unlearned[-self.groups_a_tick :]:
            self._hashes[group] = tag_hash(group.encode())
        del self._unlearned[-self.groups_a_tick :]
        if not self._unlearned:
            self._live = frozenset(self._hashes.values())
            # A bucket that is full again is as good as a new one: so their number stays bounded.
            self._buckets = {
                group: bucket
                for group, bucket in self._buckets.items()
                if group in self._throttled or bucket.level(now) < bucket.size
            }

    def _go_on(self, at: int, now: Instant) -> None:
        """One slice of the round."""
        halves, following = self._index.pending(at, LOOKS_A_TICK, RECORDS_A_LOOK)
        for half in halves:
            if half.index >= self._end or (not self._half_messages.immunity_seen and self._too_young(half, now.date)):
                following = self._end  # those that follow are younger still
                break
            group = half.group_hash
            if group in self._throttled:
                self._throttled.add(group, half.index)
                continue
            if self._look_safely(half, now).throttled:
                self._throttled.begin(group, half.index, self._bucket(group, now.steady).due())
            if self._spent:
                following = half.index + 1
                break
        self._at = following if following < self._end else None
        if self._at is None:
            self.on_round()

    def _check_throttled(self, group: int, looks: int, now: Instant) -> int:
        """One slice of a throttled group; return how many more half messages this tick may look at."""
        throttled, bucket = self._throttled, self._bucket(group, now.steady)
        while (index := throttled.first(group)) is not None:
            if bucket.level(now.steady) < 1:
                throttled.go_on(group, max(bucket.due(), now.steady + 1))
                return looks
            if self._spent or looks <= 0:
                throttled.go_on(group, now.steady)
                return looks
            looks -= 1
            half = self._index.half(index)
            if half is not None and half.state == State.PREPARED:
                self._look_safely(half, now)
            throttled.pass_on(group)
        return looks

    def _bucket(self, group: int, now: Steady) -> TokenBucket:
        bucket = self._buckets.get(group)
        if bucket is None:
            rate = self._settings.transaction_checks_per_second
            size = max(1.0, rate / 10)
            bucket = self._buckets[group] = TokenBucket(float(rate), size, size, now)
        return bucket

    # ------------------------------------------------------------ one half message

    def _too_young(self, half: Half, now: int) -> bool:
        return 0 <= now - half.store_s * 1000 < self._settings.transaction_timeout_ms  # below 0: the clock was set back

    def _look_safely(self, half: Half, now: Instant) -> _Look:
        """Look at a half message; a mistake of our own with one blocks no other."""
        try:
            return self._look(half, now)
        except Exception as exc:
            self._asks_left -= 1
            self._warn("the check of half message %d failed: %s: %s", half.index, type(exc).__name__, exc)
            return _Look()

    @property
    def _undecided_max_ms(self) -> int:
        return self._settings.transaction_undecided_max_ms or self._store.settings.file_reserved_hours * 3_600_000

    @property
    def _too_old(self) -> str:
        ms = self._undecided_max_ms
        if self._settings.transaction_undecided_max_ms:
            return f"undecided for longer than {ms / 1000:g} s"
        return f"undecided for longer than messages are kept ({ms // 3_600_000} h)"

    def _look(self, half: Half, now: Instant) -> _Look:
        """Check a half message, let it expire, or leave it for later."""
        if not self._is_ripe(half, now.date):
            return _Look()
        sent, counted, history = self._index.checks(half.index)
        if sent and self._is_asked(half, history[-1], now.date):
            return _Look()
        unanswered = counted >= self._settings.transaction_check_max
        too_old = self._is_too_old(half, now.date)
        if not (unanswered or too_old):
            if half.group_hash not in self._live:
                return _Look()
            if self._bucket(half.group_hash, now.steady).level(now.steady) < 1:
                return _Look(throttled=True)
        self._bytes_left -= half.size
        parts = self._parts(half)
        if parts is None:
            self._expire_now(half, None, GONE, now.date)
        elif unanswered or checks_written(parts) >= self._settings.transaction_check_max:
            count = max(counted, checks_written(parts))
            self._expire_now(half, parts, f"{count} check{'' if count == 1 else 's'} brought no decision", now.date)
        elif too_old:
            self._expire_now(half, parts, self._too_old, now.date)
        else:
            self._ask_in_turn(half, parts, now)
        return _Look()

    def _is_asked(self, half: Half, last: Check, now: int) -> bool:
        """Whether somebody is being asked about a half message. Once nobody was left to ask, its interval is that of rounds."""
        if last.answer == Answer.NOT_MINE:
            return self.walks.waits(half.index)
        if last.sent_s * 1000 < self._answers_lost_ms:
            return False
        return 0 <= now - last.sent_s * 1000 < self._settings.transaction_check_interval_ms

    def _is_ripe(self, half: Half, now: int) -> bool:
        """Return whether a half message is old enough, and kept as is promised: before that its sender has no reply."""
        if not self._half_messages.immunity_seen and self._too_young(half, now):
            return False
        return not self._store.holds_back or half.physical_offset < self._store.kept_offset

    def _is_too_old(self, half: Half, now: int) -> bool:
        """Whether a half message is undecided for too long. By the clock first: its age by uptime is dearer, and never higher."""
        stored_ms = half.store_s * 1000  # at most a second before it really was
        limit_ms = self._undecided_max_ms
        return now - stored_ms > limit_ms and self._uptime.age_ms(stored_ms, now) > limit_ms

    def clear(self, below: int, now: int) -> bool:
        """Expire some of what is pending in the log below a physical offset; return False when the store takes nothing now."""
        self._asks_left, self._bytes_left = self.asks_a_tick, self.bytes_a_tick
        halves, _ = self._index.pending(self._index.lowest_pending(), self.asks_a_tick)
        for half in halves:
            if half.physical_offset >= below or self._spent:
                break
            self._bytes_left -= half.size
            try:
                parts = self._parts(half)
                reason = GONE if parts is None else "its log file goes: the disk needs the room"
                done = self._expire_now(half, parts, reason, now)
            except Exception as exc:  # our own mistake: its file stays, and the next call tries again
                self._warn("half message %d cannot expire: %s: %s", half.index, type(exc).__name__, exc)
                done = False
            if not done:
                return False
        return True

    def _expire_now(self, half: Half, parts: Parts | None, reason: str, now: int) -> bool:
        self._asks_left -= 1
        return self._expire(half, parts, reason, now)

    def _parts(self, half: Half) -> Parts | None:
        record = self._store.record(half.physical_offset, half.size)
        try:
            parts = None if record is None else whole_record(record)
        except CorruptRecord as exc:
            log.error("half message %d is damaged: %s", half.index, exc)
            return None
        return parts if parts is not None and parts.topic == HALF_TOPIC and parts.queue_offset == half.index else None

    def _ask_in_turn(self, half: Half, parts: Parts, now: Instant) -> None:
        if not 0 <= now.date - parts.store_ms < self._minimum_age_ms(parts) and self._ask_first(half, parts, now.date):
            self._bucket(half.group_hash, now.steady).take(now.steady, half.size)
            self._asks_left -= 1

    def _minimum_age_ms(self, parts: Parts) -> int:
        """Return the age before the first check: the half message's own if it names one, else the broker's setting."""
        text = wire_properties.value_of(parts.properties, IMMUNITY.encode()) if IMMUNITY.encode() in parts.properties else None
        if text is not None and text.isdigit() and len(text) < 10:
            return min(int(text), IMMUNITY_MAX_S) * 1000
        return self._settings.transaction_timeout_ms

    def _members(self, parts: Parts) -> tuple[list[GroupMember], GroupMember | None]:
        """Return the live producers of the group, and the one of them that sent the half message."""
        group = (wire_properties.value_of(parts.properties, PRODUCER_GROUP.encode()) or b"").decode("utf-8", "replace")
        topic, _ = real_queue(parts.properties)
        members = [
            member for member in self._clients.producers.get(group, {}).values()
            if not member.peer.closing and self._may_decide(member, group, topic)
        ]  # fmt: skip
        return members, sender_of(parts, members)

    def _may_decide(self, member: GroupMember, group: str, topic: str) -> bool:
        """Whether a member may decide about a half message. A member whose decision would be refused is not asked, nor shown it."""
        try:
            if self._access is not None:
                self._access.check_produces(member.peer, member.account, group, CHECK, topic)
        except AccessRefused:
            return False
        return True

    def ask(self, half: Half, now: int) -> None:
        """Check at once, regardless of age and rate. Raises BrokerError when no producer of the group is connected."""
        parts = self._parts(half)
        if parts is None:
            raise BrokerError(GONE)
        if not self._ask_first(half, parts, now):
            raise BrokerError("no producer of its group is connected")

    def _ask_first(self, half: Half, parts: Parts, now: int) -> bool:
        """Begin a walk: ask a live producer of the group, the sender if that is one. Return False when there is none."""
        members, sender = self._members(parts)
        if members:
            sent, _, history = self._index.checks(half.index)
            self.walks.begin(half.index, half.group_hash)
            self._send(half, parts, first_asked(members, sender, sent, history, self._random.getrandbits(24)), now)
        return bool(members)

    # ------------------------------------------------------------ who is asked next

    def not_mine(self, index: int) -> None:
        """Have the next member asked: the one that was asked last about a half message cannot tell."""
        if self.walks.go_on(index):
            self._walks_due = LONG_AGO

    def _walk_on(self, now: Instant) -> None:
        """Ask the next members where the last ones could not tell, as far as check rates and this tick allow."""
        dues = []
        for group in self.walks.groups():
            bucket = self._bucket(group, now.steady)
            while not self._spent and bucket.level(now.steady) >= 1 and (index := self.walks.first(group)) is not None:
                self._ask_next(index, bucket, now)
            if self.walks.first(group) is not None:
                dues.append(now.steady if self._spent else max(bucket.due(), now.steady + 1))
        self._walks_due = min(dues, default=None)

    def _ask_next(self, index: int, bucket: TokenBucket, now: Instant) -> None:
        asked, half = frozenset(self.walks.take(index)), self._index.half(index)
        if half is None or half.state != State.PREPARED:
            self.walks.end(index)
            return
        self._bytes_left -= half.size
        parts = self._parts(half)
        members, sender = ([], None) if parts is None else self._members(parts)
        history, start = self._index.checks(index).history, self._random.getrandbits(24)
        member = next_asked(members, sender, history, asked, start) if len(asked) < self.asked_max else None
        if parts is None or member is None:
            self.walks.end(index)
            if members:
                self._warn("half message %d: none of %d members of its group that were asked has a check of it", index, len(asked))
            return
        bucket.take(now.steady, half.size)
        self._asks_left -= 1
        self._send(half, parts, member, now.date)

    def _send(self, half: Half, parts: Parts, member: GroupMember, now: int) -> None:
        """Send the check and count it."""
        topic, queue_id = real_queue(parts.properties)
        if not topic:
            self._expire_now(half, parts, "it names no topic and queue", now)
            return
        sent, _, history = self._index.checks(half.index)
        if history and history[-1].answer == Answer.NONE:
            self.counters.unanswered += 1
        unique = (wire_properties.value_of(parts.properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")
        header = CheckTransactionState(
            tran_state_table_offset=half.index, commit_log_offset=half.physical_offset, msg_id=unique, transaction_id=unique,
            offset_msg_id=offset_msg_id(self._host, half.physical_offset), topic=topic, broker_name=self._settings.name,
        )  # fmt: skip
        count = max(sent, checks_written(parts)) + 1
        properties = with_pairs(parts.properties, {CHECK_TIMES: str(count)})
        body = encode_record(
            topic=topic, queue_id=queue_id, queue_offset=half.index, physical_offset=half.physical_offset, body=parts.body,
            properties=properties, born_ms=parts.born_ms, born_host=parts.born_host, store_ms=parts.store_ms, store_host=self._host,
            flag=parts.flag, sys_flag=parts.sys_flag, reconsume_times=parts.reconsume_times,
        )  # fmt: skip
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command = request_command(header, body, opaque=self._opaque, oneway=True)
        command.language = int(Language.JAVA)
        self._peers.answer(member.peer, encode(command))
        self._index.checked(half.index, now // 1000, member.short_hash)
        self.walks.asked(half.index, member)
        self.counters.sent += 1
