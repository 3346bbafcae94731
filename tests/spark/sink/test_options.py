"""Options of the sinks: what does not fit, alone or together, is refused with the reason."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from halfmoon.errors import UsageError
from halfmoon.spark.sink.options import sink_options

GIVEN = {"endpoints": "127.0.0.1:9876", "topic": "orders"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delivry": "x"}, "did you mean delivery"),
        ({"delivery": "twice"}, "delivery"),
        ({"onTooLarge": "drop"}, "onTooLarge"),
        ({"onTooLarge": "dlq"}, "onTooLarge=dlq and dlqTopic=TOPIC belong together"),
        ({"dlqTopic": "dead"}, "onTooLarge=dlq and dlqTopic=TOPIC belong together"),
        ({"compression": "gzip"}, "compression"),
        ({"inFlight": "0"}, "inFlight"),
        ({"secretKye": "hunter2"}, "secretKye"),
        ({"extraColumns": "drop"}, "extraColumns"),
        ({"kafka.bootstrap.servers": "x:1"}, "Kafka's kafka.bootstrap.servers is endpoints"),
        ({"kafka.enable.idempotence": "true"}, "Kafka's kafka.enable.idempotence is delivery"),
        ({"kafka.acks": "all"}, "there is no equivalent of Kafka's kafka.acks"),
        ({"batchBytes": "8m"}, "batchBytes"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, str], why: str):
    with pytest.raises(UsageError, match=why) as refused:
        sink_options({**GIVEN, **given})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"transactionalId": "may-31"}, "transactionalId does nothing with delivery=at-least-once; it needs delivery="),
        ({"delivery": "idempotent", "batchNumber": "1"}, "batchNumber does nothing with delivery=idempotent"),
        ({"delivery": "idempotent", "strictReplay": "false"}, "strictReplay .* needs delivery=exactly-once"),
        ({"transactiontimeout": "2h"}, "transactionTimeout does nothing with delivery=at-least-once"),  # Spark's letters
        ({"delivery": "exactly-once", "batchNumber": "1"}, "batchNumber needs transactionalId"),
    ],
)
def test_an_option_that_this_delivery_would_not_heed_is_refused(given: dict[str, str], why: str):
    with pytest.raises(UsageError, match=why):
        sink_options({**GIVEN, **given})
