"""`halfmoon tx batches` against a running broker: ids, undecided attempts."""

from __future__ import annotations

import pytest

from halfmoon.client.batches import BatchPromise, BatchTransactions
from halfmoon.model import MessageQueue
from halfmoon.wire.record import BatchItem, encode_batch


@pytest.fixture
def undecided(cluster, run):
    """A transactional id with batch 0 published and an attempt of batch 1 undecided."""
    run("topic", "create", "out")
    queue = MessageQueue("out", "broker-a", 0)
    body = encode_batch([BatchItem(b"one", b""), BatchItem(b"two", b"")])
    with BatchTransactions(nameserver=cluster.nameserver) as batches:
        stored = batches.prepare(("nightly", 0), "first", 0, queue, 0, 2, body).result(60)
        if not stored.decided:
            attempts = {"first": BatchPromise(2, stored.checksum)}
            assert batches.vote(("nightly", 0), "broker-a", "broker-a", attempts) is None
            batches.decide(("nightly", 0), "broker-a", {"broker-a": attempts})
            batches.apply(("nightly", 0), "broker-a", "broker-a", attempts)
        batches.prepare(("nightly", 1), "second", 0, queue, 0, 2, body).result(60)
    return "nightly"


def test_ids_are_listed_with_their_last_batch_and_what_is_undecided(run, undecided):
    [broker] = run("tx", "batches", "--json").json()
    [one] = broker["ids"]
    assert (one["transactional_id"], one["coordinator"], one["decided"], one["applied"]) == (undecided, "broker-a", 0, 0)
    assert [(each["batch_id"], each["attempt"], each["state"], each["count"]) for each in one["attempts"]] == [
        (1, "second", "PREPARED", 2)
    ]
    assert broker["counters"]["published"] == 2
    line = next(line for line in run("tx", "batches").out.splitlines() if undecided in line)
    assert "broker-a" in line


def test_one_id_is_shown_with_its_attempts(run, undecided):
    said = run("tx", "batches", undecided).out
    assert "second" in said
    assert "PREPARED" in said
    assert run("tx", "batches", "unknown", "--json").json()[0]["ids"] == []
