"""The blocking producer of encoded batches."""

from __future__ import annotations

import pytest

from halfmoon import NoRoute, UsageError
from halfmoon.client.bulk import BulkProducer, Encoded, bulk
from halfmoon.wire.record import encode_batch

NOBODY = "127.0.0.1:9"
BATCH = Encoded("orders", encode_batch([(b"paid", b"", 0)]))


def test_a_batch_that_cannot_be_sent_fails_in_its_future():
    with BulkProducer(group="P_jobs", nameserver=NOBODY) as producer:
        future = producer.send_encoded(BATCH, [])

        with pytest.raises(UsageError, match="no queue"):
            future.result(10)
        with pytest.raises(NoRoute):
            producer.queues("orders")


def test_a_process_has_one_producer_for_the_same_settings():
    assert bulk(group="P_jobs", nameserver=NOBODY) is bulk(group="P_jobs", nameserver=NOBODY)
