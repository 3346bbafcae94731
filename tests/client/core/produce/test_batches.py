"""Requests about batches: again after failures that may pass, and refused where guessing could lose or double messages."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.batches import BatchesCore, BatchName, BatchSettings
from halfmoon.client.settings import settings_of
from halfmoon.errors import PeerError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import BrokerData, ClusterInfo, to_json
from halfmoon.wire.bodies.batches import piece_checksum
from halfmoon.wire.headers.batch import (
    CoordinateBatches,
    CoordinateBatchesReply,
    PrepareBatch,
    PrepareBatchReply,
    ResolveBatch,
    ResolveBatchReply,
    VoteBatch,
    VoteBatchReply,
)
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.scripted import REFUSED, Reply, Scripted

BATCH = BatchName("job-1", 7)
QUEUE = MessageQueue("orders", "broker-a", 1)
THERE = Reply(body=to_json(ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: "broker-a:1"})}, {"c": ["broker-a"]})))
NOBODY = Reply(body=to_json(ClusterInfo({}, {})))
"""What a name server knows of the cluster once the connection to its only broker is lost."""


def batches(script: Scripted, **values) -> BatchesCore:
    settings = settings_of(BatchSettings, {"nameserver": "ns:1", "retries_max": 2, **values})
    script.on(GetBrokerClusterInfo, THERE)
    script.on(CoordinateBatches, Reply(header=CoordinateBatchesReply(coordinator="broker-a", last=-1)))
    return BatchesCore(Instance(settings, "jobs", Random(1)), settings)


def test_a_piece_is_sent_again_after_a_failure_and_its_checksum_is_told():
    script = Scripted()
    core = batches(script)
    script.on(PrepareBatch, REFUSED, Reply(header=PrepareBatchReply(result="STORED", coordinator="broker-a")))

    stored = script.run(core.prepare(BATCH, "a1", 0, QUEUE, 5, 1, b"body"))

    assert (stored.decided, stored.checksum) == (False, piece_checksum("orders", 1, 5, b"body"))
    assert [seen.request.first_seq for seen in script.asked(PrepareBatch)] == [5, 5]
    assert len(script.asked(CoordinateBatches)) == 1


def test_failures_in_a_row_have_a_bound():
    script = Scripted()
    core = batches(script)
    script.on(VoteBatch, REFUSED)

    with pytest.raises(type(REFUSED)):
        script.run(core.vote(BATCH, "broker-a", "broker-a", {}))

    assert len(script.asked(VoteBatch)) == 3


def test_a_broker_that_holds_less_says_why():
    script = Scripted()
    core = batches(script)
    script.on(VoteBatch, Reply(header=VoteBatchReply(result="NO", reason="a piece is missing")))

    assert script.run(core.vote(BATCH, "broker-a", "broker-a", {})) == "a piece is missing"


def test_a_piece_waits_for_a_broker_that_is_started_again():
    script = Scripted()
    core = batches(script)
    script.on(GetBrokerClusterInfo, NOBODY, NOBODY, THERE)
    script.on(PrepareBatch, Reply(header=PrepareBatchReply(result="STORED", coordinator="broker-a")))

    assert not script.run(core.prepare(BATCH, "a1", 0, QUEUE, 0, 1, b"body")).decided


def test_a_broker_without_batch_transactions_is_refused_with_what_works_there():
    script = Scripted()
    core = batches(script)
    script.on(VoteBatch, Reply(3, remark="request type not supported"))

    with pytest.raises(UsageError, match="at-least-once"):
        script.run(core.vote(BATCH, "broker-a", "broker-a", {}))


def test_an_answer_that_is_not_known_is_never_taken_for_one_that_is():
    script = Scripted()
    core = batches(script)
    script.on(ResolveBatch, Reply(header=ResolveBatchReply(result="PERHAPS")))

    with pytest.raises(PeerError, match="PERHAPS"):
        script.run(core.resolve(BATCH, "broker-a", "a1"))
