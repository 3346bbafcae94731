"""Transactions for operators: pending half messages, one transaction, checks and decisions by hand, statistics.

These requests are Halfmoon's own (31001 to 31005); the resume of an expired message is the original's (323).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence

from halfmoon.broker.context import Context
from halfmoon.broker.lookup import FOR_EVER_MS
from halfmoon.broker.names import HALF_TOPIC
from halfmoon.broker.request import Reply, Request
from halfmoon.broker.transactions.answers import Answer
from halfmoon.broker.transactions.checks import Checks
from halfmoon.broker.transactions.decisions import Decisions
from halfmoon.broker.transactions.expiry import Expiry
from halfmoon.broker.transactions.half import PRODUCER_GROUP, Completion, HalfMessages, half_message, real_queue
from halfmoon.broker.transactions.late_decisions import LateDecisions
from halfmoon.errors import BrokerError, CorruptRecord, QueryNotFound, UsageError
from halfmoon.hot import Parts, tag_hash
from halfmoon.instant import Instant
from halfmoon.store.records import whole_record
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import GroupTransactions, PendingTransactions, SentCheck, Transaction, TransactionStats, to_json
from halfmoon.wire.headers.transaction import CheckTransaction, DecideTransaction, GetTransaction, ListPendingTransactions
from halfmoon.wire.ids import offset_msg_id, parse_offset_msg_id

audit = logging.getLogger("halfmoon.audit")

COUNT_MAX = 1000
LOOKS_MAX = 8192
"""Pending half messages among which groups are looked for: some ten milliseconds."""
ROWS_MAX, RECORDS_MAX, BYTES_MAX = 262_144, 128, 1024 * 1024
"""Rows of the index that one listing looks at, half records that it reads, and their bytes (one record more at most), some five
milliseconds each: it ends early then and says where to go on."""
GROUPS_MAX = 1000
KEYED_MAX, NAMED_MAX = 32, 8
"""Half messages with a key that are looked at, and how many ids an error lists."""
OPERATOR_LENGTH_MAX = 200
DECIDED_BY = b"DECIDED_BY\x01"
"""Property of the op record of a decision by hand."""


class Pending:
    """The service that answers 31001 to 31005."""

    records_max = RECORDS_MAX
    bytes_max = BYTES_MAX
    rows_max = ROWS_MAX

    def __init__(
        self, context: Context, index: TransactionIndex, halves: HalfMessages, decisions: Decisions, checks: Checks, expiry: Expiry,
        late: LateDecisions,
    ) -> None:  # fmt: skip
        self._settings, self._store, self._clients, self._stats = context.settings, context.store, context.clients, context.stats
        self._pending_replies, self._host = context.pending_replies, context.host
        self._index, self._half_messages, self._decisions, self._checks, self._expiry = index, halves, decisions, checks, expiry
        self._late_decisions = late
        self.by_hand = 0

    def list(self, request: Request) -> Reply:
        """Answer undecided half messages, the oldest first (31001); beyond the bounds the reply says where to go on."""
        header = request.header(ListPendingTransactions)
        index, count = self._index, min(max(header.count, 1), COUNT_MAX, self.records_max)
        group_hash = None if header.group is None else tag_hash(header.group.encode())
        transactions: list[Transaction] = []
        halves, following = index.pending(max(header.start, index.lowest_pending()), count, self.rows_max, group_hash)
        left_bytes = self.bytes_max
        for half in halves:
            if not self._shown(half) or request.now.date - half.store_s * 1000 < header.older_than_ms:
                following = index.end  # those that follow are younger still
                break
            left_bytes -= half.size
            transaction = self._transaction(half, request.now)
            if header.group is None or transaction.group == header.group:
                transactions.append(transaction)
            if left_bytes <= 0:
                following = half.index + 1
                break
        body = PendingTransactions(request.now.date, index.pending_count, following if following < index.end else -1, transactions)
        return Reply(0, None, None, to_json(body))

    def get(self, request: Request) -> Reply:
        """Answer one transaction (31002)."""
        half = self._find(request.header(GetTransaction))
        return Reply(0, None, None, to_json(self._with_clients(half, request.now)))

    def check(self, request: Request) -> Reply:
        """Ask a producer now (31003). Raises BrokerError when it is decided or there is nobody to ask."""
        half = self._find(request.header(CheckTransaction))
        if half.state != State.PREPARED:
            raise BrokerError(f"the transaction is decided: {State(half.state).name}")
        self._checks.ask(half, request.now.date)
        return Reply(0, None, None, to_json(self._with_clients(half, request.now)))

    def decide(self, request: Request) -> None:
        """Commit or roll back by hand (31004); the op record and the log ``halfmoon.audit`` say who did it."""
        header = request.header(DecideTransaction)
        operator = header.operator.strip()
        if not 0 < len(operator) <= OPERATOR_LENGTH_MAX or not operator.isprintable():
            raise BrokerError(f"who decides by hand gives a name of 1 to {OPERATOR_LENGTH_MAX} printable characters")
        if request.account is not None and request.account.access_key != operator:
            operator = f"{request.account.access_key} (as {operator})"  # the client may claim any name
        self._pending_replies.check_room()
        half = self._find(header)
        if half.state != State.PREPARED:
            agreed, words = self._became(half)
            if agreed is header.commit:
                self._pending_replies.reply(request, Reply(0, None, None, to_json(self._transaction(half, request.now))))
                return
            raise BrokerError(f"the transaction is decided: {words}")
        parts = self._parts(half)
        group = _text(parts, PRODUCER_GROUP)
        completion = Completion(None, request.peer.number, group, half.index, half.physical_offset, header.commit)
        self._decisions.decide([(completion, half_message(parts))], request.now.date, by=DECIDED_BY + operator.encode())
        decided = self._index.half(half.index)
        if decided is None or decided.state == State.PREPARED:
            raise BrokerError("the decision could not be stored; the broker's log says why")
        self.by_hand += 1
        word = "committed" if header.commit else "rolled back"
        audit.warning("half message %d (group %s) is %s by %s from %s", half.index, group, word, operator, request.peer.remote)
        self._pending_replies.reply(request, Reply(0, None, None, to_json(self._transaction(decided, request.now))))

    def _became(self, half: Half) -> tuple[bool | None, str]:
        """Return which decision about a half message that is not pending is a repeat, True for a commit, and what became of it.

        None: neither. An expired half message is settled as rolled back, and a commit may still come or have come.
        """
        if half.state != State.ROLLED_BACK:
            return half.state == State.COMMITTED, State(half.state).name
        parts = self._parts(half)
        copy = self._late_decisions.copy_of(_text(parts, "UNIQ_KEY"), _text(parts, PRODUCER_GROUP), half.physical_offset)
        if copy is None:
            return False, State.ROLLED_BACK.name
        if (successor := self._late_decisions.successor(copy)) is not None:
            return None, f"expired, and resumed as half message {successor[0]}"
        late = self._late_decisions.committed(copy)
        if late is None:
            return None, "expired: resume it"
        return (None, "expired, and committed later") if late else (False, "expired, and rolled back later")

    def stats(self, request: Request) -> Reply:
        """Answer what is pending by group, counters and rates (31005)."""
        return Reply(0, None, None, to_json(self.figures(request.now)))

    def figures(self, now: Instant) -> TransactionStats:
        """Return what is pending by group, counters and rates, these of groups with something pending or a live producer.

        Groups whose names share a hash are shown as the oldest's.
        """
        index = self._index
        *_, groups = self.groups()
        rated = list(dict.fromkeys((*groups, *self._clients.producers)))[:GROUPS_MAX]
        rates = {
            name: {"commits": commits, "rollbacks": rollbacks, "contradictions": contradictions}
            for name in rated
            for commits, rollbacks, contradictions in [
                (
                    self._stats.per_second("TRANSACTION_COMMITS", name)[0],
                    self._stats.per_second("TRANSACTION_ROLLBACKS", name)[0],
                    self._stats.per_second("TRANSACTION_CONTRADICTIONS", name)[0],
                )
            ]
        }
        return TransactionStats(
            now.date, index.pending_count, self.oldest_ms(), list(groups.values()), self.counters(), rates,
            now.date_at(self._checks.next_round_at),
            self._decisions.times.spans(),
        )  # fmt: skip

    def oldest_ms(self) -> int:
        """Return when the oldest pending half message was stored, to the second; -1 when none is pending."""
        lowest = self._index.half(self._index.lowest_pending())
        return -1 if lowest is None else lowest.store_s * 1000

    def texts(self, now: int) -> dict[str, str]:
        """Return what runtime information (28) says: how many are pending, and the age of the oldest in ms, -1 for none."""
        oldest = self.oldest_ms()
        age = -1 if oldest < 0 else max(0, now - oldest)
        return {"transactionsPending": str(self._index.pending_count), "transactionsOldestPendingAgeMs": str(age)}

    def counters(self) -> dict[str, int]:
        """Return what happened since the start, by name."""
        d, a, c = self._decisions.counters, self._decisions.answers.counters, self._checks.counters
        return {
            "halves": self._half_messages.stored_count, "commits": d.commits, "rollbacks": d.rollbacks, "unknown": d.unknown,
            "repeats": d.repeats, "contradictions": d.contradictions, "refused": d.refused, "checks_sent": c.sent,
            "checks_answered": a.answered, "checks_still_open": a.still_open, "checks_not_mine": a.not_mine,
            "checks_unanswered": c.unanswered, "rounds": c.rounds, "expired": self._expiry.expired,
            "late_commits": d.late_commits, "late_rollbacks": d.late_rollbacks, "resumed": self._expiry.resumed,
            "by_hand": self.by_hand,
        }  # fmt: skip

    def groups(self) -> Iterator[dict[str, GroupTransactions]]:
        """Find the groups that have something pending and the oldest of each, among the oldest that are pending.

        Yields nothing after each page of half messages, which takes about a millisecond, and all of them at the end.
        """
        index, counts = self._index, dict(self._index.pending_by_group)
        oldest: dict[int, GroupTransactions] = {}
        at, looks = index.lowest_pending(), 0
        while at < index.end and len(oldest) < min(len(counts), GROUPS_MAX) and looks < LOOKS_MAX:
            halves, at = index.pending(at, 1024)
            looks += max(len(halves), 64)
            for half in halves:
                if half.group_hash not in oldest:
                    name = self._group_of(half)
                    producers = len(self._clients.producers.get(name, {}))
                    count = counts.get(half.group_hash, 0)
                    oldest[half.group_hash] = GroupTransactions(name, count, half.store_s * 1000, producers)
            yield {}
        groups: dict[str, GroupTransactions] = {}
        for transactions in oldest.values():
            if transactions.group in groups:  # several whose names cannot be read
                groups[transactions.group].pending += transactions.pending
            else:
                groups[transactions.group] = transactions
        yield groups

    def _group_of(self, half: Half) -> str:
        try:
            return _text(self._parts(half), PRODUCER_GROUP)
        except BrokerError:
            return "?"

    # ------------------------------------------------------------ finding

    def _find(self, wanted: GetTransaction | CheckTransaction | DecideTransaction) -> Half:
        """Return the half message that a request names; of one transaction that was resumed, the newest.

        Raises QueryNotFound (22); BrokerError when a key names several transactions.
        """
        if wanted.offset is not None:
            half = self._index.half(wanted.offset)
            halves: Sequence[Half] = [] if half is None else [half]
        else:
            name = wanted.id or ""
            place = self._place(name)
            half = None if place is None else self._half_at(place)
            halves = self._keyed(name) if half is None else [half]
        halves = [half for half in halves if half.state != State.NONE and self._shown(half)]
        if not halves:
            what = repr(wanted.id or "") if wanted.offset is None else f"at offset {wanted.offset}"
            raise QueryNotFound(f"there is no half message {what}")
        return halves[-1]

    def _keyed(self, key: str) -> Sequence[Half]:
        """Return the half messages of the transaction that a key names, the oldest first."""
        by_transaction: defaultdict[str, set[Half]] = defaultdict(set)
        for record in self._store.query(HALF_TOPIC, key, KEYED_MAX, 0, FOR_EVER_MS).records if key else ():
            parts = whole_record(record)
            half = self._half_at(parts.physical_offset)
            if half is not None and half.state != State.NONE:
                by_transaction[_text(parts, "UNIQ_KEY") or str(half.index)].add(half)
        if key in by_transaction:
            return sorted(by_transaction[key])
        if len(by_transaction) > 1:
            ids = [offset_msg_id(self._host, max(halves).physical_offset) for halves in by_transaction.values()]
            more = " and more" if len(ids) > NAMED_MAX else ""
            raise BrokerError(f"the key {key!r} names {len(ids)} transactions, give one of: {', '.join(ids[:NAMED_MAX])}{more}")
        return sorted(next(iter(by_transaction.values()), ()))

    def _shown(self, half: Half) -> bool:
        """Return whether anybody may see a half message: not before it is kept, for its sender was not answered."""
        return not self._store.holds_back or half.physical_offset < self._store.kept_offset

    def _place(self, name: str) -> int | None:
        try:
            return parse_offset_msg_id(name).physical_offset
        except UsageError:
            return None

    def _half_at(self, place: int) -> Half | None:
        record = self._store.record(place) if place >= 0 else None
        try:
            parts = None if record is None else whole_record(record)
        except CorruptRecord:
            return None
        if parts is None or parts.topic != HALF_TOPIC:
            return None
        half = self._index.half(parts.queue_offset)
        return half if half is not None and half.physical_offset == place else None

    def _parts(self, half: Half) -> Parts:
        record = self._store.record(half.physical_offset, half.size)
        if record is None:
            raise BrokerError(f"the record of half message {half.index} is gone")
        try:
            return whole_record(record)
        except CorruptRecord as exc:
            raise BrokerError(f"half message {half.index} is damaged: {exc}") from exc

    def _with_clients(self, half: Half, now: Instant) -> Transaction:
        """Return one transaction that names the producers that were asked, as far as they are connected."""
        transaction = self._transaction(half, now)
        members = self._clients.producers.get(transaction.group, {}).values()
        connected = {f"{member.short_hash:06x}": f"{member.client_id} at {member.peer.remote}" for member in members}
        for check in transaction.checks:
            check.client = connected.get(check.producer, "")
        return transaction

    def _transaction(self, half: Half, now: Instant) -> Transaction:
        sent, counted, history = self._index.checks(half.index)
        settings = self._settings
        interval, state = settings.transaction_check_interval_ms, State(half.state).name
        transaction = Transaction(
            index=half.index, commit_log_offset=half.physical_offset, size_bytes=half.size, state=state,
            offset_msg_id=offset_msg_id(self._host, half.physical_offset), stored_ms=half.store_s * 1000, checks_sent=sent,
            checks_left=max(0, settings.transaction_check_max - counted),
            checks=[SentCheck(check.sent_s * 1000, f"{check.producer:06x}", Answer(check.answer).name) for check in history],
        )  # fmt: skip
        if half.state == State.PREPARED:
            due = transaction.stored_ms + settings.transaction_timeout_ms
            if history and history[-1].answer != Answer.NOT_MINE:
                due = history[-1].sent_s * 1000 + interval
            first = max(now.date_at(self._checks.next_round_at), now.date)
            transaction.next_check_ms = first if due <= first else first + -(-(due - first) // interval) * interval
        try:
            parts = self._parts(half)
        except BrokerError:
            return transaction
        text = wire_properties.decode(parts.properties)
        transaction.msg_id, transaction.group = text.get("UNIQ_KEY", ""), text.get(PRODUCER_GROUP, "")
        transaction.topic, transaction.queue_id = real_queue(parts.properties)
        transaction.tag, transaction.keys = text.get("TAGS", ""), text.get("KEYS", "")
        transaction.born_ms, transaction.stored_ms = parts.born_ms, parts.store_ms
        transaction.producers = len(self._clients.producers.get(transaction.group, {}))
        return transaction


def _text(parts: Parts, name: str) -> str:
    return (wire_properties.value_of(parts.properties, name.encode()) or b"").decode("utf-8", "replace")
