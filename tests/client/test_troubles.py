"""Clients that nobody answers say so by themselves."""

from __future__ import annotations

import time

from halfmoon.client.sync import PushConsumer


def test_a_push_consumer_against_nothing_says_so_with_address_and_reason(caplog):
    consumer = PushConsumer(group="C_nothing", nameserver="127.0.0.1:9")
    consumer.subscribe("orders")
    consumer.on_message(lambda messages: None)

    with consumer:
        until = time.monotonic() + 5
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.6)  # further rounds, which say nothing new

    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    about = [text for text in said if "topic orders" in text]
    assert len(about) == 1
    assert "connect to 127.0.0.1:9 failed: Connection refused" in about[0]
