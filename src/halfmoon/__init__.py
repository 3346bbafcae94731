"""Halfmoon: transactional messaging for Python on the RocketMQ protocol.

The public names of the client stand here; they are loaded when first used, so that servers and tools start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from halfmoon.logs import set_up as _set_up_logs

if TYPE_CHECKING:
    from halfmoon.client.admin import Admin, AdminSettings, AsyncAdmin
    from halfmoon.client.aio import (
        AsyncProducer,
        AsyncPullConsumer,
        AsyncPushConsumer,
        ConsumeContext,
        ProducerSettings,
        PullSettings,
        PushSettings,
        select_by_hash,
    )
    from halfmoon.client.aio_transaction import AsyncHalf, AsyncTransactionProducer, TransactionSettings
    from halfmoon.client.sync import Producer, PullConsumer, PushConsumer
    from halfmoon.client.sync_transaction import Half, TransactionProducer
    from halfmoon.errors import (
        BrokerError,
        HalfmoonError,
        HalfRolledBack,
        NetworkError,
        NoNameServer,
        NoRoute,
        SendFailed,
        UsageError,
    )
    from halfmoon.model import (
        ConsumeFrom,
        ConsumeStatus,
        DeadLetter,
        LocalTransactionState,
        Message,
        MessageModel,
        MessageQueue,
        SendResult,
        SendStatus,
        StoredMessage,
        TransactionSendResult,
    )
    from halfmoon.results import GroupTrace, MessageTrace, OffsetMove, TraceEvent

_PLACES = {
    "halfmoon.client.admin": "Admin AdminSettings AsyncAdmin",
    "halfmoon.client.aio": "AsyncProducer AsyncPullConsumer AsyncPushConsumer ConsumeContext select_by_hash "
    "ProducerSettings PullSettings PushSettings",
    "halfmoon.client.aio_transaction": "AsyncHalf AsyncTransactionProducer TransactionSettings",
    "halfmoon.client.sync": "Producer PullConsumer PushConsumer",
    "halfmoon.client.sync_transaction": "Half TransactionProducer",
    "halfmoon.errors": "BrokerError HalfRolledBack HalfmoonError NetworkError NoNameServer NoRoute SendFailed UsageError",
    "halfmoon.results": "GroupTrace MessageTrace OffsetMove TraceEvent",
    "halfmoon.model": "ConsumeFrom ConsumeStatus DeadLetter LocalTransactionState Message MessageModel MessageQueue "
    "SendResult SendStatus StoredMessage TransactionSendResult",
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names.split()}

__version__ = "0.1.0"

_set_up_logs()

__all__ = [
    "Admin",
    "AdminSettings",
    "AsyncAdmin",
    "AsyncHalf",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
    "BrokerError",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeStatus",
    "DeadLetter",
    "GroupTrace",
    "Half",
    "HalfRolledBack",
    "HalfmoonError",
    "LocalTransactionState",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageTrace",
    "NetworkError",
    "NoNameServer",
    "NoRoute",
    "OffsetMove",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullSettings",
    "PushConsumer",
    "PushSettings",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "StoredMessage",
    "TraceEvent",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionSettings",
    "UsageError",
    "select_by_hash",
]


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module 'halfmoon' has no attribute {name!r}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
