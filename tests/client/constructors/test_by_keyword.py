"""Constructors of clients complain at once, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from halfmoon.client.admin import AdminSettings
from halfmoon.errors import MessageIllegal, NotRunning, SettingError, UsageError
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


CONSUMERS = [PushConsumer, PullConsumer, AsyncPushConsumer, AsyncPullConsumer]


@pytest.mark.parametrize("make", CONSUMERS)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("orders", print), {}),
        (("orders", print), {"expression": "paid"}),
        (("orders", "paid", print), {}),
        (("orders", "paid", "TAG", print), {}),
        (("orders",), {"expression": print}),
        (("orders",), {"callback": print}),
        (("orders",), {"sql": len}),
    ],
)
def test_a_listener_among_the_arguments_of_subscribe_is_refused_with_the_place_for_it(
    make: Any, arguments: tuple[Any, ...], named: dict[str, Any]
):
    with pytest.raises(UsageError, match=r"takes no function: a push consumer has one listener, which consumer\.on_message"):
        make(group="C_test").subscribe(*arguments, **named)


@pytest.mark.parametrize("make", CONSUMERS)
@pytest.mark.parametrize(
    ("arguments", "named", "told"),
    [
        ((), {}, r"subscribe\(topic, expression\), or subscribe\(topic, sql=…\): missing a required argument: 'topic'"),
        (("orders", "A"), {"tags": "B"}, "unexpected keyword argument 'tags'"),
        (("orders", "A"), {"expression": "B"}, "multiple values for argument 'expression'"),
        (("orders", "A", "TAG", "B"), {}, "too many positional arguments"),
        ((["orders", "paid"],), {}, r"topic is \['orders', 'paid'\] \(list\): give one text"),
        (("orders", ["A", "B"]), {}, r"expression of 'orders' is \['A', 'B'\] \(list\): give one text, such as 'A \|\| B'"),
        (("orders", b"A"), {}, r"expression of 'orders' is b'A' \(bytes\)"),
        (("orders", "A", None), {}, r"expression_type of 'orders' is None"),
        (("orders",), {"sql": 5}, r"sql of 'orders' is 5 \(int\)"),
        (("orders", "a > 5", "SQL"), {}, "no filter is of type 'SQL': give tags or SQL92"),
        (("orders", "a > 5"), {"sql": "a > 5"}, "tags or an SQL92 expression, not both"),
    ],
)
def test_arguments_that_subscribe_does_not_take_are_refused_at_once(
    make: Any, arguments: tuple[Any, ...], named: dict[str, Any], told: str
):
    with pytest.raises(UsageError, match=told):
        make(group="C_test").subscribe(*arguments, **named)


def test_subscribe_of_a_users_subclass_takes_what_it_likes():
    class ShopConsumer(PushConsumer):
        def subscribe(self, topic: str, listener: Any) -> None:  # type: ignore[override]
            super().subscribe(topic)
            self.on_message(listener)

    consumer = ShopConsumer(group="C_test")
    consumer.subscribe("orders", print)
    assert consumer._client.core.subscriptions.keys() == {"orders"}


@pytest.mark.parametrize("make", [PushConsumer, AsyncPushConsumer])
@pytest.mark.parametrize(
    ("listener", "told"),
    [
        ("handle", r"on_message takes a function, not 'handle' \(str\)"),
        (None, "on_message takes a function, not None"),
        (lambda: None, r"a listener takes the messages, or the messages and their context, and .* has \(\)"),
        (lambda messages, context, database: None, r"has \(messages, context, database\)"),
        (lambda *, messages: None, r"has \(\*, messages\)"),
    ],
)
def test_a_listener_that_no_delivery_could_call_is_refused_where_it_is_set(make: Any, listener: Any, told: str):
    with pytest.raises(UsageError, match=told):
        make(group="C_test").on_message(listener)


@pytest.mark.parametrize(
    "listener",
    [print, lambda messages: None, lambda messages, context: None, lambda *messages: None, lambda messages, tries=3: None],
)
def test_a_listener_of_the_messages_and_perhaps_their_context_is_taken(listener: Any):
    consumer = PushConsumer(group="C_test")
    assert consumer.on_message(listener) is listener


@pytest.mark.parametrize("queue", ["orders", 0, ("orders", "broker-a", 0)])
async def test_what_is_no_queue_is_not_assigned(queue: Any):
    consumer = AsyncPullConsumer(group="C_test")
    with pytest.raises(UsageError, match=r"is no queue: give a MessageQueue, as queues\(topic\) returns them"):
        await consumer.assign([queue])


async def test_a_listener_of_changed_queues_is_a_function():
    with pytest.raises(UsageError, match="on_queues_changed takes a function, not 'orders'"):
        await AsyncPullConsumer(group="C_test").on_queues_changed("orders", "orders")  # type: ignore[arg-type]


async def test_what_is_no_function_or_message_is_refused_by_transactional_producers_and_asynchronous_sends():
    for make in (TransactionProducer, AsyncTransactionProducer):
        with pytest.raises(UsageError, match="a check is a function of a message, not 'committed'"):
            make(group="P_test", check="committed")
    producer = AsyncTransactionProducer(group="P_test")
    with pytest.raises(MessageIllegal, match=r"'orders' \(str\) is no message: give Message\(topic, body\)"):
        producer.half("orders")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"send_async takes a function, not 'told' \(str\)"):
        producer.send_async(Message("orders", b"paid"), "told")  # type: ignore[arg-type]
