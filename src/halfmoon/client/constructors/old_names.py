"""Names of rocketmq-client-python 2.0, and what they are here: for errors, and for the page about it."""

from __future__ import annotations

from typing import Any, NoReturn

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
}
"""By class of Halfmoon (asyncio's are like it): the old name of an attribute, and what it is."""


def old_name(cls: type[Any], name: str) -> str:
    """Return what to say of an attribute that a class had by another name; empty for any other."""
    new = OLD_NAMES.get(cls.__name__.removeprefix("Async"), {}).get(name)
    return f"{cls.__name__} has no attribute {name!r}: {name} of rocketmq-client-python is {new}" if new else ""


class OldName:
    """Attribute of values that is not there, and says so: unlike ``__getattr__`` it costs the other attributes nothing."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(self._text)


def mark_old_names(cls: type[Any]) -> None:
    """Have the attributes that a class had by other names raise AttributeError with the names that they have."""
    for old in OLD_NAMES[cls.__name__]:
        setattr(cls, old, OldName(old_name(cls, old)))
