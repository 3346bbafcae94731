"""Events bound to the local transaction: consumers get an event if and only if the transaction in which it was published committed.

These are the public names; they are loaded when first used. Databases have modules of their own: `halfmoon.events.sqlalchemy`,
`halfmoon.events.django`, `halfmoon.events.dbapi`; `halfmoon.events.testing` is for your tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmoon.events.consuming.on import on
from halfmoon.events.typed import event  # behind `on`: the module of events, whose name it has, is imported by then
from halfmoon.lazy import lazy

if TYPE_CHECKING:
    from halfmoon.events.checks.checks import CheckContext
    from halfmoon.events.consuming.consumers import Consumers
    from halfmoon.events.consuming.context import ConsumerContext
    from halfmoon.events.consuming.running import run, run_async
    from halfmoon.events.encoding.codec import Codecs
    from halfmoon.events.errors import (
        AmbiguousTransaction,
        DeclarationRefused,
        NameRefused,
        NoChecker,
        NoTransaction,
        PayloadRefused,
        PublishedBefore,
        PublishFailed,
        TransactionDoomed,
        TransactionEnded,
    )
    from halfmoon.events.event import Event
    from halfmoon.events.local_block import local_transaction
    from halfmoon.events.outbox.relay import RelaySettings
    from halfmoon.events.publishing.delivery_modes import Published
    from halfmoon.events.publishing.publisher import BoundEvents, Publisher
    from halfmoon.events.transaction import (
        LocalTransaction,
        Status,
        Synchronization,
        register,
        suspend,
        transaction_active,
        watch,
    )

# Modules load when a name is first used: a module of consumers that only declares with `@on` loads no client.
_PLACES = {
    "checks.checks": "CheckContext",
    "encoding.codec": "Codecs",
    "consuming.context": "ConsumerContext",
    "consuming.consumers": "Consumers",
    "transaction": "LocalTransaction Status Synchronization register suspend transaction_active watch",
    "errors": "AmbiguousTransaction DeclarationRefused NameRefused NoChecker NoTransaction PayloadRefused PublishFailed "
    "PublishedBefore TransactionDoomed TransactionEnded",
    "event": "Event",
    "local_block": "local_transaction",
    "outbox.relay": "RelaySettings",
    "publishing.delivery_modes": "Published",
    "publishing.publisher": "BoundEvents Publisher",
    "consuming.running": "run run_async",
}

__all__ = [
    "AmbiguousTransaction",
    "BoundEvents",
    "CheckContext",
    "Codecs",
    "ConsumerContext",
    "Consumers",
    "DeclarationRefused",
    "Event",
    "LocalTransaction",
    "NameRefused",
    "NoChecker",
    "NoTransaction",
    "PayloadRefused",
    "PublishFailed",
    "Published",
    "PublishedBefore",
    "Publisher",
    "RelaySettings",
    "Status",
    "Synchronization",
    "TransactionDoomed",
    "TransactionEnded",
    "event",
    "local_transaction",
    "on",
    "register",
    "run",
    "run_async",
    "suspend",
    "transaction_active",
    "watch",
]

__getattr__, __dir__ = lazy(__name__, _PLACES, "event", "on")
