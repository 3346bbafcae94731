"""Halfmoon: transactional messaging for Python on the RocketMQ protocol.

The public names of the client are here; they are loaded when first used, so that servers and tools start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmoon.lazy import lazy as _lazy
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
    from halfmoon.client.spans import processing
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
    from halfmoon.results import GroupTrace, MessageTrace, OffsetMove, TopicOverview, TraceEvent

_PLACES = {
    "client.admin": "Admin AdminSettings AsyncAdmin",
    "client.aio": "AsyncProducer AsyncPullConsumer AsyncPushConsumer ConsumeContext select_by_hash "
    "ProducerSettings PullSettings PushSettings",
    "client.aio_transaction": "AsyncHalf AsyncTransactionProducer TransactionSettings",
    "client.spans": "processing",
    "client.sync": "Producer PullConsumer PushConsumer",
    "client.sync_transaction": "Half TransactionProducer",
    "errors": "BrokerError HalfRolledBack HalfmoonError NetworkError NoNameServer NoRoute SendFailed UsageError",
    "results": "GroupTrace MessageTrace OffsetMove TopicOverview TraceEvent",
    "model": "ConsumeFrom ConsumeStatus DeadLetter LocalTransactionState Message MessageModel MessageQueue "
    "SendResult SendStatus StoredMessage TransactionSendResult",
}

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
    "TopicOverview",
    "TraceEvent",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionSettings",
    "UsageError",
    "processing",
    "select_by_hash",
]

__getattr__, __dir__ = _lazy(__name__, _PLACES, "__version__", others="halfmoon.model.old_names")
