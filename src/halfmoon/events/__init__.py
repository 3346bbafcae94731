"""Events bound to the local transaction: publish inside your database transaction, and consumers get the event if and only if it
committed.

The public names; they are loaded when first used. Databases stand in modules of their own: `halfmoon.events.sqlalchemy`,
`halfmoon.events.django`, `halfmoon.events.dbapi`; `halfmoon.events.testing` is for your tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from halfmoon.events.consuming.on import on

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
    from halfmoon.events.publishing.publisher import Publisher
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
    "publishing.publisher": "Publisher",
    "consuming.running": "run run_async",
}
_PLACE_OF = {name: f"halfmoon.events.{place}" for place, names in _PLACES.items() for name in names.split()}

__all__ = [
    "AmbiguousTransaction",
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
    "local_transaction",
    "on",
    "register",
    "run",
    "run_async",
    "suspend",
    "transaction_active",
    "watch",
]


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module 'halfmoon.events' has no attribute {name!r}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return list(__all__)
