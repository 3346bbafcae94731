"""Consumers of the shop's events."""

from __future__ import annotations

from halfmoon.events import ConsumerContext, on
from shop.database import Mail, Session
from shop.events import Placed


@on(Placed, group="S_mail", dedup=Session)
async def write_mail(placed: Placed, context: ConsumerContext) -> None:
    """Write a mail for each order, once: the mail and the record of the processed event are one transaction."""
    context.session.add(Mail(order_id=placed.order_id, text=f"Dear {placed.customer}, {placed.title} is yours."))
