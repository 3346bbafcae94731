"""Every row of table 8.1: a plain event without a transaction. Each test names its row."""

from __future__ import annotations

import pytest

from halfmoon.events import PublishFailed
from tests.events.outcomes.shop import Shop

pytestmark = pytest.mark.slow


@pytest.mark.mission("002-31", "002-32")
def test_8_1_row_1_send_ok(shop: Shop):
    event = shop.event(transactional=False)

    published = shop.events.publish(event)

    assert (published.delivery, published.event_id) == ("sent", event.id)
    shop.received(event)


@pytest.mark.mission("002-27", "002-33", "002-34", "002-35")
@pytest.mark.parametrize("fault", ["refused", "request lost", "answer lost"])
def test_8_1_rows_2_to_4_the_send_fails_or_times_out_with_an_error_for_the_caller(shop: Shop, fault: str):
    shop.network.break_sends(fault)
    event = shop.event(transactional=False)

    with pytest.raises(PublishFailed, match="refused by the test" if fault == "refused" else None) as caught:
        shop.events.publish(event)

    assert caught.value.event_id == event.id
    assert shop.network.lost.total() == 1
    if fault == "answer lost":
        shop.received(event)  # although the caller saw an error
    else:
        shop.nothing_received()


@pytest.mark.mission("002-33")
def test_8_1_row_2_send_fails_because_the_broker_is_gone(shop: Shop):
    shop.events.publish(first := shop.event(transactional=False))
    shop.cluster.stop()
    try:
        with pytest.raises(PublishFailed):
            shop.events.publish(shop.event(transactional=False))
    finally:
        shop.cluster.start()

    shop.received(first)
