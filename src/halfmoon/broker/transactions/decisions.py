"""Second phase: what producers decide about their half messages (END_TRANSACTION, 37), and what the log is told of it.

A commit stores the visible message in its real queue first and then an op record; a rollback stores the op record only. All
decisions of a turn are stored a real queue at a time, and their op records together. Which half messages are decided, and how,
says the transaction index; nothing here looks at a clock.

Follows EndTransactionProcessor and TransactionalMessageBridge (RocketMQ 4.9.8).
Differs: a decision is remembered: its repeat is answered as the first and writes nothing, one that contradicts it is refused and
counted. One that comes for what was given up is honoured (`broker.transactions.late_decisions`). A producer that asked is answered
also when it says that it does not know. The record must be a half message, and whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import islice
from operator import itemgetter
from typing import Literal

import msgspec
from msgspec import structs
from msgspec.structs import astuple

from halfmoon.broker.context import Context
from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC
from halfmoon.broker.request import Request, refusal_of, reply_to
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.transactions.half import PRODUCER_GROUP
from halfmoon.broker.transactions.half_record import HalfMessage, committed, half_message
from halfmoon.broker.transactions.late_decisions import Copy, Late, rollback_op
from halfmoon.errors import BrokerError, CorruptRecord, MessageRefused, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import ENTRY, ENTRY_BYTES, Endings, Found, Group, Messages, Parts, Recent, done_answers, tag_hash
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended
from halfmoon.store.transactions.index import State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import encode
from halfmoon.wire.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from halfmoon.wire.headers.transaction import EndTransaction

log = logging.getLogger("halfmoon.broker.transactions")

NO_HALF = "Find prepared transaction message failed"
Asked = tuple[int, int, int]
"""connection, opaque, serialisation"""

_DECISIONS = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
_OP_TAG = tag_hash(b"d")
OPS_AT_ONCE = 256
"""Op records that are owed and written in one turn."""
_READABLE_MAX = 65_536


class Answer(IntEnum):
    """What came back on a check, as the transaction index keeps it."""

    NONE = 0
    UNKNOWN = 1
    COMMIT = 2
    ROLLBACK = 3
    OPEN = 4
    """The transaction is known to its producer and not over: the checks until now do not count."""


class Counters(msgspec.Struct):
    """What happened since the start."""

    commits: int = 0
    rollbacks: int = 0
    unknown: int = 0
    repeats: int = 0
    contradictions: int = 0
    refused: int = 0
    checks_answered: int = 0
    still_open: int = 0
    late_commits: int = 0
    late_rollbacks: int = 0


class Ending(msgspec.Struct, gc=False):
    """What one producer, or an operator, decided. ``asked`` None: nobody waits for an answer."""

    asked: Asked | None
    peer: int
    group: str
    index: int
    physical_offset: int
    committed: bool
    key: str = ""
    """The message's id, as the request has it."""


class Decisions:
    """The service of the second phase."""

    def __init__(
        self, context: Context, index: TransactionIndex, recent: Recent, sends: Sends, late: Late, warn: Callable[..., None]
    ) -> None:
        self._store, self._topics, self._stats, self._peers = context.store, context.topics, context.stats, context.peers
        self._durable, self._host = context.durable, context.host
        self._index, self._recent, self._sends, self._late, self._warn = index, recent, sends, late, warn
        self.counters = Counters()
        self._readable: set[tuple[str, int]] = set()
        """Queues that consumers see, as long as topics are what they were."""
        self._epoch = -1
        self.owed_ops: dict[int, int] = dict.fromkeys(index.unfinished, -1)
        """Indexes of commits whose op record is not written yet and where their visible record lies; -1: a start found them."""

    # ------------------------------------------------------------ a turn

    def settle(self, endings: Endings, now: int) -> None:
        """Carry out what producers decided.

        What is about half messages that are not in memory, or the second about one, is looked at after the others are decided.
        """
        for number in endings.checks:
            ending = Ending(*endings.at(number))
            self._checked(ending, Answer.COMMIT if ending.committed else Answer.ROLLBACK)
        while len(endings):
            again = Endings()
            decided: dict[int, tuple[Ending, HalfMessage]] = {}
            for number in self._decide(self._recent, endings, now):
                ending = Ending(*endings.at(number))
                judged = ending if ending.index in decided else self._judged(ending, now)
                if isinstance(judged, Ending):
                    again.add(*astuple(judged))
                elif judged is not None:
                    decided[ending.index] = ending, judged
            if decided:
                self.decide(decided.values(), now)
            endings = again

    def end(self, request: Request) -> None:
        """Take one request that was decoded by itself (37)."""
        self._enter(request, request.header(EndTransaction))

    def _enter(self, request: Request, header: EndTransaction) -> None:
        command, group, index = request.command, header.producer_group, header.tran_state_table_offset
        asked = None if command.is_oneway else (request.peer.number, command.opaque, command.serialization)
        decision = header.commit_or_rollback
        ending = Ending(
            asked, request.peer.number, group, index, header.commit_log_offset, decision == TRANSACTION_COMMIT, header.msg_id
        )
        if header.from_transaction_check:
            undecided = Answer.OPEN if header.still_open else Answer.UNKNOWN
            self._checked(
                ending, {TRANSACTION_COMMIT: Answer.COMMIT, TRANSACTION_ROLLBACK: Answer.ROLLBACK}.get(decision, undecided)
            )
        if decision in _DECISIONS:
            endings = Endings()
            endings.add(*astuple(ending))
            self.settle(endings, request.now)
            return
        self.counters.unknown += 1
        if command.remark and not header.still_open:
            remote, remark = request.peer.remote, command.remark
            self._warn("%s does not know about half message %d of %.255r: %.500r", remote, index, group, remark)
        self._succeed([] if asked is None else [asked])

    def _checked(self, ending: Ending, answer: Answer) -> None:
        """Note what was answered to the last check: the first answer to it, and from a producer of its group."""
        half = self._index.half(ending.index)
        if half is None or half.state != State.PREPARED or half.physical_offset != ending.physical_offset:
            return
        if half.group_hash != tag_hash(ending.group.encode()):
            return
        history = self._index.checks(ending.index).history
        if history and history[-1].answer == Answer.NONE:
            self._index.answered(ending.index, int(answer), pardons=answer is Answer.OPEN)
            self.counters.checks_answered += 1
            self.counters.still_open += answer is Answer.OPEN

    # ------------------------------------------------------------ judging

    def _judged(self, ending: Ending, now: int) -> HalfMessage | Ending | None:
        """Return the half message that an ending decides, or the ending as it is about the half message that this one was resumed
        as; None when it was answered: refused, a repeat, or late."""
        try:
            if (gone := self._given_up(ending, now)) is not None:
                return gone or None
            found = half_message(self._half(ending))
            half = self._index.half(ending.index)
            state = State.NONE if half is None or half.physical_offset != ending.physical_offset else State(half.state)
            if state == State.PREPARED:
                return found
            if state == State.NONE:
                raise BrokerError(f"half message {ending.index} was settled by another broker")
            if (state == State.COMMITTED) == ending.committed:
                self.counters.repeats += 1
                self._succeed([] if ending.asked is None else [ending.asked])
                return None
            self._contradicted(ending)
        except BrokerError as exc:
            self.counters.refused += 1
            self._warn("%s (%.255r) ends half message %d: %s", self._remote(ending), ending.group, ending.index, exc.remark)
            self._refuse(ending.asked, exc)
        except Exception as exc:
            self._refuse(ending.asked, refusal_of(exc, f"the end of half message {ending.index}"))
        return None

    def _contradicted(self, ending: Ending) -> None:
        self.counters.contradictions += 1
        said, was = ("commits", "rolled back") if ending.committed else ("rolls back", "committed")
        self._warn("%s (%s) %s half message %d, which was %s: refused", self._remote(ending), ending.group, said, ending.index, was)
        self._stats.add("TRANSACTION_CONTRADICTIONS", ending.group, 1)
        self._refuse(ending.asked, BrokerError(f"the transaction was {was} already"))

    def _given_up(self, ending: Ending, now: int) -> Ending | Literal[False] | None:
        """Carry out an ending that came after its half message was given up, and answer it: False.

        Returns the ending about what the half message was resumed as, where it was; None: it was not given up, or nobody can tell.
        """
        half = self._index.half(ending.index)
        if half is not None and half.physical_offset == ending.physical_offset and half.state != State.ROLLED_BACK:
            return None
        copy = self._late.copy_of(ending.key, ending.group, ending.physical_offset)
        if copy is None:
            return None
        if (successor := self._late.successor(copy)) is not None:
            index, place = successor
            return structs.replace(ending, index=index, physical_offset=place)
        was = self._late.committed(copy)
        if was is None:
            self._end_late(ending, copy, now)
        elif was == ending.committed:
            self.counters.repeats += 1
        else:
            self._contradicted(ending)
            return False
        self._succeed([] if ending.asked is None else [ending.asked])
        return False

    def _end_late(self, ending: Ending, copy: Copy, now: int) -> None:
        """Store what a late ending asks for. Raises BrokerError when the store takes nothing."""
        self._late.check_room()
        if ending.committed:
            parts = self._late.half_of(copy)
            half = None if parts is None else half_message(parts)
            if half is None or not half.topic:
                raise BrokerError("the half message was given up, and its copy is gone or does not say where it belongs")
            self._make_readable(half.topic, half.queue_id, now)
            self._sends.append(half.topic, half.queue_id, committed([half]), now)
            self.counters.commits += 1
            self.counters.late_commits += 1
        else:
            self._sends.append(OP_TOPIC, 0, [rollback_op(copy, self._host, now)], now)
            self.counters.rollbacks += 1
            self.counters.late_rollbacks += 1
        self._late.ended(copy.half_place, committed=ending.committed)
        self._stats.add("TRANSACTION_COMMITS" if ending.committed else "TRANSACTION_ROLLBACKS", ending.group, 1)
        log.warning(
            "half message %d (%s, group %s) was given up and is %s after all: %s says so",
            ending.index, ending.key, ending.group, "committed" if ending.committed else "rolled back", self._remote(ending),
        )  # fmt: skip

    def _half(self, ending: Ending) -> Parts:
        """Return the record that an ending names. Raises BrokerError 1 with the original's texts when they do not fit."""
        record = self._store.record(ending.physical_offset) if ending.physical_offset >= 0 else None
        if record is None:
            raise BrokerError(NO_HALF)
        try:
            parts = whole_record(record)
        except CorruptRecord as exc:
            raise BrokerError(f"{NO_HALF}: {exc}") from exc
        if parts.topic != HALF_TOPIC:
            raise BrokerError(NO_HALF)
        group = wire_properties.value_of(parts.properties, PRODUCER_GROUP.encode())
        if group is None or group != ending.group.encode():
            raise BrokerError("The producer group wrong")
        if parts.queue_offset != ending.index:
            raise BrokerError("The transaction state table offset wrong")
        if parts.physical_offset != ending.physical_offset:
            raise BrokerError("The commit log offset wrong")
        return parts

    # ------------------------------------------------------------ deciding

    def decide(self, decided: Iterable[tuple[Ending, HalfMessage]], now: int, *, by: bytes = b"") -> None:
        """Carry out decisions about half messages that the log has, each named once; whoever asked is answered.

        ``by`` is a property ``name 0x01 value`` for the op records: who decided, when it was not the producer.
        """
        decided = list(decided)
        endings, halves = Endings(), Recent(len(decided), 0)
        for ending, half in decided:
            endings.add(*astuple(ending))
            entry = ENTRY.pack(half.physical_offset, 0, 0)
            halves.add(ending.index, entry, half.topic, half.queue_id, half.group, half.message)
        self._decide(halves, endings, now, by)

    def give_up(self, index: int, now: int) -> None:
        """Roll back a half message that nobody decided."""
        endings = Endings()
        endings.add(None, -1, "", index, -1, False, "")
        self._write(Recent(0, 0), endings, ([], [], [0], [index], []), now, b"")

    def _decide(self, halves: Recent, endings: Endings, now: int, by: bytes = b"") -> list[int]:
        """Decide these half messages as endings say; return the endings about others."""
        found = halves.decided(endings)
        others = found[4]
        try:
            while found[3]:
                found = halves.decided(endings, self._write(halves, endings, found, now, by))
        except Exception as exc:  # our own mistake: these stay as they are and are asked about, others do not feel it
            log.exception("%d decisions failed", len(found[3]))
            self._fail(endings, _numbers(found), BrokerError(f"{type(exc).__name__}: {exc}"))
        return others

    def _write(self, halves: Recent, endings: Endings, found: Found, now: int, by: bytes) -> list[int]:
        """Store visible records a queue at a time, and behind them all op records, with one write to the log. Return what is to be
        tried again, since something before it could not be stored.
        """
        groups, numbers, rolled_back, indexes, _ = found
        if len(indexes) > self._index.room and not self._room(endings, found):
            return []
        if self._epoch != self._topics.epoch or not self._readable.issuperset(map(_QUEUE, groups)):
            readable = self._made_readable(endings, found, now)
            if len(readable) < len(groups):
                return [number for place in readable for number in numbers[place]] + rolled_back
        ops: Group = (OP_TOPIC, 0, "", self._ops(indexes, now, by))
        stored = self._sends.append_all([*groups, ops], now, in_order=True)
        for place, appended in enumerate(stored[: len(groups)]):
            if isinstance(appended, Exception):
                self._write_apart(halves, endings, found, stored[:place], appended, now, by)
                return [number for later in numbers[place + 1 :] for number in later] + rolled_back
        self._ended(endings, found, stored)
        return []

    def _write_apart(
        self,
        halves: Recent,
        endings: Endings,
        found: Found,
        stored: list[Appended | Exception],
        exc: Exception,
        now: int,
        by: bytes,
    ) -> None:
        """See to the commits to a queue that could not be stored, and to those before it that were: these get their op records."""
        groups, numbers, _, indexes, _ = found
        place = len(stored)
        if stored:
            indexes = indexes[: sum(map(len, numbers[:place]))]
            ops = self._sends.append_all([(OP_TOPIC, 0, "", self._ops(indexes, now, by))], now)
            self._ended(endings, (groups[:place], numbers[:place], [], indexes, []), stored + ops)
        if isinstance(exc, MessageRefused) and len(numbers[place]) > 1:  # one of them cannot be stored, so none was
            for number in numbers[place]:
                self._write(halves, endings, halves.decided(endings, [number]), now, by)
        else:
            topic, queue_id, _, _ = groups[place]
            refusal = refusal_of(exc, f"{len(numbers[place])} commits to queue {queue_id} of {topic}")
            self._fail(endings, numbers[place], refusal)

    def _room(self, endings: Endings, found: Found) -> bool:
        """Whether the index gets room for these decisions; if not, they are refused."""
        try:
            self._index.make_room(0, len(found[3]))
        except StoreNotWritable as exc:
            self._fail(endings, _numbers(found), ServiceNotAvailable(f"service not available now: {exc}"))
            return False
        return True

    def _made_readable(self, endings: Endings, found: Found, now: int) -> list[int]:
        """See to it that consumers see these queues; return the places of those that they do. Commits to others are refused."""
        if self._epoch != self._topics.epoch or len(self._readable) > _READABLE_MAX:
            self._readable.clear()
            self._epoch = self._topics.epoch
        seen = []
        for place, (topic, queue_id, _, _) in enumerate(found[0]):
            try:
                if not topic:
                    raise BrokerError("the half message does not say where it belongs")
                self._make_readable(topic, queue_id, now)
            except BrokerError as exc:
                self._fail(endings, found[1][place], exc)
            else:
                self._readable.add((topic, queue_id))
                seen.append(place)
        return seen

    def _make_readable(self, topic: str, queue_id: int, now: int) -> None:
        """See to it that consumers see the queue: the topic may have been deleted or made smaller since the first phase.

        Raises SystemBusy (2) when there are too many topics.
        """
        config = self._topics.get(topic)
        if config is None:
            self._topics.ensure(topic, queue_id + 1, now)
            self._warn("topic %s is made anew: a transaction of it is committed", topic)
        elif queue_id >= config.read_queue_nums:
            self._topics.put(structs.replace(config, read_queue_nums=queue_id + 1), now)
            self._warn("topic %s has %d queues to read again: a transaction of the last is committed", topic, queue_id + 1)

    def _ended(self, endings: Endings, found: Found, stored: list[Appended | Exception]) -> None:
        """Enter decisions whose records are stored, but for op records, the last, that could not be; answer those who asked."""
        _, numbers, rolled_back, indexes, _ = found
        committed = [number for of_queue in numbers for number in of_queue]
        count, ops = len(committed), stored[-1]
        entries = b"".join([appended.entries for appended in stored[:-1] if isinstance(appended, Appended)])
        if isinstance(ops, Exception):  # what is visible stays decided, its op record follows later; nothing was rolled back
            self._owe(indexes[:count], entries)
            self._fail(endings, rolled_back, refusal_of(ops, f"{len(rolled_back)} rollbacks"))
            rolled_back, indexes = [], indexes[:count]
        else:
            entries += ops.entries[count * ENTRY_BYTES : len(indexes) * ENTRY_BYTES]
        try:
            self._index.decided(indexes, entries, count)
        except StoreNotWritable as exc:  # the log has what is stored, and the next start enters it
            self._fail(endings, committed + rolled_back, ServiceNotAvailable(f"service not available now: {exc}"))
            return
        self._recent.drop(indexes)
        self.counters.commits += count
        self.counters.rollbacks += len(rolled_back)
        asked, groups = endings.told(committed, rolled_back)
        for group, commits, rollbacks in groups:
            if commits:
                self._stats.add("TRANSACTION_COMMITS", group, commits)
            if rollbacks and group:  # else the broker gave it up
                self._stats.add("TRANSACTION_ROLLBACKS", group, rollbacks)
        if asked:
            self._succeed(asked)

    def _owe(self, indexes: list[int], entries: bytes) -> None:
        """Remember commits whose op records could not be stored."""
        for index, (place, _, _) in zip(indexes, ENTRY.iter_unpack(entries)):
            self.owed_ops[index] = place
        if (first := min(self.owed_ops.values(), default=-1)) >= 0:  # else the index holds a lower one by itself
            self._index.hold(first)

    def _ops(self, indexes: Sequence[int], now: int, by: bytes = b"") -> Messages:
        """Return the op records of decided half messages."""
        properties = OP_PROPERTIES + (b"\x02" + by if by else b"")
        return Messages.numbers(indexes, properties, now, self._host, _OP_TAG)

    def pay(self, now: int) -> bool:
        """Write op records that are owed, some of them: a crash or a full disk came between a visible record and its op record.

        Return False when the store takes none.
        """
        indexes = list(islice(self.owed_ops, OPS_AT_ONCE))
        if indexes:
            try:
                self._sends.append(OP_TOPIC, 0, self._ops(indexes, now), now)
            except BrokerError:
                return False
            for index in indexes:
                del self.owed_ops[index]
            if not self.owed_ops:
                self._index.hold(None)
        return True

    def _fail(self, endings: Endings, numbers: Iterable[int], refusal: BrokerError) -> None:
        for number in numbers:
            ending = Ending(*endings.at(number))
            self.counters.refused += 1
            self._warn("half message %d stays undecided: %s", ending.index, refusal.remark)
            self._refuse(ending.asked, refusal)

    def _remote(self, ending: Ending) -> str:
        peer = self._peers.get(ending.peer)
        return "somebody" if peer is None else peer.remote

    # ------------------------------------------------------------ answers

    def _succeed(self, asked: list[Asked]) -> None:
        """Tell success, as soon as everything until now is as durable as the flush mode promises."""
        if not asked:
            return

        def then(refusal: BrokerError | None, now: int) -> None:
            if refusal is None:
                self._peers.tell(done_answers(asked, VERSION))
            else:
                for one in asked:
                    self._refuse(one, refusal)

        if self._durable.is_promised:
            then(None, now=0)
            return
        try:  # repeats cost no bytes of the log, and so nothing else bounds them
            self._durable.check_room()
        except BrokerError as exc:
            then(exc, now=0)
        else:
            self._durable.promised(then)

    def _refuse(self, asked: Asked | None, refusal: BrokerError) -> None:
        if asked is not None:
            peer, opaque, serialization = asked
            self._peers.tell([(peer, encode(reply_to(opaque, serialization, refused(refusal))))])


_QUEUE = itemgetter(0, 1)


def _numbers(found: Found) -> list[int]:
    """Return the endings that decide something."""
    return [number for of_queue in found[1] for number in of_queue] + found[2]
