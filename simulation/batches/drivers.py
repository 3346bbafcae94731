"""Drivers that write batches into a simulated cluster, as Spark does: tasks with attempts, a driver that commits, and restarts.

A `Query` is what outlives its drivers: its input, which every try of a batch reads again, and the number of the last batch that it
wrote down as done. A `BatchDriver` is one life of its driver. Tasks are tried again, finish twice, and go on as zombies when all is
decided; requests are repeated, at once and much later. What queries promise is judged by `simulation.batches.checkers`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from halfmoon.client.core.ask import ask
from halfmoon.client.core.produce.coordinator import coordinator
from halfmoon.effects import Call, Op, gather, sleep, spawn
from halfmoon.errors import BrokerError, NetworkError, UsageError
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.bodies import ClusterInfo
from halfmoon.wire.bodies.batches import BatchDecision, BatchPromise, BatchPromises, piece_checksum
from halfmoon.wire.command import Command
from halfmoon.wire.headers.batch import (
    AbortBatch,
    ApplyBatch,
    ApplyBatchReply,
    DecideBatch,
    DecideBatchReply,
    PrepareBatch,
    PrepareBatchReply,
    VoteBatch,
    VoteBatchReply,
)
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.json import from_json, to_json
from halfmoon.wire.record import encode_batch
from simulation.batches.queries import Query

TIMEOUT_MS, TRIES = 2500, 5
AGAIN = (2, 14)
"""Codes after which a request is sent again."""


class Failed(Exception):
    """A batch cannot be committed in this life of the driver."""


Written = dict[str, BatchPromise]
"""Commit message of a task: broker → messages that it was sent."""

Coordinate = Callable[..., Op[str]]
"""As `halfmoon.client.core.produce.coordinator.coordinator`; another one is a planted fault."""


class Sent(NamedTuple):
    """Messages of one attempt of a task, and the coordinators that brokers named. ``decided``: the batch was decided already."""

    attempt: str
    coordinators: set[str]
    written: Written
    decided: bool


class BatchDriver:
    """One life of a query's driver."""

    def __init__(self, cluster: Cluster, query: Query, *, tidy: bool, coordinate: Coordinate = coordinator) -> None:
        query.lives += 1
        self.name = f"{query.id}.{query.lives}"
        self._query, self._timeline, self._tidy = query, cluster.timeline, tidy
        self._random: Random = cluster.timeline.split(f"driver {self.name}")
        self._driver = cluster.driver(self.name)
        self._cluster, self._coordinate = cluster, coordinate
        self.task = self._driver.start(self._run(), self.name)
        self._attempts = 0
        self.stray = False
        """Whether its next decision goes to a wrong broker first."""

    def kill(self) -> None:
        """End the process and all tasks that it runs."""
        self._driver.kill()

    @property
    def ended(self) -> bool:
        """Whether it has failed, or has nothing more to do."""
        return self.task.done

    # ------------------------------------------------------------ the driver

    def _run(self) -> Op[None]:
        query = self._query
        while query.done + 1 < query.target:
            batch = query.done + 1
            yield from self._batch(batch)
            yield from sleep(0 if self._tidy else self._random.choice((0, 0, 20, 900)))
            query.done = max(query.done, batch)
            if query.done > batch:
                raise Failed("another driver is ahead")
            yield from sleep(self._random.choice((0, 0, 5, 300)))

    def _batch(self, batch: int) -> Op[None]:
        tasks: list[Any] = yield from gather([self._task(batch, partition) for partition in range(self._query.partitions)])
        for task in tasks:
            if isinstance(task, Exception):
                raise task
        written = {task.attempt: task.written for task in tasks if not task.decided}
        coordinators = sorted(set().union(*(task.coordinators for task in tasks)))
        if len(coordinators) != 1:
            raise Failed(f"tasks were told different coordinators: {coordinators}")
        try:
            yield from self._commit(batch, coordinators[0], written)
        except Failed:
            if not self._tidy and self._random.random() < 0.5:
                yield from self._abort(batch, written)
            raise

    def _commit(self, batch: int, coordinator: str, written: dict[str, Written]) -> Op[None]:
        parts: dict[str, dict[str, BatchPromise]] = {}
        for attempt, promises in written.items():
            for broker, promise in promises.items():
                parts.setdefault(broker, {})[attempt] = promise
        if len(written) == self._query.partitions:  # else a task heard that the batch is decided: the coordinator tells how
            yield from self._votes(batch, coordinator, parts)
        else:
            parts = {}
        yield from sleep(0 if self._tidy else self._random.choice((0, 0, 0, 20, 900, 2500)))
        if self.stray:
            yield from self._go_astray(batch, coordinator, parts)
        decision = yield from self._decide(batch, coordinator, parts)
        yield from sleep(0 if self._tidy else self._random.choice((0, 0, 0, 20, 900, 2500)))
        applied = yield from gather([self._apply(batch, broker, coordinator, promises) for broker, promises in decision.items()])
        for each in applied:
            if isinstance(each, Exception):
                raise each

    def _votes(self, batch: int, coordinator: str, parts: dict[str, dict[str, BatchPromise]]) -> Op[None]:
        votes = yield from gather([self._vote(batch, broker, coordinator, promises) for broker, promises in parts.items()])
        for vote in votes:
            if isinstance(vote, Exception):
                raise vote
            if vote.result != "YES":
                self._query.noes += 1
                raise Failed(f"a vote is {vote.result}: {vote.reason}")

    def _vote(self, batch: int, broker: str, coordinator: str, promises: dict[str, BatchPromise]) -> Op[VoteBatchReply]:
        header = VoteBatch(transactional_id=self._query.id, batch_id=batch, coordinator=coordinator)
        reply = yield from self._ask(broker, header, to_json(BatchPromises(promises)))
        return reply.header(VoteBatchReply)

    def _decide(
        self, batch: int, coordinator: str, parts: dict[str, dict[str, BatchPromise]]
    ) -> Op[dict[str, dict[str, BatchPromise]]]:
        query, digest = self._query, f"digest {batch}"
        header = DecideBatch(transactional_id=query.id, batch_id=batch, digest=digest)
        query.asked_ms.setdefault(batch, {broker.name: broker.host.now() for broker in self._cluster.brokers})
        reply = yield from self._ask(coordinator, header, to_json(BatchDecision(parts)))
        said = reply.header(DecideBatchReply)
        if said.result == "REFUSED":
            query.refused += 1
            raise Failed(f"refused: {said.reason}")
        if said.result == "ALREADY":
            query.already += 1
        if said.digest not in (digest, None):
            query.problems.append(f"batch {batch} of {query.id} has the digest {said.digest!r}")
        decision = from_json(BatchDecision, reply.body).participants if reply.body else {}
        if decision:
            query.chosen[batch] = {attempt for promises in decision.values() for attempt in promises}
        return decision

    def _go_astray(self, batch: int, coordinator: str, parts: dict[str, dict[str, BatchPromise]]) -> Op[None]:
        """Send a decision to another broker, as who guesses the coordinator does; what it answers is not listened to."""
        others = sorted(self._query.brokers.keys() - {coordinator})
        if others:
            self.stray = False
            header = DecideBatch(transactional_id=self._query.id, batch_id=batch, digest=f"digest {batch}")
            try:
                yield from self._ask(others[batch % len(others)], header, to_json(BatchDecision(parts)))
            except Failed:
                return

    def _apply(self, batch: int, broker: str, coordinator: str, promises: dict[str, BatchPromise]) -> Op[None]:
        header = ApplyBatch(transactional_id=self._query.id, batch_id=batch, coordinator=coordinator)
        body = to_json(BatchPromises(promises))
        reply = yield from self._ask(broker, header, body)
        assert reply.header(ApplyBatchReply).result == "APPLIED"
        if self._random.random() < 0.1:
            yield from spawn(self._later(broker, header, body), "a late repeat")

    def _abort(self, batch: int, written: dict[str, Written]) -> Op[None]:
        body = to_json(BatchPromises({attempt: BatchPromise() for attempt in written}))
        for broker in self._query.brokers:
            try:
                yield from self._ask(broker, AbortBatch(transactional_id=self._query.id, batch_id=batch), body)
            except Failed:
                continue

    # ------------------------------------------------------------ tasks

    def _task(self, batch: int, partition: int) -> Op[Sent]:
        """Run the attempts of one task; return the one whose commit message counts."""
        fate = "whole" if self._tidy else self._random.choice(("whole", "whole", "whole", "dies", "twice", "zombie"))
        if fate == "zombie":
            yield from spawn(self._zombie(batch, partition), "a zombie")
        elif fate != "whole":
            yield from self._attempt(batch, partition, until=0.5 if fate == "dies" else 1.0)
        return (yield from self._attempt(batch, partition))

    def _zombie(self, batch: int, partition: int) -> Op[None]:
        yield from sleep(self._random.choice((0, 50, 800, 4000)))
        try:
            found = yield from self._attempt(batch, partition)
            if found.decided or self._random.random() < 0.5:
                return
            for broker, promise in found.written.items():
                yield from self._vote(batch, broker, max(found.coordinators), {found.attempt: promise})
        except Failed:
            return

    def _attempt(self, batch: int, partition: int, until: float = 1.0) -> Op[Sent]:
        """Send a task's messages under a new name, to brokers that are there now; ``until``: a share of them."""
        query = self._query
        self._attempts += 1
        name = f"{self.name}.{self._attempts}-{batch}.{partition}"
        coordinator = yield from self._coordinator(name)
        query.attempts.setdefault((batch, partition), set()).add(name)
        sent = Sent(name, set(), {}, False)
        pieces = query.pieces(batch, partition, name, self._random.choice((1, 3, 100)))
        for place, first_seq, rows, sys_flag in pieces[: round(len(pieces) * until)]:
            header = PrepareBatch(
                transactional_id=query.id, batch_id=batch, attempt=name, partition=partition, first_seq=first_seq,
                topic=place.topic, queue_id=place.queue_id, count=len(rows), coordinator=coordinator,
                sys_flag=sys_flag or None,
            )  # fmt: skip
            body = encode_batch(row.item for row in rows)
            reply = yield from self._ask(place.broker, header, body)
            said = reply.header(PrepareBatchReply)
            sent.coordinators.add(said.coordinator)
            if said.result == "DECIDED":
                return sent._replace(decided=True)
            before = sent.written.get(place.broker, BatchPromise())
            checksum = before.checksum + piece_checksum(place.topic, place.queue_id, first_seq, body) & 0xFFFFFFFF
            sent.written[place.broker] = BatchPromise(before.count + len(rows), checksum)
        return sent

    def _coordinator(self, attempt: str) -> Op[str]:
        """Ask name servers which brokers there are, and them who coordinates the query."""
        for _ in range(TRIES):
            try:
                return (yield from self._asked(attempt))
            except (NetworkError, BrokerError) as exc:
                problem = exc
            yield from sleep(self._random.randint(5, 500))
        raise Failed(f"nobody says who coordinates: {problem}")

    def _asked(self, attempt: str) -> Op[str]:
        query, names = self._query, self._random.choice(self._cluster.nameservers)
        try:
            reply = yield from ask(names.address, GetBrokerClusterInfo(), b"", TIMEOUT_MS)
            info = from_json(ClusterInfo, reply.body)
            masters = {name: data.broker_addrs[0] for name, data in info.broker_addr_table.items() if 0 in data.broker_addrs}
            query.seen[attempt] = sorted(masters)
            if not masters:
                raise NetworkError("name servers know no broker")
            return (
                yield from self._coordinate(query.id, masters, (), lambda address, header: ask(address, header, b"", TIMEOUT_MS))
            )
        except UsageError as exc:
            query.problems.append(str(exc))
            raise Failed(str(exc)) from exc

    # ------------------------------------------------------------ requests

    def _ask(self, broker: str, header: Any, body: bytes) -> Op[Command]:
        """Ask until there is an answer; some requests are sent twice, or again much later. Raises Failed."""
        address, problem = self._query.brokers[broker], "nothing"
        if not self._tidy and self._random.random() < 0.06:
            yield from spawn(self._later(broker, header, body), "a repeat")
        for _ in range(TRIES):
            self._query.requests += 1
            try:
                reply: Command = yield Call(address, header, body, TIMEOUT_MS)
            except NetworkError as exc:
                problem = str(exc)
            else:
                if reply.code == 0:
                    return reply
                problem = f"{reply.code} {reply.remark}"
                if reply.code not in AGAIN:
                    raise Failed(f"{broker} answers {type(header).__name__} {problem}")
            yield from sleep(self._random.randint(5, 500))
        raise Failed(f"{broker} does not answer {type(header).__name__}: {problem}")

    def _later(self, broker: str, header: Any, body: bytes) -> Op[None]:
        yield from sleep(self._random.choice((0, 10, 700, 3000)))
        try:
            yield Call(self._query.brokers[broker], header, body, TIMEOUT_MS)
        except NetworkError:
            return
