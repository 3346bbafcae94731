"""Names of RocketMQ's other clients, and what they are here: for errors, and for the page about rocketmq-client-python."""

from __future__ import annotations

from enum import EnumType
from typing import TYPE_CHECKING, Any, NoReturn

_CLIENT = {
    "shutdown": "close()",
    "set_group": "group=… of the constructor",
    "set_name_server_address": "nameserver=… of the constructor",
    "set_namesrv_addr": "nameserver=… of the constructor",
    "set_name_server_domain": "nameserver=… of the constructor, with addresses",
    "set_namesrv_domain": "nameserver=… of the constructor, with addresses",
    "set_session_credentials": "access_key=… and secret_key=… of the constructor",
    "set_instance_name": "instance_name=… of the constructor",
}
OLD_NAMES: dict[str, dict[str, str]] = {
    "Producer": {
        **_CLIENT,
        "send_sync": "send(message)",
        "send_orderly": "send(message, key=…), or with selector=…",
        "send_orderly_with_sharding_key": "send(message, key=…)",
        "set_timeout": "send_timeout_ms=… of the constructor",
        "set_compress_level": "compress_level=… of the constructor",
        "set_max_message_size": "body_bytes_max=… of the constructor",
    },
    "TransactionProducer": {"send_message_in_transaction": "send_in_transaction(message, arg), or half(message)"},
    "PushConsumer": {
        **_CLIENT,
        "set_message_model": "model=… of the constructor",
        "set_thread_count": "threads=… of the constructor",
        "set_message_batch_max_size": "consume_batch_max=… of the constructor",
    },
    "PullConsumer": {**_CLIENT, "pull": "poll(), after subscribe(topic)"},
    "Message": {
        "tags": "tag",
        "delay_time_level": "delay_level",
        "set_tags": "tag=…",
        "set_keys": "keys=…",
        "set_body": "body=…, as bytes",
        "set_property": "properties=…",
        "set_delay_time_level": "delay_level=…",
    },
    "StoredMessage": {
        "id": "msg_id",
        "tags": "tag, a text",
        "store_size": "size_bytes",
        "born_timestamp": "born_ms",
        "store_timestamp": "store_ms",
        "commit_log_offset": "physical_offset",
        "delay_time_level": "properties.get('DELAY')",
        "get_property": "properties.get(name)",
    },
    "SendResult": {"offset": "queue_offset"},
    "SendStatus": {"OK": "SEND_OK"},
    "halfmoon": {
        "TransactionMQProducer": "TransactionProducer",
        "TransactionStatus": "LocalTransactionState",
        "RecvMessage": "StoredMessage",
    },
}
"""By class of Halfmoon (asyncio's are like it) or module: a name of rocketmq-client-python 2.0, and what it is."""

JAVA_NAMES: dict[str, dict[str, str]] = {
    "LocalTransactionState": {"COMMIT_MESSAGE": "COMMIT", "ROLLBACK_MESSAGE": "ROLLBACK", "UNKNOW": "UNKNOWN"},
    "ConsumeFrom": {
        "CONSUME_FROM_LAST_OFFSET": "LAST_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET": "FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP": "TIMESTAMP",
    },
    "ConsumeStatus": {"SUCCESS": "CONSUME_SUCCESS", "SUSPEND_CURRENT_QUEUE_A_MOMENT": "RECONSUME_LATER"},
    "halfmoon": {
        "DefaultMQProducer": "Producer",
        "DefaultMQPushConsumer": "PushConsumer",
        "DefaultLitePullConsumer": "PullConsumer",
        "DefaultMQPullConsumer": "PullConsumer",
        "DefaultMQAdminExt": "Admin",
        "MessageExt": "StoredMessage",
        "ConsumeFromWhere": "ConsumeFrom",
        "ConsumeConcurrentlyStatus": "ConsumeStatus",
        "ConsumeOrderlyStatus": "ConsumeStatus",
        "MessageListenerConcurrently": "PushConsumer and its on_message(function)",
        "MessageListenerOrderly": "PushConsumer(orderly=True) and its on_message(function)",
        "TransactionListener": "TransactionProducer(listener=…), which takes an object with execute and check",
        "MessageSelector": "PushConsumer and its subscribe(topic, sql=…)",
        "SelectMessageQueueByHash": "select_by_hash",
        "MQClientException": "HalfmoonError",
        "MQBrokerException": "BrokerError",
        "RemotingException": "NetworkError",
    },
}
"""As `OLD_NAMES`, of RocketMQ's Java client."""


def old_name(owner: str, name: str) -> str:
    """Return what to say of a name that another client has, of a class or module of Halfmoon; empty for any other."""
    for client, names in (("rocketmq-client-python", OLD_NAMES), ("RocketMQ's Java client", JAVA_NAMES)):
        if new := names.get(owner.removeprefix("Async"), {}).get(name):
            return f"{name} of {client} is {new}"
    return ""


class OldName:
    """Attribute of values that is not there, and says so: unlike ``__getattr__`` it costs the other attributes nothing."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(self._text)


def mark_old_names(cls: type[Any]) -> None:
    """Have the attributes that a class had by other names raise AttributeError with the names that they have."""
    for old in OLD_NAMES[cls.__name__]:
        setattr(cls, old, OldName(f"{cls.__name__} has no attribute {old!r}: {old_name(cls.__name__, old)}"))


class HintingEnum(EnumType):
    """Type of an enumeration whose members have other names in other clients."""

    if not TYPE_CHECKING:  # to a type checker every member would be there

        def __getattr__(cls, name: str) -> Any:
            member = None if name.startswith("_") else cls._member_map_.get(name)  # Python 3.11 looks members up here
            if member is None:
                told = old_name(cls.__name__, name)
                raise AttributeError(f"{cls.__name__} has no member {name!r}" + (f": {told}" if told else ""))
            return member
