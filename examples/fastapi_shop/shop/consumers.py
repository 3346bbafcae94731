"""What the shop does when something happened."""

from __future__ import annotations

from halfmoon.events import ConsumerContext, Event, on
from shop.database import Mail, Session
from shop.events import Placed


@on("S_mail", "TP_ORDER", "EC_PLACED", dedup=Session, payload=Placed)
async def write_mail(event: Event, context: ConsumerContext) -> None:
    """Write a mail for each order, once: the mail and the note that the event was processed are one transaction."""
    placed: Placed = event.payload
    context.session.add(Mail(order_id=placed.order_id, text=f"Dear {placed.customer}, {placed.title} is yours."))
