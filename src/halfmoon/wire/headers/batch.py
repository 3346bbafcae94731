"""Requests of batch transactions: many messages from many tasks that become visible once, whole and in order, or never.

Halfmoon's own; an Apache broker answers 3. Declares fields, decides nothing; bodies and checksums stand in `wire.bodies.batches`.

A batch is named by the transactional id of its stream and an increasing number. The messages that one try of a task sends are an
*attempt*, named at random. The brokers that hold messages are *participants*; one broker is the *coordinator* of the
transactional id, which is written once (COORDINATE): it alone decides which attempts form a batch. The order is COORDINATE
and PREPARE from every task; then from one driver VOTE at each participant, DECIDE at the coordinator, APPLY at each participant.
Every request may be repeated, after a lost answer or by a restarted driver.
"""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN_LOOKS, publish, subscribe
from halfmoon.wire.table import I32, I64, Header, request

OWNER = subscribe(group="transactional_id")
"""Transactional ids are protected like groups: an account that decides a batch can make its owner's messages vanish."""


class PrepareBatchReply(Header, kw_only=True):
    """Reply of PREPARE.

    ``result`` STORED: stored, and copied where sends are; not yet flushed. A repeated piece gets the same answer, stores nothing.
    DECIDED: the batch is decided; nothing was stored, send no more of it. ``coordinator``: the one that this broker knows for the
    transactional id.
    """

    result: str
    coordinator: str


@request(
    31030,
    "PREPARE_BATCH",
    reply=PrepareBatchReply,
    since="Halfmoon",
    changes=True,
    needs=publish("topic")._replace(groups=OWNER.groups),
)
class PrepareBatch(Header, kw_only=True):
    """Store a piece of an attempt: messages of one queue, the body as in SEND_BATCH_MESSAGE (`halfmoon.wire.record.encode_batch`).

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
    """Reply of VOTE. ``result`` YES: the attempts are complete and flushed, and stay until the decision. NO: for ``reason``."""

    result: str
    reason: str | None = None


@request(31031, "VOTE_BATCH", reply=VoteBatchReply, since="Halfmoon", changes=True, needs=OWNER)
class VoteBatch(Header, kw_only=True):
    """Ask a participant whether its attempts are complete: body `BatchPromises`, the sent parts. Costs one flush."""

    transactional_id: str
    batch_id: I64
    coordinator: str


class DecideBatchReply(Header, kw_only=True):
    """Reply of DECIDE: body `BatchDecision`, as recorded; empty if no longer known.

    ``result`` DECIDED: durable now; ALREADY: decided before; the first decision holds and is in the body, with its ``digest``.
    REFUSED: nothing was decided, for ``reason`` (an attempt was aborted meanwhile, …). ``last``: the highest decided batch,
    -1: none. ``complete``: all participants have applied it.
    """

    result: str
    last: I64
    digest: str | None = None
    complete: bool = False
    reason: str | None = None


@request(31032, "DECIDE_BATCH", reply=DecideBatchReply, since="Halfmoon", changes=True, needs=OWNER)
class DecideBatch(Header, kw_only=True):
    """Decide at the coordinator which attempts form a batch: body `BatchDecision`. The commit point; one durable record.

    Written once: the first decision wins. An empty decision is valid (a batch without messages), and serves to read the
    recorded one after PREPARE answered DECIDED. ``digest`` describes the content, any text up to 128 characters.
    """

    transactional_id: str
    batch_id: I64
    digest: str = ""


class ApplyBatchReply(Header, kw_only=True):
    """Reply of APPLY.

    ``result`` APPLIED: the batch is visible and flushed at this broker; a repeat gets the same answer.
    ``count``: messages of the batch at this broker, 0 if no longer known.
    """

    result: str
    count: I64 = 0


@request(31033, "APPLY_BATCH", reply=ApplyBatchReply, since="Halfmoon", changes=True, needs=OWNER)
class ApplyBatch(Header, kw_only=True):
    """Publish the decided attempts at a participant, in order: body `BatchPromises`, its part of the decision.

    Refused with code 2 (try again) while an earlier batch of the id is undecided here; with code 1 if messages are missing.
    """

    transactional_id: str
    batch_id: I64
    coordinator: str


class ResolveBatchReply(Header, kw_only=True):
    """Reply of RESOLVE.

    ``result`` COMMIT: the attempt is part of the decision in the body (`BatchDecision`). ABORT: it never
    will be. UNDECIDED: nothing is decided. NOTED: answer to ``applied``.
    """

    result: str


@request(31034, "RESOLVE_BATCH", reply=ResolveBatchReply, since="Halfmoon", changes=True, needs=OWNER)
class ResolveBatch(Header, kw_only=True):
    """Ask the coordinator for the fate of an attempt, or report (``applied``) that the participant applied all up to a batch.

    With ``abort``, an attempt of an undecided batch is aborted: no later decision may name it.
    """

    transactional_id: str
    batch_id: I64
    participant: str
    attempt: str = ""
    abort: bool = False
    applied: bool = False


class AbortBatchReply(Header, kw_only=True):
    """Number of attempts dropped at once; attempts that were voted for are dropped once the coordinator confirms."""

    dropped: I32


@request(31035, "ABORT_BATCH", reply=AbortBatchReply, since="Halfmoon", changes=True, needs=OWNER)
class AbortBatch(Header, kw_only=True):
    """Hint that attempts will not be decided: body `BatchPromises`, of which only the names count. Ignored after a decision."""

    transactional_id: str
    batch_id: I64


@request(31036, "LIST_BATCHES", since="Halfmoon", needs=ADMIN_LOOKS)
class ListBatches(Header, kw_only=True):
    """Ask for the transactional ids of a broker and their undecided attempts: reply body `BatchList`."""

    transactional_id: str | None = None
    after: str | None = None  # begin behind this id
    count: I32 = 100


class CoordinateBatchesReply(Header, kw_only=True):
    """Reply of COORDINATE.

    ``coordinator``: the coordinator that this broker has recorded; empty: none. ``last``: the highest
    batch that this broker decided as coordinator, -1: none.
    """

    coordinator: str
    last: I64 = -1


@request(31037, "COORDINATE_BATCHES", reply=CoordinateBatchesReply, since="Halfmoon", changes=True, needs=OWNER)
class CoordinateBatches(Header, kw_only=True):
    """Ask for the coordinator of a transactional id, or (``coordinator``) set it; the first one set holds.

    It is replaced only if it equals ``instead_of``, and never once it has decided batches. A client asks all brokers before the
    first piece and tells those that do not know; `halfmoon.client.core.produce.coordinator` resolves disagreements.
    """

    transactional_id: str
    coordinator: str | None = None
    instead_of: str | None = None
