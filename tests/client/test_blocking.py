"""Life of blocking clients, and errors of their sends."""

from __future__ import annotations

from threading import Thread

import pytest

from halfmoon import Message, NoRoute, Producer, UsageError
from halfmoon.errors import NoNameServerAnswers, NotRunning

NOBODY = "127.0.0.1:9"


def test_it_shows_its_settings_and_its_id():
    producer = Producer(group="P", nameserver=NOBODY, client_ip="10.0.0.7")

    assert (producer.settings.group, producer.settings.nameserver) == ("P", NOBODY)
    assert producer.client_id.startswith("10.0.0.7@")


def test_it_is_started_once_and_closed_as_often_as_one_likes():
    with Producer(group="P", nameserver=NOBODY) as producer, pytest.raises(UsageError):
        producer.start()

    producer.close()
    with pytest.raises(NotRunning):
        producer.send(Message("orders", b"paid"))


def test_a_send_whose_route_is_not_known_raises_in_each_thread_that_sends():
    errors: list[Exception] = []

    def send() -> None:
        try:
            producer.send(Message("orders", b"paid"))
        except Exception as exc:
            errors.append(exc)

    with Producer(group="P", nameserver=NOBODY) as producer:
        threads = [Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [type(error) for error in errors] == [NoRoute] * 3
    assert all(isinstance(error.reason, NoNameServerAnswers) for error in errors)
