"""Second phase: producers decide about their half messages (END_TRANSACTION, 37), and the log records it.

A commit stores the visible message in its real queue first and then an op record; a rollback stores the op record only. All
decisions of a turn are stored a real queue at a time, and their op records together. The transaction index says which half messages
are decided, and how. Nothing here reads a clock.

Follows EndTransactionProcessor and TransactionalMessageBridge (RocketMQ 4.9.8).
Differs: a decision is remembered: a repeat gets the answer of the first and writes nothing, one that contradicts it is refused and
counted. A commit of an expired half message is honoured (`broker.transactions.late_decisions`). A producer that waits for a reply
gets one also when it does not know the outcome. The record must be a half message, and whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import Literal

import msgspec
from msgspec import structs

from halfmoon.broker.context import Context
from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.broker.request import Request, refusal_of, reply_to
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.transactions.answers import Answer, Answers
from halfmoon.broker.transactions.half import PRODUCER_GROUP, Caller, Completion, HalfMessage, committed, half_message
from halfmoon.broker.transactions.late_decisions import LateDecisions, ResumedCopy, rollback_op
from halfmoon.errors import BrokerError, CorruptRecord, MessageRefused, ServiceNotAvailable, StoreNotWritable, TopicNotFound
from halfmoon.hot import ENTRY, ENTRY_BYTES, Completions, Decided, Group, HalfMessageCache, Messages, Parts, done_answers, tag_hash
from halfmoon.instant import Instant
from halfmoon.metrics import DecisionTimes
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, VERSION
from halfmoon.wire.command import encode
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.table import request_type

log = logging.getLogger("halfmoon.broker.transactions")

NO_HALF = "Find prepared transaction message failed"
END_TRANSACTION = request_type(EndTransaction).code
_OP_TAG = tag_hash(b"d")
_READABLE_MAX = 65_536


class Counters(msgspec.Struct):
    """Events since the start."""

    commits: int = 0
    rollbacks: int = 0
    unknown: int = 0
    repeats: int = 0
    contradictions: int = 0
    refused: int = 0
    late_commits: int = 0
    late_rollbacks: int = 0


class Decisions:
    """The service of the second phase."""

    ops_at_once = 256  # owed op records that one turn writes

    def __init__(
        self, context: Context, index: TransactionIndex, cache: HalfMessageCache, sends: Sends, late: LateDecisions,
        warn: Callable[..., None],
    ) -> None:  # fmt: skip
        self._store, self._topics, self._stats, self._peers = context.store, context.topics, context.stats, context.peers
        self._pending_replies, self._host, self._promises = context.pending_replies, context.host, context.pending_replies.promises
        self._access, self._check_producer = context.access, context.check_producer
        self._index, self._cache, self._sends, self._late_decisions, self._warn = index, cache, sends, late, warn
        self.counters, self.answers = Counters(), Answers(index, context.clients)
        self.times = DecisionTimes()
        """How many were decided after how long; expired ones are not among them."""
        self._taken = Completions()
        self._readable: set[tuple[str, int]] = set()
        """Queues that consumers see; valid until topics change (`_epoch`)."""
        self._epoch = -1
        self.expire_void: Callable[[Half, Parts | None, str, int], bool] = lambda half, parts, reason, now: False
        """Keeps a half message as an expired one, see `Expiry.expire`."""
        self.owed_ops: dict[int, int] = dict.fromkeys(index.unfinished, -1)
        """Commits whose op record is not written yet: index, and physical offset of the visible record; -1: found by a start."""

    def settle(self, completions: Completions, now: int) -> None:
        """Carry out what producers decided.

        Completions of half messages that are not in the cache, and second ones of the same, follow once the others are decided.
        """
        for number in completions.checks:
            _, peer, group, index, place, committed, _ = completions.at(number)
            self.answers.enter(Answer.COMMIT if committed else Answer.ROLLBACK, group, peer, index, place)
        while len(completions):
            again = Completions()
            decided: dict[int, tuple[Completion, HalfMessage]] = {}
            for number in self._decide(self._cache, completions, now):
                completion = Completion(*completions.at(number))
                judged = completion if completion.index in decided else self._judged(completion, now)
                if isinstance(judged, Completion):
                    again.add(*structs.astuple(judged))
                elif judged is not None:
                    decided[completion.index] = completion, judged
            if decided:
                self.decide(decided.values(), now)
            completions = again

    def end(self, request: Request) -> None:
        """Carry out the decision of one request (37)."""
        self.take(request)
        self.settle(self.taken(), request.now.date)

    def taken(self) -> Completions:
        """Take out the decisions of the requests that were taken since the last call."""
        taken, self._taken = self._taken, Completions()
        return taken

    def take(self, request: Request) -> None:
        """Take the decision of one request, to be carried out with others; reply to a producer that does not know the outcome."""
        command, header, peer = request.command, request.header(EndTransaction), request.peer
        group, index, place = header.producer_group, header.tran_state_table_offset, header.commit_log_offset
        caller = None if command.is_oneway else (peer.number, command.opaque, command.serialization)
        decision, check = header.commit_or_rollback, header.from_transaction_check is True
        if decision in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            self._taken.add(caller, peer.number, group, index, place, decision == TRANSACTION_COMMIT, header.msg_id, check=check)
            return
        if check:
            answer = Answer.NOT_MINE if header.not_mine else Answer.OPEN if header.still_open else Answer.UNKNOWN
            self.answers.enter(answer, group, peer.number, index, place)
        self.counters.unknown += 1
        if command.remark and not header.still_open:
            self._warn("%s does not know about half message %d of %.255r: %.500r", peer.remote, index, group, command.remark)
        self._succeed([] if caller is None else [caller])

    # ------------------------------------------------------------ judging

    def _judged(self, completion: Completion, now: int) -> HalfMessage | Completion | None:
        """Return the half message that a completion decides. Of one that was resumed: the same completion of its successor.

        None: it was answered here, being refused, a repeat, or late.
        """
        try:
            if (outcome := self._expired(completion, now)) is not None:
                return outcome or None
            decided = half_message(self._half(completion))
            self._check_access(completion, decided.topic)
            half = self._index.half(completion.index)
            state = State.NONE if half is None or half.physical_offset != completion.physical_offset else State(half.state)
            if state == State.PREPARED:
                return decided
            if state == State.NONE:
                raise BrokerError(f"half message {completion.index} was settled by another broker")
            if (state == State.COMMITTED) == completion.committed:
                self.counters.repeats += 1
                self._succeed([] if completion.caller is None else [completion.caller])
                return None
            self._contradicted(completion)
        except BrokerError as exc:
            self.counters.refused += 1
            remote, group = self._remote(completion), completion.group
            self._warn("%s (%.255r) decides half message %d: refused: %s", remote, group, completion.index, exc.remark)
            self._refuse(completion.caller, exc)
        except Exception as exc:
            self._refuse(completion.caller, refusal_of(exc, f"the decision about half message {completion.index}"))
        return None

    def _contradicted(self, completion: Completion) -> None:
        self.counters.contradictions += 1
        verb, was = ("commits", "rolled back") if completion.committed else ("rolls back", "committed")
        remote, group, index = self._remote(completion), completion.group, completion.index
        self._warn("%s (%s) %s half message %d, which was %s: refused", remote, group, verb, index, was)
        self._stats.add("TRANSACTION_CONTRADICTIONS", completion.group, 1)
        self._refuse(completion.caller, BrokerError(f"the transaction was {was} already"))

    def _expired(self, completion: Completion, now: int) -> Completion | Literal[False] | None:
        """Carry out a completion of an expired half message, and answer it: False.

        Of one that was resumed: return the same completion of its successor. None: it did not expire, or nobody can tell.
        """
        # Expiring rolls back: in any other state it has not expired, and nothing is looked up.
        half = self._index.half(completion.index)
        if half is not None and half.physical_offset == completion.physical_offset and half.state != State.ROLLED_BACK:
            return None
        copy = self._late_decisions.copy_of(completion.key, completion.group, completion.physical_offset)
        if copy is None:
            return None
        self._check_access(completion, copy.topic)
        if (successor := self._late_decisions.successor(copy)) is not None:
            index, place = successor
            return structs.replace(completion, index=index, physical_offset=place)
        was = self._late_decisions.committed(copy)
        if was is None:
            self._end_late(completion, copy, now)
        elif was == completion.committed:
            self.counters.repeats += 1
        else:
            self._contradicted(completion)
            return False
        self._succeed([] if completion.caller is None else [completion.caller])
        return False

    def _end_late(self, completion: Completion, copy: ResumedCopy, now: int) -> None:
        """Store what a late completion decides. Raises BrokerError when the store takes nothing."""
        # Before anything is stored: what is neither durable nor remembered would be decided twice.
        self._late_decisions.check_room()
        if completion.committed:
            parts = self._late_decisions.half_of(copy)
            half = None if parts is None else half_message(parts)
            if half is None or not half.topic:
                raise BrokerError("the half message expired, and its copy is gone or names no topic and queue")
            if copy.half_place < self._topics.accepts_from(half.topic):
                raise TopicNotFound(f"{self._topics.gone(half.topic)}: the message is kept in {EXPIRED_TOPIC}")
            self._make_readable(half.topic, half.queue_id, now)
            self._sends.append(half.topic, half.queue_id, committed([half]), now)
            self.counters.commits += 1
            self.counters.late_commits += 1
        else:
            self._sends.append(OP_TOPIC, 0, [rollback_op(copy, self._host, now)], now)
            self.counters.rollbacks += 1
            self.counters.late_rollbacks += 1
        self._late_decisions.ended(copy.half_place, committed=completion.committed)
        self._stats.add("TRANSACTION_COMMITS" if completion.committed else "TRANSACTION_ROLLBACKS", completion.group, 1)
        outcome = "committed" if completion.committed else "rolled back"
        log.warning(
            "half message %d (%s, group %s) had expired and is now %s by %s",
            completion.index, completion.key, completion.group, outcome, self._remote(completion),
        )  # fmt: skip

    def _half(self, completion: Completion) -> Parts:
        """Return the record that a completion names. Raises BrokerError 1 with the original's texts when they do not match."""
        record = self._store.record(completion.physical_offset) if completion.physical_offset >= 0 else None
        if record is None:
            raise BrokerError(NO_HALF)
        try:
            parts = whole_record(record)
        except CorruptRecord as exc:
            raise BrokerError(f"{NO_HALF}: {exc}") from exc
        if parts.topic != HALF_TOPIC:
            raise BrokerError(NO_HALF)
        group = wire_properties.value_of(parts.properties, PRODUCER_GROUP.encode())
        if group is None or group != completion.group.encode():
            raise BrokerError("The producer group wrong")
        if parts.queue_offset != completion.index:
            raise BrokerError("The transaction state table offset wrong")
        if parts.physical_offset != completion.physical_offset:
            raise BrokerError("The commit log offset wrong")
        return parts

    # ------------------------------------------------------------ whose decisions count

    def _check_access(self, completion: Completion, topic: str) -> None:
        """Check that whose connection brought a completion may publish to the half message's topic, and produce in its group.

        Raises AccessRefused (1).
        """
        self._check_producer(completion.peer, completion.group, END_TRANSACTION, topic)

    def _permitted(self, completions: Completions, decided: Decided) -> Decided:
        """Refuse the completions of accounts that may not decide about these half messages; return what the others decide."""
        groups, numbers, rolled_back, _, others = decided
        topics: list[tuple[int, str | None]] = [
            (number, group[0]) for group, of_queue in zip(groups, numbers) for number in of_queue
        ]
        topics += [(number, None) for number in rolled_back]
        mine = []
        for number, topic in topics:
            completion = Completion(*completions.at(number))
            try:
                self._check_access(completion, half_message(self._half(completion)).topic if topic is None else topic)
                mine.append(number)
            except BrokerError as exc:
                self.counters.refused += 1
                self._refuse(completion.caller, exc)
        if len(mine) == len(topics):
            return decided
        return (*self._cache.decide(completions, sorted(mine))[:4], others)

    # ------------------------------------------------------------ deciding

    def decide(self, decided: Iterable[tuple[Completion, HalfMessage]], now: int, *, by: bytes = b"") -> None:
        """Carry out decisions about half messages that the log has, each at most once, and answer the callers.

        ``by`` is a property ``name 0x01 value`` for the op records: who decided, if it was not the producer.
        """
        decided = list(decided)
        completions, halves = Completions(), HalfMessageCache(len(decided), 0)
        for completion, half in decided:
            completions.add(*structs.astuple(completion))
            entry = ENTRY.pack(half.physical_offset, 0, 0)
            halves.add(completion.index, entry, half.topic, half.queue_id, half.group, half.message)
        self._decide(halves, completions, now, OP_PROPERTIES + b"\x02" + by if by else OP_PROPERTIES)

    def expire(self, index: int, now: int) -> None:
        """Roll back a half message that nobody decided."""
        completions = Completions()
        completions.add(None, -1, "", index, -1, False, "")
        self._write(HalfMessageCache(0, 0), completions, ([], [], [0], [index], []), now, OP_PROPERTIES)

    def _decide(self, halves: HalfMessageCache, completions: Completions, now: int, tagged: bytes = OP_PROPERTIES) -> list[int]:
        """Decide these half messages as completions say; return the completions of others. ``tagged``: properties of op records."""
        decided = halves.decide(completions)
        if halves is self._cache and self._access is not None:
            decided = self._permitted(completions, decided)
        others = decided[4]
        try:
            while decided[3]:
                decided = halves.decide(completions, self._write(halves, completions, decided, now, tagged))
        except Exception as exc:  # our own mistake: these stay pending and will be checked, no others are affected
            log.exception("%d decisions failed", len(decided[3]))
            self._fail(completions, _numbers(decided), BrokerError(f"{type(exc).__name__}: {exc}"))
        return others

    def _write(self, halves: HalfMessageCache, completions: Completions, decided: Decided, now: int, tagged: bytes) -> list[int]:
        """Store visible records a queue at a time, and behind them all op records, with one write to the log.

        Return the completions to try again, because something before them could not be stored.
        """
        groups, numbers, rolled_back, indexes, _ = decided
        if len(indexes) > self._index.room and not self._room(completions, decided):
            return []
        if self._epoch != self._topics.epoch or not self._readable.issuperset(map(_QUEUE, groups)):
            kept = self._made_readable(completions, decided, now)
            if len(kept) < sum(map(len, numbers)):
                return kept + rolled_back
        # In order, so that no op record lies before its visible record: a crash between the two leaves a commit for the next start
        # to finish, never a settled half message whose message is lost.
        ops: Group = (OP_TOPIC, 0, "", Messages.numbers(indexes, tagged, now, self._host, _OP_TAG))
        stored = self._sends.append_all([*groups, ops], now, in_order=True)
        for place, appended in enumerate(stored[: len(groups)]):
            if isinstance(appended, Exception):
                self._write_apart(halves, completions, decided, stored[:place], appended, now, tagged)
                return [number for later in numbers[place + 1 :] for number in later] + rolled_back
        self._ended(completions, decided, stored, now)
        return []

    def _write_apart(
        self, halves: HalfMessageCache, completions: Completions, decided: Decided, stored: list[Appended | Exception],
        exc: Exception, now: int, tagged: bytes,
    ) -> None:  # fmt: skip
        """Refuse or retry the commits to a queue that could not be stored; write the op records of those stored before it."""
        groups, numbers, _, indexes, _ = decided
        place = len(stored)
        if stored:
            indexes = indexes[: sum(map(len, numbers[:place]))]
            messages = Messages.numbers(indexes, tagged, now, self._host, _OP_TAG)
            ops = self._sends.append_all([(OP_TOPIC, 0, "", messages)], now)
            self._ended(completions, (groups[:place], numbers[:place], [], indexes, []), stored + ops, now)
        if isinstance(exc, MessageRefused) and len(numbers[place]) > 1:  # one of them cannot be stored, so none was
            for number in numbers[place]:
                self._write(halves, completions, halves.decide(completions, [number]), now, tagged)
        else:
            topic, queue_id, _, _ = groups[place]
            refusal = refusal_of(exc, f"{len(numbers[place])} commits to queue {queue_id} of {topic}")
            self._fail(completions, numbers[place], refusal)

    def _room(self, completions: Completions, decided: Decided) -> bool:
        """Whether the index has room for these decisions; if not, they are refused."""
        try:
            self._index.make_room(0, len(decided[3]))
        except StoreNotWritable as exc:
            self._fail(completions, _numbers(decided), ServiceNotAvailable(f"service not available now: {exc}"))
            return False
        return True

    def _made_readable(self, completions: Completions, decided: Decided, now: int) -> list[int]:
        """Let consumers see these queues; return commits to those that they do; others are refused, or expire."""
        if self._epoch != self._topics.epoch or len(self._readable) > _READABLE_MAX:
            self._readable.clear()
            self._epoch = self._topics.epoch
        oldest, kept = self._index.half(self._index.lowest_pending()), list[int]()
        for (topic, queue_id, _, _), numbers in zip(decided[0], decided[1]):
            born = self._topics.accepts_from(topic)
            young = [number for number in numbers if completions.at(number)[4] >= born]
            for number in numbers if len(young) < len(numbers) else ():
                if completions.at(number)[4] < born:
                    self._expire_void(Completion(*completions.at(number)), topic, now)
            try:
                if not topic:
                    raise BrokerError("the half message names no topic and queue")
                if young:
                    self._make_readable(topic, queue_id, now)
            except BrokerError as exc:
                self._fail(completions, young, exc)
            else:
                if oldest is not None and born <= oldest.physical_offset:  # so every commit to it is a young one
                    self._readable.add((topic, queue_id))
                kept += young
        return kept

    def _expire_void(self, completion: Completion, topic: str, now: int) -> None:
        """Refuse a commit because the message's topic was deleted, and keep the message among the expired ones."""
        record, half = self._store.record(completion.physical_offset), self._index.half(completion.index)
        reason = self._topics.gone(topic)
        refusal: BrokerError = TopicNotFound(f"{reason}: the message is kept in {EXPIRED_TOPIC}")
        if half is None or record is None or not self.expire_void(half, whole_record(record), reason, now):
            refusal = ServiceNotAvailable(f"service not available now: {reason}, and the message cannot be kept yet")
        self.counters.refused += 1
        self._refuse(completion.caller, refusal)

    def _make_readable(self, topic: str, queue_id: int, now: int) -> None:
        if (change := self._topics.make_readable(topic, queue_id, now)) is not None:
            self._warn("%s: a transaction to queue %d is committed", change, queue_id)

    def _ended(self, completions: Completions, decided: Decided, stored: list[Appended | Exception], now: int) -> None:
        """Enter decisions whose records are stored into the index and answer their callers.

        The last of ``stored`` are the op records, which may have failed.
        """

        _, numbers, rolled_back, indexes, _ = decided
        committed = [number for of_queue in numbers for number in of_queue]
        count, ops = len(committed), stored[-1]
        entries = b"".join([appended.entries for appended in stored[:-1] if isinstance(appended, Appended)])
        if isinstance(ops, Exception):  # what is visible stays committed, its op record follows later; nothing was rolled back
            self._owe(indexes[:count], entries)
            self._fail(completions, rolled_back, refusal_of(ops, f"{len(rolled_back)} rollbacks"))
            rolled_back, indexes = [], indexes[:count]
        else:
            entries += ops.entries[count * ENTRY_BYTES : len(indexes) * ENTRY_BYTES]
        try:
            first_s = self._index.decided(indexes, entries, count)
        except StoreNotWritable as exc:  # the records are in the log, and the next start enters them
            self._fail(completions, committed + rolled_back, ServiceNotAvailable(f"service not available now: {exc}"))
            return
        self._cache.drop(indexes)
        self.counters.commits += count
        self.counters.rollbacks += len(rolled_back)
        callers, groups = completions.tally(committed, rolled_back)
        for group, commits, rollbacks in groups:
            if commits:
                self._stats.add("TRANSACTION_COMMITS", group, commits)
            if rollbacks and group:  # without a group it expired
                self._stats.add("TRANSACTION_ROLLBACKS", group, rollbacks)
        if groups and groups[0][0]:
            # The lowest index is the oldest. Most often it is young, and so are all.
            if (age_s := max(0, now // 1000 - first_s)) < 2:
                self.times.counts[0] += len(indexes)
                self.times.total += len(indexes) * age_s
            else:
                self._count_ages(indexes, now // 1000)
        if callers and not self._promises:
            self._peers.tell(done_answers(callers, VERSION))
        elif callers:
            self._succeed(callers)

    def _count_ages(self, indexes: list[int], now_s: int) -> None:
        for index in indexes:
            half = self._index.half(index)
            self.times.took(0 if half is None else max(0, now_s - half.store_s))

    def _owe(self, indexes: list[int], entries: bytes) -> None:
        """Remember commits whose op records could not be stored."""
        for index, (place, _, _) in zip(indexes, ENTRY.iter_unpack(entries)):
            self.owed_ops[index] = place
        if (first := min(self.owed_ops.values(), default=-1)) >= 0:  # -1: the index itself holds a lower offset
            self._index.hold(first)

    def pay(self, now: int) -> bool:
        """Write some of the owed op records: a crash or a full disk came between a visible record and its op record.

        Return False when the store takes none.
        """
        indexes = list(islice(self.owed_ops, self.ops_at_once))
        if indexes:
            try:
                self._sends.append(OP_TOPIC, 0, Messages.numbers(indexes, OP_PROPERTIES, now, self._host, _OP_TAG), now)
            except BrokerError:
                return False
            for index in indexes:
                del self.owed_ops[index]
            if not self.owed_ops:
                self._index.hold(None)
        return True

    def _fail(self, completions: Completions, numbers: Iterable[int], refusal: BrokerError) -> None:
        for number in numbers:
            completion = Completion(*completions.at(number))
            self.counters.refused += 1
            self._warn("half message %d stays undecided: %s", completion.index, refusal.remark)
            self._refuse(completion.caller, refusal)

    def _remote(self, completion: Completion) -> str:
        peer = self._peers.get(completion.peer)
        return "a lost connection" if peer is None else peer.remote

    # ------------------------------------------------------------ answers

    def _succeed(self, callers: list[Caller]) -> None:
        """Reply with success once everything until now is as durable as the flush mode promises."""
        if not callers:
            return

        def then(refusal: BrokerError | None, now: Instant) -> None:
            if refusal is None:
                self._peers.tell(done_answers(callers, VERSION))
            else:
                for caller in callers:
                    self._refuse(caller, refusal)

        if self._pending_replies.can_reply:
            then(None, self._pending_replies.now)
            return
        try:  # repeats take no bytes of the log, so nothing else bounds how many wait
            self._pending_replies.check_room()
        except BrokerError as exc:
            then(exc, self._pending_replies.now)
        else:
            self._pending_replies.after_flush(then)

    def _refuse(self, caller: Caller | None, refusal: BrokerError) -> None:
        if caller is not None:
            peer, opaque, serialization = caller
            self._peers.tell([(peer, encode(reply_to(opaque, serialization, refused(refusal))))])
            self._peers.refused(refusal.code)


_QUEUE = itemgetter(0, 1)


def _numbers(decided: Decided) -> list[int]:
    """Return the completions that decide something."""
    return [number for of_queue in decided[1] for number in of_queue] + decided[2]
