"""The shop's tables and its sessions."""

from __future__ import annotations

import os

from sqlalchemy import ForeignKey, String
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_async_engine(os.environ.get("SHOP_DATABASE", "sqlite+aiosqlite:///shop.db"))
Session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The tables of the shop."""


class Book(Base):
    """A title, and the number of copies left."""

    __tablename__ = "books"
    title: Mapped[str] = mapped_column(String(100), primary_key=True)
    stock: Mapped[int]


class Order(Base):
    """The sale of one copy."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(ForeignKey("books.title"))
    customer: Mapped[str] = mapped_column(String(100))


class Mail(Base):
    """A mail about an order; in production, it goes to a mail server."""

    __tablename__ = "mails"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    text: Mapped[str] = mapped_column(String(200))
