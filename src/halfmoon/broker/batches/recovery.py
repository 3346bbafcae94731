"""Recovery of batch transactions: a participant asks the coordinator about attempts in doubt, and reports the batches it applied.

Operations of the core; the coordinator is found through the name servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halfmoon.broker.batches.coordinator import Coordinator
from halfmoon.broker.batches.records import Parts, Reported, Step
from halfmoon.broker.batches.state import AttemptState, Stream, Streams
from halfmoon.broker.send.pending_replies import PendingReplies
from halfmoon.effects import Call, Op
from halfmoon.errors import BrokerError, HalfmoonError, PeerError, broker_error
from halfmoon.instant import Instant
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.bodies.batches import BatchDecision, BatchPromise
from halfmoon.wire.command import Command
from halfmoon.wire.headers.batch import ResolveBatch, ResolveBatchReply
from halfmoon.wire.headers.route import GetBrokerClusterInfo

ASK_TIMEOUT_MS = 5000
ASKED_MAX = 64
"""Requests in progress."""


class Participant(Protocol):
    """Part of the service that recovery needs."""

    streams: Streams
    pending_replies: PendingReplies
    coordinator: Coordinator

    def write(self, step: Step, now: Instant) -> None:
        """Write a step and carry it out."""

    def begin(self, stream: Stream, batch: int, coordinator: str, promises: dict[str, BatchPromise], now: Instant) -> None:
        """Begin to publish a batch."""

    def drop(self, id: str, attempt: AttemptState, now: Instant) -> None:
        """Forget an attempt."""


class BatchRecovery:
    """The requests of one broker, ``name``. ``start`` runs an operation in the background."""

    def __init__(
        self, batches: Participant, name: str, name_servers: list[str], start: Callable[[Op[None], str], None],
        warn: Callable[..., None],
    ) -> None:  # fmt: skip
        self._batches, self._name, self._name_servers, self._start, self._warn = batches, name, name_servers, start, warn
        self._asking: set[tuple[str, int, str]] = set()
        self.answers: list[Callable[[Instant], None]] = []
        """The results of operations; carried out in the core's turn, for operations write nothing themselves."""

    def turn(self, now: Instant) -> None:
        """Carry out the answers since the last turn."""
        answers, self.answers = self.answers, []
        for answer in answers:
            answer(now)

    def look(self, stream: Stream, now: Instant) -> bool:
        """Ask about attempts that have waited too long, and report applied batches; return whether to look again soon."""
        heard = stream.heard_at()
        for attempt in list(stream.attempts.values()):
            if attempt.ask_soon or now.steady - heard[attempt.batch] >= attempt.timeout_ms:
                self.ask(stream, attempt, now)
        unreported = stream.applied > stream.reported and bool(stream.coordinator)
        if unreported and not stream.applying:
            self._report(stream, now)
        return bool(stream.attempts) or unreported

    # ------------------------------------------------------------ attempts in doubt

    def ask(self, stream: Stream, attempt: AttemptState, now: Instant) -> None:
        """Ask the coordinator for the outcome of an attempt, which stays until then."""
        key = (stream.name, attempt.batch, attempt.name)
        if key in self._asking or len(self._asking) >= ASKED_MAX:
            return
        self._asking.add(key)
        if stream.coordinator != self._name:
            self._start(self._ask(key, stream.coordinator), "ask for the outcome of a batch")
            return
        result, decision = self._batches.coordinator.verdict(*key, now, abort=True)
        parts = {} if decision is None else decision.parts

        def durable(failure: BrokerError | None, now: Instant) -> None:
            self._answered(key, result if failure is None else None, parts, now)

        self._batches.pending_replies.when_durable(durable)

    def _ask(self, key: tuple[str, int, str], coordinator: str) -> Op[None]:
        id, batch, attempt = key
        result, parts = None, {}
        try:
            header = ResolveBatch(transactional_id=id, batch_id=batch, participant=self._name, attempt=attempt, abort=True)
            reply = yield from self._call(coordinator, header)
            result = reply.header(ResolveBatchReply).result
            parts = from_json(BatchDecision, reply.body).participants if result == "COMMIT" else {}
        except (HalfmoonError, PeerError) as exc:
            result = None
            self._warn("the outcome of batch %d of %.255r is unknown: %s", batch, id, exc)
        self.answers.append(lambda now: self._answered(key, result, parts, now))

    def _answered(self, key: tuple[str, int, str], result: str | None, parts: Parts, now: Instant) -> None:
        self._asking.discard(key)
        id, batch, name = key
        stream = self._batches.streams.get(id)
        attempt = None if stream is None else stream.attempts.get((batch, name))
        if stream is None or attempt is None:
            return
        try:
            if result == "ABORT":
                self._batches.drop(id, attempt, now)
            elif result == "COMMIT" and batch > stream.applied:
                self._batches.begin(stream, batch, stream.coordinator, parts.get(self._name, {}), now)
        except BrokerError as exc:
            self._warn("batch %d of %.255r stays in doubt: %s", batch, id, exc.remark)

    # ------------------------------------------------------------ applied batches

    def _report(self, stream: Stream, now: Instant) -> None:
        key, batch, coordinator = (stream.name, -1, ""), stream.applied, stream.coordinator
        if key in self._asking or len(self._asking) >= ASKED_MAX:
            return
        self._asking.add(key)

        def durable(failure: BrokerError | None, now: Instant) -> None:
            if failure is not None:
                self._asking.discard(key)
            elif coordinator == self._name:
                self._reported(stream.name, batch, now, by_us=True)
            else:
                self._start(self._report_to(stream.name, batch, coordinator), "report an applied batch")

        # Not before it is durable here: the coordinator forgets the decision once all have reported.
        self._batches.pending_replies.when_durable(durable)

    def _report_to(self, id: str, batch: int, coordinator: str) -> Op[None]:
        try:
            header = ResolveBatch(transactional_id=id, batch_id=batch, participant=self._name, applied=True)
            yield from self._call(coordinator, header)
            self.answers.append(lambda now: self._reported(id, batch, now))
        except HalfmoonError as exc:
            self._asking.discard((id, -1, ""))
            self._warn("%s could not be told that batch %d of %.255r is applied: %s", coordinator, batch, id, exc)

    def _reported(self, id: str, batch: int, now: Instant, *, by_us: bool = False) -> None:
        self._asking.discard((id, -1, ""))
        if self._batches.streams.get(id) is None:
            return
        try:
            if by_us:
                self._batches.coordinator.acknowledge(id, batch, self._name, now)
            self._batches.write(Reported(id, batch), now)
        except BrokerError as exc:
            self._warn("that batch %d of %.255r is applied could not be recorded: %s", batch, id, exc.remark)

    # ------------------------------------------------------------ other brokers

    def _call(self, broker: str, header: ResolveBatch) -> Op[Command]:
        address = yield from self._address(broker)
        reply: Command = yield Call(address, header, b"", ASK_TIMEOUT_MS)
        if reply.code != 0:
            raise broker_error(reply.code, reply.remark, address)
        return reply

    def _address(self, broker: str) -> Op[str]:
        """Return the address of a broker's master. Raises what a call does, and BrokerError when no name server knows it."""
        error: HalfmoonError = BrokerError(f"no name server is configured to look up the broker {broker}")
        for name_server in self._name_servers:
            try:
                reply = yield Call(name_server, GetBrokerClusterInfo(), b"", ASK_TIMEOUT_MS)
                known = from_json(ClusterInfo, reply.body).broker_addr_table.get(broker) if reply.code == 0 else None
            except HalfmoonError as exc:
                error = exc
                continue
            if known is not None and 0 in known.broker_addrs:
                return known.broker_addrs[0]
            error = BrokerError(f"no name server knows the broker {broker}")
        raise error
