"""Requests of batch transactions: many messages from many tasks that become visible once, whole and in order, or never.

Halfmoon's own; an Apache broker answers 3. Declares fields, decides nothing; bodies and checksums stand in `wire.bodies.batches`.

A batch is named by a transactional id (whose stream it is) and a number that grows. What one try of one task sends is an
*attempt*, named at random. The brokers that hold messages are *participants*; one broker is the *coordinator* of the
transactional id, a fact that is written once (COORDINATE): it alone says which attempts a batch is made of. The order is COORDINATE
and PREPARE from every task; then from one driver VOTE at each participant, DECIDE at the coordinator, APPLY at each participant.
Every request may be repeated after a lost answer, and by a driver that starts anew.
"""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN_LOOKS, publish, subscribe
from halfmoon.wire.table import I32, I64, Header, request

OWNER = subscribe(group="transactional_id")
"""A transactional id is kept as a group is: whoever decides a batch of it could make those of its owner vanish."""


class PrepareBatchReply(Header, kw_only=True):
    """``result`` STORED: kept, but not flushed singly; a repeat of a piece answers the same and stores nothing. DECIDED: the batch
    is decided, nothing was stored and nothing more is to be sent of it. ``coordinator`` is the one that this broker knows for the
    transactional id, and the one to be asked."""

    result: str
    coordinator: str


@request(31030, "PREPARE_BATCH", reply=PrepareBatchReply, since="Halfmoon", needs=publish("topic")._replace(groups=OWNER.groups))
class PrepareBatch(Header, kw_only=True):
    """Keep a piece of an attempt: messages of one queue, the body as in SEND_BATCH_MESSAGE (`halfmoon.wire.record.encode_batch`).

    ``first_seq`` counts the messages of this attempt for this queue, from 0: pieces of one queue follow each other without a gap.
    They are published in the order of (partition, first_seq).
    """

    transactional_id: str
    batch_id: I64
    attempt: str
    partition: I32
    first_seq: I64
    topic: str
    queue_id: I32
    count: I32
    coordinator: str
    timeout_ms: I64 | None = None  # without a word of the batch, until it is aborted; the broker refuses what it does not keep
    sys_flag: I32 | None = None  # of every message; only how the bodies are compressed


class VoteBatchReply(Header, kw_only=True):
    """``result`` YES: all of the attempts is here, on the device, and stays until it is decided. NO: ``reason`` says why."""

    result: str
    reason: str | None = None


@request(31031, "VOTE_BATCH", reply=VoteBatchReply, since="Halfmoon", needs=OWNER)
class VoteBatch(Header, kw_only=True):
    """Ask a participant whether it holds attempts whole: body `BatchPromises`, what it was sent of each. One flush."""

    transactional_id: str
    batch_id: I64
    coordinator: str


class DecideBatchReply(Header, kw_only=True):
    """Body `BatchDecision`, the recorded one; empty where it is not known any more.

    ``result`` DECIDED: durable now; ALREADY: it was decided before, the first decision holds and is in the body; what the asker
    sent plays no part. ``digest`` is the recorded one. REFUSED: ``reason`` says why (an attempt was aborted meanwhile, …), and
    nothing was decided. ``last`` is the highest batch that is decided, -1: none. ``complete``: all participants have applied it.
    """

    result: str
    last: I64
    digest: str | None = None
    complete: bool = False
    reason: str | None = None


@request(31032, "DECIDE_BATCH", reply=DecideBatchReply, since="Halfmoon", needs=OWNER)
class DecideBatch(Header, kw_only=True):
    """Say at the coordinator which attempts a batch is made of: body `BatchDecision`. The commit point; one durable record.

    Written once: the first decision wins. An empty decision is one too (a batch without messages), and the way to ask for the
    recorded one when PREPARE answered DECIDED. ``digest`` describes the content, any text up to 128 characters.
    """

    transactional_id: str
    batch_id: I64
    digest: str = ""


class ApplyBatchReply(Header, kw_only=True):
    """``result`` APPLIED: all of the batch here is visible and on the device; a repeat answers the same. ``count``: messages of the
    batch at this broker, 0 where that is not known any more."""

    result: str
    count: I64 = 0


@request(31033, "APPLY_BATCH", reply=ApplyBatchReply, since="Halfmoon", needs=OWNER)
class ApplyBatch(Header, kw_only=True):
    """Publish the decided attempts at a participant, in order: body `BatchPromises`, its part of the decision.

    Refused with code 2 (try again) while an earlier batch of the id is in doubt here; with code 1 where messages are missing.
    """

    transactional_id: str
    batch_id: I64
    coordinator: str


class ResolveBatchReply(Header, kw_only=True):
    """``result`` COMMIT: the attempt is part of the decision, which is the body (`BatchDecision`). ABORT: it is not and never will
    be. UNDECIDED: nothing is decided. NOTED: answer to ``applied``."""

    result: str


@request(31034, "RESOLVE_BATCH", reply=ResolveBatchReply, since="Halfmoon", needs=OWNER)
class ResolveBatch(Header, kw_only=True):
    """A participant asks the coordinator what became of an attempt, or (``applied``) says that it has applied all up to a batch.

    With ``abort`` an attempt of an undecided batch is aborted: no decision may name it any more.
    """

    transactional_id: str
    batch_id: I64
    participant: str
    attempt: str = ""
    abort: bool = False
    applied: bool = False


class AbortBatchReply(Header, kw_only=True):
    """How many attempts were dropped at once; what was voted for is asked about at the coordinator and goes later."""

    dropped: I32


@request(31035, "ABORT_BATCH", reply=AbortBatchReply, since="Halfmoon", needs=OWNER)
class AbortBatch(Header, kw_only=True):
    """A hint that attempts will not be decided: body `BatchPromises`, of which only the names count. Ignored once they are."""

    transactional_id: str
    batch_id: I64


@request(31036, "LIST_BATCHES", since="Halfmoon", needs=ADMIN_LOOKS)
class ListBatches(Header, kw_only=True):
    """Ask for the transactional ids of a broker and what is undecided of them: reply body `BatchList`."""

    transactional_id: str | None = None
    after: str | None = None  # begin behind this id
    count: I32 = 100


class CoordinateBatchesReply(Header, kw_only=True):
    """``coordinator``: who coordinates the id as far as this broker knows, durably; empty: it knows nothing of it. ``last``: the
    highest batch that this broker decided as coordinator, -1: none."""

    coordinator: str
    last: I64 = -1


@request(31037, "COORDINATE_BATCHES", reply=CoordinateBatchesReply, since="Halfmoon", needs=OWNER)
class CoordinateBatches(Header, kw_only=True):
    """Ask who coordinates a transactional id, or (``coordinator``) say who does; the first that says so holds.

    Only who is known as ``instead_of`` is replaced, and a broker that has decided batches never gives them away. A client asks all
    brokers before the first piece and tells those that do not know; what to do when they disagree stands in
    `halfmoon.client.core.produce.coordinator`.
    """

    transactional_id: str
    coordinator: str | None = None
    instead_of: str | None = None
