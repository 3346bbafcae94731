"""Constructors of clients complain at once, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon import Admin, AsyncProducer, Producer, ProducerSettings, PullConsumer, PushConsumer, TransactionProducer
from halfmoon.client.admin import AdminSettings
from halfmoon.errors import NotRunning, SettingError, UsageError
from halfmoon.model import Message


@pytest.mark.parametrize(
    ("make", "given", "wanted"),
    [
        (Producer, ("PID", "127.0.0.1:9876"), r"Producer\(group=…, nameserver=…\)"),
        (AsyncProducer, ("PID",), r"AsyncProducer\(group=…\)"),
        (TransactionProducer, ("PID", lambda message: None), r"TransactionProducer\(group=…\)"),
        (PushConsumer, ("CID", True), r"PushConsumer\(group=…\)"),
        (PullConsumer, (ProducerSettings(), "127.0.0.1:9876"), r"PullConsumer\(nameserver=…\)"),
        (Admin, ("127.0.0.1:9876",), r"Admin\(nameserver=…\)"),
    ],
)
def test_settings_by_their_place_are_refused_with_their_keywords(make: Any, given: tuple[Any, ...], wanted: str):
    with pytest.raises(UsageError, match=rf"takes its settings by keyword: {wanted}"):
        make(*given)


def test_a_constructor_of_a_users_subclass_takes_what_it_likes():
    class ShopProducer(Producer):
        def __init__(self, shop: str, port: int) -> None:
            super().__init__(group=f"P_{shop}", nameserver=f"127.0.0.1:{port}")

    assert ShopProducer("north", 9876).settings.group == "P_north"


def test_an_object_of_settings_may_stand_first():
    assert Producer(ProducerSettings(group="P_shop"), linger_ms=5).settings.linger_ms == 5
    assert Admin(AdminSettings(nameserver="127.0.0.1:1")).settings.nameserver == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("sendMsgTimeout", "send_timeout_ms"),
        ("namesrv_addr", "nameserver"),
        ("max_message_size", "body_bytes_max"),
        ("groop", "group"),
    ],
)
def test_a_setting_by_the_key_of_rocketmq_is_told_by_ours(wrong: str, right: str):
    with pytest.raises(SettingError, match=f"'{wrong}'; did you mean '{right}'"):
        Producer(**{wrong: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Producer, TransactionProducer, AsyncProducer])
async def test_a_client_that_was_not_started_is_called_by_the_name_of_its_class(make: Any):
    class Mine(make):  # type: ignore[misc]
        pass

    for kind in (make, Mine):
        producer = kind(group="P_shop", nameserver="127.0.0.1:1")
        with pytest.raises(NotRunning, match=rf"^The {kind.__name__} is not running"):
            producer.running() if make is AsyncProducer else producer.send(Message("orders", b"paid"))


@pytest.mark.parametrize("make", [PushConsumer, PullConsumer])
def test_a_listener_in_the_place_of_an_expression_is_refused_with_the_place_for_it(make: Any):
    with pytest.raises(UsageError, match=r"takes no function: a push consumer has one listener, which consumer\.on_message"):
        make(group="C_test").subscribe("orders", print)
