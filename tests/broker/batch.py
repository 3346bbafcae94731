"""A driver and tasks of batch transactions for tests of the broker: pieces, votes, decisions, one request at a time."""

from __future__ import annotations

from halfmoon.wire.bodies.batches import BatchDecision, BatchList, BatchPromise, BatchPromises, piece_checksum, sum_of
from halfmoon.wire.headers.batch import (
    AbortBatch,
    ApplyBatch,
    ApplyBatchReply,
    DecideBatch,
    DecideBatchReply,
    ListBatches,
    PrepareBatch,
    PrepareBatchReply,
    ResolveBatch,
    ResolveBatchReply,
    VoteBatch,
    VoteBatchReply,
)
from halfmoon.wire.json import from_json, to_json
from halfmoon.wire.properties import encode
from halfmoon.wire.record import BatchItem, decode_records, encode_batch


def body_of(*texts, properties=b""):
    return encode_batch(BatchItem(text.encode(), properties or encode({"KEYS": text})) for text in texts)


def piece(first_seq, topic="T"):
    """Return the request for a piece of one message, for attempt a of batch 0 of q."""
    return PrepareBatch(
        transactional_id="q", batch_id=0, attempt="a", partition=0, first_seq=first_seq, topic=topic, queue_id=0, count=1,
        coordinator="broker-a",
    )  # fmt: skip


class Driver:
    """Runs batches of one transactional id at one broker; remembers what was promised of each attempt."""

    def __init__(self, talk, id="q", coordinator="broker-a"):
        self.talk, self.id, self.coordinator = talk, id, coordinator
        self.after_flush: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self.next: dict[tuple[int, str, str, int], int] = {}

    def prepare(self, batch, attempt, *texts, topic="orders", queue_id=0, partition=0, body=None, first_seq=None, **kw):
        """Send one piece; return the answer's command."""
        place = (batch, attempt, topic, queue_id)
        first = self.next.get(place, 0) if first_seq is None else first_seq
        body = body_of(*texts) if body is None else body
        header = PrepareBatch(
            transactional_id=self.id, batch_id=batch, attempt=attempt, partition=partition, first_seq=first, topic=topic,
            queue_id=queue_id, count=len(texts), coordinator=self.coordinator, **kw,
        )  # fmt: skip
        reply = self.talk.ask(header, body)
        if reply is None:  # a queue had to be made
            self.talk.turn()
            reply = self.talk.answer(self.talk.opaque)
        if reply.code == 0 and reply.header(PrepareBatchReply).result == "STORED" and first_seq is None:
            self.next[place] = first + len(texts)
            self.after_flush.setdefault((batch, attempt), []).append((len(texts), piece_checksum(topic, queue_id, first, body)))
        return reply

    def stored(self, *arguments, **kw):
        reply = self.prepare(*arguments, **kw)
        assert reply.code == 0, reply.remark
        return reply.header(PrepareBatchReply).result

    def promises(self, batch, *attempts):
        found = {}
        for attempt in attempts:
            pieces = self.after_flush.get((batch, attempt), [])
            found[attempt] = BatchPromise(sum(count for count, _ in pieces), sum_of(checksum for _, checksum in pieces))
        return found

    def vote(self, batch, *attempts, promises=None):
        header = VoteBatch(transactional_id=self.id, batch_id=batch, coordinator=self.coordinator)
        return self._header(header, BatchPromises(promises or self.promises(batch, *attempts)), VoteBatchReply)

    def decide(self, batch, *attempts, digest=""):
        decision = BatchDecision({"broker-a": self.promises(batch, *attempts)} if attempts else {})
        header = DecideBatch(transactional_id=self.id, batch_id=batch, digest=digest)
        reply = self.talk.ask(header, to_json(decision))
        assert reply.code == 0, reply.remark
        found = from_json(BatchDecision, reply.body) if reply.body else BatchDecision()
        return reply.header(DecideBatchReply), found

    def apply(self, batch, *attempts, promises=None):
        header = ApplyBatch(transactional_id=self.id, batch_id=batch, coordinator=self.coordinator)
        return self._header(header, BatchPromises(promises or self.promises(batch, *attempts)), ApplyBatchReply)

    def apply_request(self, batch, *attempts):
        header = ApplyBatch(transactional_id=self.id, batch_id=batch, coordinator=self.coordinator)
        return header, to_json(BatchPromises(self.promises(batch, *attempts)))

    def resolve(self, batch, attempt, **kw):
        reply = self.talk.ask(
            ResolveBatch(transactional_id=self.id, batch_id=batch, participant="broker-b", attempt=attempt, **kw)
        )  # fmt: skip
        assert reply.code == 0, reply.remark
        return reply.header(ResolveBatchReply).result

    def abort(self, batch, *attempts):
        body = to_json(BatchPromises(self.promises(batch, *attempts)))
        return self.talk.ask(AbortBatch(transactional_id=self.id, batch_id=batch), body)

    def whole(self, batch, *texts, attempt=None, **kw):
        """Bring one batch of one attempt to its end."""
        attempt = attempt or f"a{batch}"
        assert self.stored(batch, attempt, *texts, **kw) == "STORED"
        assert self.vote(batch, attempt).result == "YES"
        assert self.decide(batch, attempt)[0].result == "DECIDED"
        assert self.apply(batch, attempt).result == "APPLIED"

    def listed(self):
        reply = self.talk.ask(ListBatches())
        return from_json(BatchList, reply.body)

    def shown(self):
        return next((each for each in self.listed().ids if each.transactional_id == self.id), None)

    def _header(self, header, body, reply_class):
        reply = self.talk.ask(header, to_json(body))
        assert reply.code == 0, reply.remark
        return reply.header(reply_class)


def visible(talk, topic="orders", queue_id=0):
    """Return the bodies that consumers of a queue see, and the records."""
    found = talk.broker.store.read(topic, queue_id, talk.broker.store.queue_min(topic, queue_id), 10_000)
    return [record for piece in found.pieces for record in decode_records(piece)]


def bodies(talk, topic="orders", queue_id=0):
    return [record.body.decode() for record in visible(talk, topic, queue_id)]
