"""Batch transactions as operations: what tasks and a driver ask of brokers, each repeated until it is answered.

Decides nothing about batches: who asks what and when is the caller's (`halfmoon.wire.headers.batch` has the order). Every request
may be repeated, so a lost answer is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from halfmoon.client.core.ask import ask
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.masters import Masters, masters, queues
from halfmoon.client.core.names import check_topic
from halfmoon.client.core.produce import coordinator
from halfmoon.client.core.ranges import pause_ms
from halfmoon.client.settings import ClientSettings
from halfmoon.effects import Op, gather, sleep, steady
from halfmoon.errors import HalfmoonError, NetworkError, PeerError, RequestNotSupported, ServiceNotAvailable, SystemBusy, UsageError
from halfmoon.model import MessageQueue
from halfmoon.settings import setting
from halfmoon.wire.bodies import TopicStatsTable, from_json, to_json
from halfmoon.wire.bodies.batches import BATCH_BODY, BatchDecision, BatchPromise, BatchPromises, piece_checksum
from halfmoon.wire.command import Command
from halfmoon.wire.headers.batch import (
    AbortBatch,
    AbortBatchReply,
    ApplyBatch,
    ApplyBatchReply,
    DecideBatch,
    DecideBatchReply,
    PrepareBatch,
    PrepareBatchReply,
    ResolveBatch,
    ResolveBatchReply,
    VoteBatch,
    VoteBatchReply,
)
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.table import Header

CLUSTER_MS = 30_000
"""How long the list of brokers and the coordinator of an id are cached."""
COORDINATOR_TIMEOUT_MS = 5_000
"""A broker that does not say within this who coordinates an id is asked again."""
OWNERS_MAX = 1_000
"""Ids whose coordinators are remembered."""

Attempts = Mapping[str, BatchPromise]
"""Promises of one broker, by the name of the attempt."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings(ClientSettings):
    """Settings of a client that writes batches."""

    request_timeout_ms: int = setting(
        30_000, java="mqClientApiTimeout", why="Timeout of a request; applying a batch takes long.", low=1
    )
    retries_max: int = setting(8, why="Consecutive failures of a request before it fails: 16 s of pauses.", low=0, high=1_000)
    transaction_timeout_ms: int = setting(3_600_000, why="How long after its last request an undecided batch expires.", low=1_000)


class BatchName(NamedTuple):
    """A batch: whose (its transactional id), and its number."""

    owner: str
    number: int


class PrepareResult(NamedTuple):
    """A broker's answer to a piece. ``decided``: the batch is, and nothing was stored.

    ``coordinator`` is the broker that decides about the batches of the id, as the asked one knows it.
    """

    decided: bool
    checksum: int
    coordinator: str


class DecideResult(NamedTuple):
    """Record of a batch's decision.

    ``already``: decided before we asked; ``complete``: applied everywhere; ``refused`` says why it is not decided; ``digest`` None:
    not known any more; ``last`` is the highest batch that is decided, -1: none.
    """

    parts: Mapping[str, Attempts]
    already: bool = False
    complete: bool = False
    digest: str | None = None
    refused: str | None = None
    last: int = -1


class _Coordinator(NamedTuple):
    """Coordinator of an id, as all of ``brokers`` knew at a time."""

    name: str
    brokers: frozenset[str]
    asked_ms: int


class BatchesCore:
    """The requests as operations. Topics are called as the user does."""

    def __init__(self, instance: Instance, settings: BatchSettings) -> None:
        self._instance, self._settings = instance, settings
        self._masters: Masters | None = None
        self._known_ms = 0
        self._coordinators: dict[str, _Coordinator] = {}

    def queues(self, topic: str) -> Op[list[MessageQueue]]:
        """Return the queues that messages of a topic may go to, as `halfmoon.client.core.masters.queues`."""
        check_topic(topic)
        instance = self._instance
        asked = partial(instance.routes.publish_info, instance.wire(topic))
        return (yield from queues(instance.name_servers, topic, asked, self._settings.retries_max))

    def births(self, topic: str) -> Op[list[int]]:
        """Return when a topic was created, ms since the epoch, at each broker that takes its messages and says so; sorted."""
        names = sorted({queue.broker_name for queue in (yield from self.queues(topic))})
        there = (yield from self._brokers(anew=False)).addresses
        request = GetTopicStatsInfo(topic=self._instance.wire(topic))
        answers = yield from gather([self._once(there[name], request) for name in names if name in there])
        births: list[int] = []
        for answer in answers:
            if isinstance(answer, HalfmoonError):
                continue
            if isinstance(answer, Exception):
                raise answer
            birth = from_json(TopicStatsTable, bytes(answer.body)).topic_birth_ms
            births += [] if birth is None else [birth]
        return sorted(births)

    def prepare(
        self, batch: tuple[str, int], attempt: str, partition: int, queue: MessageQueue, first_seq: int, count: int, body: bytes,
        *, sys_flag: int = 0,
    ) -> Op[PrepareResult]:  # fmt: skip
        """Ask a queue's broker to keep a piece: ``count`` messages as `halfmoon.wire.record.encode_batch` packs them."""
        owner, number = batch
        topic = self._instance.wire(queue.topic)
        coordinator = yield from self._coordinator(owner)
        header = PrepareBatch(
            transactional_id=owner, batch_id=number, attempt=attempt, partition=partition, first_seq=first_seq, topic=topic,
            queue_id=queue.queue_id, count=count, coordinator=coordinator, timeout_ms=self._settings.transaction_timeout_ms,
            sys_flag=sys_flag or None,
        )  # fmt: skip
        reply = yield from self._ask(queue.broker_name, header, body)
        answer = reply.header(PrepareBatchReply)
        decided = _one_of(answer.result, "STORED", "DECIDED") == "DECIDED"
        if answer.coordinator != coordinator:
            self._coordinators.pop(owner, None)
        return PrepareResult(decided, piece_checksum(topic, queue.queue_id, first_seq, body), answer.coordinator)

    def vote(self, batch: tuple[str, int], broker: str, coordinator: str, attempts: Attempts) -> Op[str | None]:
        """Ask a broker whether it holds attempts whole, on its device; it keeps them then. Return None, or why not."""
        header = VoteBatch(transactional_id=batch[0], batch_id=batch[1], coordinator=coordinator)
        answer = (yield from self._ask(broker, header, _promises(attempts))).header(VoteBatchReply)
        return None if _one_of(answer.result, "YES", "NO") == "YES" else answer.reason or "it does not say why"

    def decide(self, batch: tuple[str, int], coordinator: str, parts: Mapping[str, Attempts], digest: str = "") -> Op[DecideResult]:
        """Decide which attempts a batch is made of, or learn what was decided before: the first decision holds. The commit point.

        ``digest`` tells the content, up to 128 characters, and comes back with a decision that was made before.
        """
        header = DecideBatch(transactional_id=batch[0], batch_id=batch[1], digest=digest)
        body = to_json(BatchDecision(participants={broker: dict(attempts) for broker, attempts in parts.items()}))
        reply = yield from self._ask(coordinator, header, body)
        answer = reply.header(DecideBatchReply)
        if _one_of(answer.result, "DECIDED", "ALREADY", "REFUSED") == "REFUSED":
            self._coordinators.pop(batch[0], None)
            return DecideResult({}, refused=answer.reason or "the coordinator does not say why", last=answer.last)
        known = from_json(BatchDecision, bytes(reply.body), bounds=BATCH_BODY).participants if reply.body else {}
        return DecideResult(known, answer.result == "ALREADY", answer.complete, answer.digest, None, answer.last)

    def apply(self, batch: tuple[str, int], broker: str, coordinator: str, attempts: Attempts) -> Op[int]:
        """Ask a broker to publish its part of a decision; return its count of messages once all of them are visible."""
        header = ApplyBatch(transactional_id=batch[0], batch_id=batch[1], coordinator=coordinator)
        answer = (yield from self._ask(broker, header, _promises(attempts))).header(ApplyBatchReply)
        _one_of(answer.result, "APPLIED")
        return answer.count

    def resolve(self, batch: tuple[str, int], coordinator: str, attempt: str) -> Op[str]:
        """Ask the coordinator for the outcome of an attempt: COMMIT, ABORT or UNDECIDED. Changes nothing."""
        header = ResolveBatch(transactional_id=batch[0], batch_id=batch[1], participant="", attempt=attempt)
        answer = (yield from self._ask(coordinator, header)).header(ResolveBatchReply)
        return _one_of(answer.result, "COMMIT", "ABORT", "UNDECIDED")

    def abort(self, batch: tuple[str, int], broker: str, attempts: Attempts) -> Op[int]:
        """Tell a broker that attempts will not be decided: a hint, ignored once they are. Return how many it dropped at once."""
        header = AbortBatch(transactional_id=batch[0], batch_id=batch[1])
        return (yield from self._ask(broker, header, _promises(attempts))).header(AbortBatchReply).dropped

    # ------------------------------------------------------------ inside

    def _ask(self, broker: str, request: Header, body: bytes = b"") -> Op[Command]:
        """Ask a broker by its name, again after failures that may pass. Raises the last one."""
        failures = 0
        while True:
            try:
                there = yield from self._brokers(anew=failures > 0)
                if (address := there.addresses.get(broker)) is None:
                    raise NetworkError(f"name servers know no broker {broker}")
                return (yield from ask(address, request, body, self._settings.request_timeout_ms))
            except RequestNotSupported as exc:
                raise UsageError(
                    f"broker {broker} knows no batch transactions, so nothing can be written exactly once there: "
                    "delivery=at-least-once works with every broker"
                ) from exc
            except (NetworkError, SystemBusy, ServiceNotAvailable) as exc:
                failures += 1
                if not exc.retry or failures > self._settings.retries_max:
                    raise
            yield from sleep(pause_ms(failures))

    def _coordinator(self, owner: str) -> Op[str]:
        """Return who coordinates an id; asked again when the brokers are others."""
        failures = 0
        while True:
            try:
                there = yield from self._brokers(anew=failures > 0)
                moment, known = (yield from steady()), self._coordinators.get(owner)
                brokers = frozenset(there.addresses)
                if known is not None and known.brokers == brokers and moment - known.asked_ms <= CLUSTER_MS:
                    return known.name
                name = yield from coordinator.coordinator(owner, there.addresses, there.absent, self._once)
                if len(self._coordinators) >= OWNERS_MAX:
                    self._coordinators.clear()
                self._coordinators[owner] = _Coordinator(name, brokers, moment)
                return name
            except (NetworkError, SystemBusy, ServiceNotAvailable) as exc:
                failures += 1
                if not exc.retry or failures > self._settings.retries_max:
                    raise
            yield from sleep(pause_ms(failures))

    def _once(self, address: str, request: Header) -> Op[Command]:
        return (yield from ask(address, request, b"", min(COORDINATOR_TIMEOUT_MS, self._settings.request_timeout_ms)))

    def _brokers(self, *, anew: bool) -> Op[Masters]:
        moment = yield from steady()
        if self._masters is None or anew or moment - self._known_ms > CLUSTER_MS:
            self._masters, self._known_ms = (yield from masters(self._instance.name_servers)), moment
        return self._masters


def _promises(attempts: Attempts) -> bytes:
    return to_json(BatchPromises(attempts=dict(attempts)))


def _one_of(result: Any, *known: str) -> str:
    """Return an answer that is one of those known. Raises PeerError for another: guessing would lose or double messages."""
    if result not in known:
        raise PeerError(f"an answer of {result!r}, expected {' or '.join(known)}")
    return str(result)
