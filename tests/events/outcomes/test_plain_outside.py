"""Every row of table 8.1: a plain event without a transaction. Each test names its row."""

from __future__ import annotations

import pytest

from halfmoon.events import Event, PublishFailed
from tests.events.outcomes.network import SEND, SYSTEM_ERROR
from tests.events.outcomes.shop import Shop

pytestmark = pytest.mark.slow


def refused(shop: Shop, event: Event) -> PublishFailed:
    with pytest.raises(PublishFailed) as caught:
        shop.events.publish(event)
    assert caught.value.event_id == event.id
    return caught.value


@pytest.mark.mission("002-31", "002-32")
def test_8_1_row_1_send_ok(shop: Shop):
    event = shop.event(transactional=False)

    published = shop.events.publish(event)

    assert (published.delivery, published.event_id) == ("sent", event.id)
    shop.received(event)


@pytest.mark.mission("002-27", "002-33")
def test_8_1_row_2_send_fails(shop: Shop):
    shop.network.refuse(SEND, SYSTEM_ERROR)

    error = refused(shop, shop.event(transactional=False))

    assert "refused by the test" in str(error)
    shop.nothing_received()


@pytest.mark.mission("002-33")
def test_8_1_row_2_send_fails_because_the_broker_is_gone(shop: Shop):
    shop.events.publish(first := shop.event(transactional=False))
    shop.cluster.stop()
    try:
        refused(shop, shop.event(transactional=False))
    finally:
        shop.cluster.start()

    shop.received(first)


@pytest.mark.mission("002-34")
def test_8_1_row_3_time_out_and_the_request_was_lost(shop: Shop):
    shop.network.lose("request", SEND)

    refused(shop, shop.event(transactional=False))

    assert shop.network.lost["request"] == 1
    shop.nothing_received()


@pytest.mark.mission("002-35")
def test_8_1_row_4_time_out_and_the_answer_was_lost(shop: Shop):
    shop.network.lose("answer", SEND)
    event = shop.event(transactional=False)

    refused(shop, event)

    assert shop.network.lost["answer"] == 1
    shop.received(event)  # although the caller saw an error
