"""Second phase: what producers decide about their half messages (END_TRANSACTION, 37), and what the log is told of it.

A commit stores the visible message in its real queue first and then an op record; a rollback stores the op record only. All
decisions of a turn are stored a real queue at a time, and their op records together. Which half messages are decided, and how,
says the transaction index; nothing here looks at a clock.

Follows EndTransactionProcessor and TransactionalMessageBridge (RocketMQ 4.9.8).
Differs: a decision is remembered: its repeat is answered as the first and writes nothing, one that contradicts it is refused and
counted. One that comes for what was given up is honoured (`halfmoon.broker.late`). A producer that asked is answered also when it
says that it does not know. The record must be a half message, and whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Literal

import msgspec
from msgspec import structs

from halfmoon.broker.context import Context
from halfmoon.broker.durable import refused
from halfmoon.broker.half import PRODUCER_GROUP
from halfmoon.broker.halfrecord import committed, half_message
from halfmoon.broker.late import Copy, Late, rollback_op
from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC
from halfmoon.broker.recent import HalfMessage, Recent
from halfmoon.broker.request import Request, refusal_of, reply_to
from halfmoon.broker.send import Sends
from halfmoon.errors import BrokerError, CorruptRecord, MessageRefused, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import EndHeader, Frame, Group, Messages, Parts, done_answers, end_header_json, tag_hash
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended
from halfmoon.store.transactions import State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import VERSION
from halfmoon.wire.command import encode
from halfmoon.wire.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.peer import Peer
from halfmoon.wire.table import request_type

log = logging.getLogger("halfmoon.broker.transactions")

END_JSON = b'{"code":%d,' % request_type(EndTransaction).code
NO_HALF = "Find prepared transaction message failed"
Sender = tuple[int, int, int]
"""connection, opaque, serialisation"""

_DECISIONS = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
_OP_TAG = tag_hash(b"d")
OPS_AT_ONCE = 256
"""Op records that are owed and written in one turn."""


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
    """One request of the second phase. ``sender`` None: one-way."""

    sender: Sender | None
    remote: str
    group: str
    index: int
    physical_offset: int
    committed: bool
    key: str = ""
    """The message's id, as the request has it."""


class Decided(msgspec.Struct, gc=False):
    """A half message to decide, and who asked; without these the broker itself rolls it back."""

    index: int
    half: HalfMessage | None = None
    ending: Ending | None = None


OfQueue = tuple[tuple[str, int], list[Decided]]
"""Commits to one queue."""
Visible = tuple[Decided, int, int]
"""A commit whose visible record is stored, with place and size of that."""
Left = tuple[list[OfQueue], list[Decided]]
"""Commits and rollbacks that are to be tried again."""


class Decisions:
    """The service of the second phase."""

    def __init__(
        self, context: Context, index: TransactionIndex, recent: Recent, sends: Sends, late: Late, warn: Callable[..., None]
    ) -> None:
        self._store, self._topics, self._stats, self._peers = context.store, context.topics, context.stats, context.peers
        self._durable, self._host = context.durable, context.host
        self._index, self._recent, self._sends, self._late, self._warn = index, recent, sends, late, warn
        self.counters = Counters()
        self._taken: list[Ending] = []
        self.owed_ops: dict[int, int] = dict.fromkeys(index.unfinished, -1)
        """Indexes of commits whose op record is not written yet and where their visible record lies; -1: a start found them."""

    # ------------------------------------------------------------ a turn

    def take(self, peer: Peer, data: bytes, frame: Frame) -> bool:
        """Take a frame of this turn when it is an ordinary request of the second phase."""
        serialization, start, body, _ = frame
        if serialization != 0 or not data.startswith(END_JSON, start):
            return False
        found = end_header_json(data[start:body])
        if found is None or found[1] & 1:
            return False
        opaque, flag, header, remark = found
        sender = None if flag & 2 else (peer.number, opaque, serialization)
        decision = header.commitOrRollback
        if header.fromTransactionCheck or decision not in _DECISIONS:
            self._enter(sender, peer.remote, header, remark)
        else:
            index, place, group = header.tranStateTableOffset, header.commitLogOffset, header.producerGroup
            committed = decision == TRANSACTION_COMMIT
            self._taken.append(Ending(sender, peer.remote, group, index, place, committed, header.msgId))
        return True

    def end(self, request: Request) -> None:
        """Take one request that was decoded by itself (37)."""
        h = request.header(EndTransaction)
        command = request.command
        header = EndHeader(
            h.producer_group, h.tran_state_table_offset, h.commit_log_offset, h.commit_or_rollback, h.msg_id,
            bool(h.from_transaction_check), bool(h.still_open),
        )  # fmt: skip
        sender = None if command.is_oneway else (request.peer.number, command.opaque, command.serialization)
        self._enter(sender, request.peer.remote, header, command.remark)
        self.settle(request.now)

    def _enter(self, sender: Sender | None, remote: str, header: EndHeader, remark: str | None) -> None:
        decision, index = header.commitOrRollback, header.tranStateTableOffset
        known = decision in _DECISIONS
        if header.fromTransactionCheck:
            self._checked(header, decision if known else 0)
        if not known:
            self.counters.unknown += 1
            if remark and not header.stillOpen:
                self._warn("%s does not know about half message %d of %.255r: %.500r", remote, index, header.producerGroup, remark)
            self._succeed([sender])
            return
        committed = decision == TRANSACTION_COMMIT
        self._taken.append(Ending(sender, remote, header.producerGroup, index, header.commitLogOffset, committed, header.msgId))

    def _checked(self, header: EndHeader, decision: int) -> None:
        """Note what was answered to the last check: the first answer to it, and from a producer of its group."""
        index, group = header.tranStateTableOffset, header.producerGroup
        half = self._index.half(index)
        if half is None or half.state != State.PREPARED or half.physical_offset != header.commitLogOffset:
            return
        if half.group_hash != tag_hash(group.encode()):
            return
        history = self._index.checks(index).history
        if history and history[-1].answer == Answer.NONE:
            undecided = Answer.OPEN if header.stillOpen else Answer.UNKNOWN
            answer = {TRANSACTION_COMMIT: Answer.COMMIT, TRANSACTION_ROLLBACK: Answer.ROLLBACK}.get(decision, undecided)
            self._index.answered(index, int(answer), pardons=answer is Answer.OPEN)
            self.counters.checks_answered += 1
            self.counters.still_open += answer is Answer.OPEN

    def settle(self, now: int) -> None:
        """Carry out everything taken, in order: what repeats a decision of this turn is looked at after it."""
        if not self._taken:
            return
        endings, self._taken = self._taken, []
        while endings:
            again: list[Ending] = []
            decided: dict[int, Decided] = {}
            recent = self._recent.get
            for ending in endings:
                index = ending.index
                if index in decided:
                    again.append(ending)
                    continue
                half = recent(index)
                if half is None or half.physical_offset != ending.physical_offset or half.group != ending.group:
                    judged = self._judged(ending, now)
                    if isinstance(judged, Ending):
                        again.append(judged)
                        continue
                    half = judged
                if half is not None:
                    decided[index] = Decided(index, half, ending)
            try:
                self.decide(decided.values(), now)
            except Exception as exc:  # our own mistake: these stay as they are and are asked about, others do not feel it
                log.exception("%d decisions failed", len(decided))
                self._fail(decided.values(), BrokerError(f"{type(exc).__name__}: {exc}"))
            endings = again

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
                self._succeed([ending.sender])
                return None
            self._contradicted(ending)
        except BrokerError as exc:
            self.counters.refused += 1
            self._warn("%s (%.255r) ends half message %d: %s", ending.remote, ending.group, ending.index, exc.remark)
            self._refuse(ending.sender, exc)
        except Exception as exc:
            self._refuse(ending.sender, refusal_of(exc, f"the end of half message {ending.index}"))
        return None

    def _contradicted(self, ending: Ending) -> None:
        self.counters.contradictions += 1
        said, was = ("commits", "rolled back") if ending.committed else ("rolls back", "committed")
        self._warn("%s (%s) %s half message %d, which was %s: refused", ending.remote, ending.group, said, ending.index, was)
        self._stats.add("TRANSACTION_CONTRADICTIONS", ending.group, 1)
        self._refuse(ending.sender, BrokerError(f"the transaction was {was} already"))

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
        self._succeed([ending.sender])
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
            ending.index, ending.key, ending.group, "committed" if ending.committed else "rolled back", ending.remote,
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

    def decide(self, decided: Iterable[Decided], now: int, *, by: bytes = b"") -> None:
        """Store what becomes visible, then the op records, and remember the decisions; whoever asked is answered.

        ``by`` is a property ``name 0x01 value`` for the op records: who decided, when it was not the producer.
        """
        decided = list(decided)
        if not decided or not self._room(decided):
            return
        rolled_back: list[Decided] = []
        queues: dict[tuple[str, int], list[Decided]] = {}
        for each in decided:
            half, ending = each.half, each.ending
            if half is None or ending is None or not ending.committed:
                rolled_back.append(each)
            elif not half.topic:
                self._fail([each], BrokerError(f"half message {each.index} does not say where it belongs"))
            elif (group := queues.get(queue := (half.topic, half.queue_id))) is None:
                queues[queue] = [each]
            else:
                group.append(each)
        left = list(queues.items())
        while left or rolled_back:
            left, rolled_back = self._store_in_order(left, rolled_back, now, by)

    def _room(self, decided: list[Decided]) -> bool:
        """Whether the index has room for these decisions; if not, they are refused."""
        try:
            self._index.make_room(0, len(decided))
        except StoreNotWritable as exc:
            self._fail(decided, ServiceNotAvailable(f"service not available now: {exc}"))
            return False
        return True

    def _store_in_order(self, queues: list[OfQueue], rolled_back: list[Decided], now: int, by: bytes) -> Left:
        """Store visible records a queue at a time, and behind them all op records, with one write to the log. Return what is to be
        tried again, since something before it could not be stored.
        """
        groups: list[Group] = []
        readable: list[OfQueue] = []
        for (topic, queue_id), group in queues:
            try:
                self._make_readable(topic, queue_id, now)
            except BrokerError as exc:
                self._fail(group, exc)
            else:
                groups.append((topic, queue_id, "", committed([each.half for each in group if each.half is not None])))
                readable.append(((topic, queue_id), group))
        ended = [each for _, group in readable for each in group] + rolled_back
        if not ended:
            return [], []
        groups.append((OP_TOPIC, 0, "", self._ops([each.index for each in ended], now, by)))
        stored = self._sends.append_all(groups, now, in_order=True)
        visible: list[Visible] = []
        for number, ((queue, group), appended) in enumerate(zip(readable, stored)):
            if isinstance(appended, Exception):
                if visible:
                    ops = self._ops([each.index for each, _, _ in visible], now, by)
                    self._ended(visible, [], self._sends.append_all([(OP_TOPIC, 0, "", ops)], now)[0])
                apart = isinstance(appended, MessageRefused) and len(group) > 1  # one of them cannot be stored, so none was
                if not apart:
                    self._fail(group, refusal_of(appended, f"{len(group)} commits to queue {queue[1]} of {queue[0]}"))
                return [(queue, [each]) for each in group if apart] + readable[number + 1 :], rolled_back
            visible += zip(group, appended.physical_offsets, appended.sizes)
        self._ended(visible, rolled_back, stored[-1])
        return [], []

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

    def _ended(self, committed: list[Visible], rolled_back: list[Decided], ops: Appended | Exception) -> None:
        """Enter decisions whose records are stored, but for op records that could not be."""
        if isinstance(ops, Exception):  # what is visible stays decided, its op record follows later; nothing was rolled back
            for each, place, _ in committed:
                self.owed_ops[each.index] = place
            if (first := min(self.owed_ops.values(), default=-1)) >= 0:  # else the index holds a lower one by itself
                self._index.hold(first)
            self._fail(rolled_back, refusal_of(ops, f"{len(rolled_back)} rollbacks"))
            rolled_back = []
        decisions = [(each.index, place, size, True) for each, place, size in committed]
        if rolled_back and isinstance(ops, Appended):
            places, sizes = ops.physical_offsets[len(committed) :], ops.sizes[len(committed) :]
            decisions += [(each.index, place, size, False) for each, place, size in zip(rolled_back, places, sizes)]
        self._index.decided(decisions)
        self.counters.commits += len(committed)
        self.counters.rollbacks += len(rolled_back)
        self._done("TRANSACTION_COMMITS", [each for each, _, _ in committed])
        self._done("TRANSACTION_ROLLBACKS", rolled_back)

    def _done(self, name: str, decided: list[Decided]) -> None:
        """Count decisions by group and answer those who asked."""
        if not decided:
            return
        self._recent.take([each.index for each in decided])
        endings = [each.ending for each in decided if each.ending is not None]
        counts: dict[str, int] = {}
        for ending in endings:
            counts[ending.group] = counts.get(ending.group, 0) + 1
        for group, count in counts.items():
            self._stats.add(name, group, count)
        self._succeed([ending.sender for ending in endings])

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

    def _fail(self, decided: Iterable[Decided], refusal: BrokerError) -> None:
        for each in decided:
            self.counters.refused += 1
            self._warn("half message %d stays undecided: %s", each.index, refusal.remark)
            if each.ending is not None:
                self._refuse(each.ending.sender, refusal)

    # ------------------------------------------------------------ answers

    def _succeed(self, senders: Sequence[Sender | None]) -> None:
        """Tell success, as soon as everything until now is as durable as the flush mode promises. None wants no answer."""
        asked = [sender for sender in senders if sender is not None]
        if not asked:
            return

        def then(refusal: BrokerError | None, now: int) -> None:
            if refusal is None:
                self._peers.tell(done_answers(asked, VERSION))
            else:
                for sender in asked:
                    self._refuse(sender, refusal)

        try:  # repeats cost no bytes of the log, and so nothing else bounds them
            self._durable.check_room()
        except BrokerError as exc:
            then(exc, 0)
        else:
            self._durable.promised(then)

    def _refuse(self, sender: Sender | None, refusal: BrokerError) -> None:
        if sender is not None:
            peer, opaque, serialization = sender
            self._peers.tell([(peer, encode(reply_to(opaque, serialization, refused(refusal))))])
