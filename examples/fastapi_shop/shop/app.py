"""The shop on the web. Publisher and consumers live as long as the application does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from halfmoon.events import BoundEvents, Consumers
from shop import consumers
from shop.database import Base, Book, Mail, Order, Session, engine
from shop.events import NAMESERVER, Placed, events


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Create the tables, then publish and consume until the application ends."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    listening = Consumers(consumers, nameserver=NAMESERVER, route_refresh_ms=1_000)
    await asyncio.to_thread(events.create_tables)
    await asyncio.to_thread(listening.create_tables)
    async with events, listening:
        yield


app = FastAPI(lifespan=lifespan)


async def opened() -> AsyncIterator[AsyncSession]:
    """Lend a route a session, whose transaction the route commits."""
    async with Session() as session:
        yield session


Opened = Annotated[AsyncSession, Depends(opened)]


def bound(session: Opened) -> BoundEvents:
    """Lend a route the events bound to the transaction of its session."""
    return events.bound_to(session)


class Wish(BaseModel):
    """A customer's order."""

    title: str
    customer: str


class Delivery(BaseModel):
    """Delivered copies of a title."""

    title: str
    stock: int


@app.post("/orders", status_code=201)
async def order(wish: Wish, session: Opened, events: Annotated[BoundEvents, Depends(bound)]) -> dict[str, int | str]:
    """Sell a copy. The event is part of the transaction: consumers get it if and only if the order is in the database."""
    async with session.begin():
        on_shelf = update(Book).where(Book.title == wish.title, Book.stock > 0)
        if not (await session.execute(on_shelf.values(stock=Book.stock - 1).returning(Book.stock))).all():
            raise HTTPException(409, f"{wish.title} is sold out")
        new = Order(title=wish.title, customer=wish.customer)
        session.add(new)
        await session.flush()
        published = await events.publish_async(Placed(order_id=new.id, title=new.title, customer=new.customer))
    return {"order_id": new.id, "event_id": published.event_id}


@app.put("/books")
async def deliver(delivery: Delivery) -> Delivery:
    """Add copies to the stock."""
    async with Session.begin() as session:
        await session.merge(Book(title=delivery.title, stock=delivery.stock))
    return delivery


@app.get("/mails")
async def mails() -> list[dict[str, int | str]]:
    """Return the mails written so far."""
    async with Session() as session:
        return [{"order_id": mail.order_id, "text": mail.text} for mail in await session.scalars(select(Mail).order_by(Mail.id))]
