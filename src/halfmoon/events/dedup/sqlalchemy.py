"""No effect twice, in a database of SQLAlchemy: the consumer's function gets the Session in whose transaction the note was made."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from halfmoon.events.dedup.ledger import AsyncTransactionLedger, Ledger, TransactionLedger
from halfmoon.events.sqlalchemy import SessionProvider, begin, begin_async, provider


def ledger(dedup: Any) -> Ledger | None:
    """Return the ledger of something of SQLAlchemy; None for what is none of the kinds it may be."""
    if isinstance(dedup, SessionProvider):
        dedup = dedup.made_by
    dedup = getattr(dedup, "session_factory", dedup)  # of a scoped session
    if isinstance(dedup, sessionmaker):
        return TransactionLedger(provider(dedup), dedup.begin)
    if isinstance(dedup, Engine):
        return TransactionLedger(provider(dedup), lambda: begin(dedup))
    if hasattr(dedup, "sync_engine"):
        return AsyncTransactionLedger(provider(dedup), lambda: begin_async(dedup))
    if hasattr(getattr(dedup, "class_", None), "sync_session_class"):
        return AsyncTransactionLedger(provider(dedup), dedup.begin)
    return None
