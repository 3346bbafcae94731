"""A shop's tables in a real database, with a sessionmaker whose transactions are watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, ForeignKey, ForeignKeyConstraint, create_engine, event, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from halfmoon.events.checks import tokens
from halfmoon.events.sqlalchemy import SessionProvider, provider
from tests.events.hearing import Heard


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Line(Base):
    """Its order is looked for at the commit, not before: so a commit itself can be refused."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id", deferrable=True, initially="DEFERRED"))


@compiles(ForeignKeyConstraint, "mysql")
def _at_once(constraint: ForeignKeyConstraint, compiler: Any, **options: Any) -> str:
    """MariaDB knows no deferred constraints: there the statement is refused, and not the commit."""
    return str(compiler.visit_foreign_key_constraint(constraint, **options)).partition(" DEFERRABLE")[0]


class Shop:
    """A database with a sessionmaker and its provider."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.Session = sessionmaker(engine)
        found = provider(self.Session)
        assert isinstance(found, SessionProvider)
        self.provider = found
        Base.metadata.create_all(engine)
        tokens.create_tables(found)

    def listen(self, handle: Any = None, raises: str = "") -> Heard:
        local = self.provider.current(handle)
        assert local is not None
        local.register(heard := Heard(raises))
        return heard

    def ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(select(Order.id)).scalars())


def engine_of(url: str) -> Engine:
    engine = create_engine(url)
    if url.startswith("sqlite"):
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    return engine


@contextmanager
def opened(url: str) -> Iterator[Shop]:
    """A shop in an empty database, for a block."""
    engine = engine_of(url)
    yield Shop(engine)
    engine.dispose()
