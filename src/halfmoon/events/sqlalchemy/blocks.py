"""Transactions of any session or engine of SQLAlchemy that have something to commit: for `other_blocks`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.session import SessionTransactionOrigin

from halfmoon.events.databases.other_blocks import OpenBlock, find_blocks_with
from halfmoon.events.databases.unused_sessions import is_of, task_here
from halfmoon.events.sqlalchemy.engines import engine_of
from halfmoon.events.sqlalchemy.session_lifecycle import kept_with

BLOCKS_MAX = 100
"""Blocks remembered in one context. Older ones are forgotten, and do not count."""

_FLUSHED = "halfmoon_flushed"
_Noted = tuple["weakref.ref[SessionTransaction | Connection]", Any]
"""Transaction that began in a context, and the asyncio task in which it did."""

_noted: ContextVar[tuple[_Noted, ...]] = ContextVar("halfmoon_sqlalchemy_blocks", default=())


def watch_blocks() -> None:
    """Note the transactions that begin from now on, so that those of a context that have something to commit are found."""
    if not event.contains(Engine, "begin", _note):
        event.listen(Session, "after_transaction_create", _created)
        event.listen(Session, "before_flush", _flushed)
        event.listen(Engine, "begin", _note)
        find_blocks_with(_found)


def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _note(transaction)


def _flushed(session: Session, *_: Any) -> None:
    if (transaction := session.get_transaction()) is not None:
        kept_with(session)[_FLUSHED] = weakref.ref(transaction)


def _note(begun: SessionTransaction | Connection) -> None:
    known = (noted for noted in _noted.get() if (other := noted[0]()) is not None and other is not begun and not _ended(other))
    _noted.set((*known, (weakref.ref(begun), task_here()))[-BLOCKS_MAX:])


def _found() -> Iterator[OpenBlock]:
    here = task_here()
    for reference, task in _noted.get():
        if (begun := reference()) is not None and is_of(task, here) and (name := _name(begun)):
            yield OpenBlock(reference, name)


def _ended(begun: SessionTransaction | Connection) -> bool:
    return begun.session is None if isinstance(begun, SessionTransaction) else not begun.in_transaction()


def _name(begun: SessionTransaction | Connection) -> str:
    """Return the name of a transaction; empty where it has ended, or nothing says that it has something to commit."""
    if isinstance(begun, Connection):
        in_block = getattr(begun, "_trans_context_manager", None) is not None  # `with engine.begin():`; a statement sets none
        return f"begin() of the engine {begun.engine.url!r}" if in_block and begun.in_transaction() else ""
    if not begun.is_active:  # hooks after its commit may publish
        return ""
    session = begun.session
    flushed = kept_with(session).get(_FLUSHED)
    writes = session.new or session.dirty or session.deleted or (flushed is not None and flushed() is begun)
    if not writes and begun.origin is not SessionTransactionOrigin.BEGIN:
        return ""
    engine = engine_of(session.bind)
    return f"the transaction of a {type(session).__name__}" + (f" of the engine {engine.url!r}" if engine is not None else "")
