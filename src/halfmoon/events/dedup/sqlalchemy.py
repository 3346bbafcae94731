"""No effect twice, in a database of SQLAlchemy: the consumer's function gets the Session in whose transaction the note was made."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import scoped_session, sessionmaker

from halfmoon.events.dedup.ledger import AsyncTransactionLedger, Ledger, TransactionLedger
from halfmoon.events.sqlalchemy import SessionProvider, begin, begin_async, provider
from halfmoon.events.sqlalchemy.engines import asyncio_module


def ledger(dedup: Any) -> Ledger | None:
    """Return the ledger of something of SQLAlchemy; None for what is none of the kinds it may be."""
    match dedup:
        case scoped_session():
            return ledger(dedup.session_factory)
        case sessionmaker():
            return TransactionLedger(provider(dedup), dedup.begin)
        case Engine():
            return TransactionLedger(provider(dedup), lambda: begin(dedup))
        case SessionProvider() if dedup.made_by is not None:
            return ledger(dedup.made_by)
    if (on_loop := asyncio_module()) is None:
        return None
    match dedup:
        case on_loop.async_scoped_session():
            return ledger(dedup.session_factory)
        case on_loop.async_sessionmaker():
            return AsyncTransactionLedger(provider(dedup), dedup.begin)
        case on_loop.AsyncEngine():
            return AsyncTransactionLedger(provider(dedup), lambda: begin_async(dedup))
    return None
