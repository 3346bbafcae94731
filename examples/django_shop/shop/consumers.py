"""Consumers of paid orders. Run by ``python manage.py halfmoon_consume``."""

from __future__ import annotations

from django.core.mail import send_mail

from halfmoon.events import ConsumerContext, Event, on
from shop.models import Mail, Order


@on("S_mail", "TP_ORDER", "EC_PAID", dedup="default")
def thank(event: Event, context: ConsumerContext) -> None:
    """Send thanks for an order. Runs in a transaction that also records the event, so that a second delivery has no effect."""
    order = Order.objects.get(pk=event.payload["order_id"])
    Mail.objects.create(order=order, event_id=event.id)
    send_mail(f"Your book: {order.book}", f"Thank you for order {order.pk}.", "shop@localhost", [order.email])


@on("S_stock", "TP_ORDER", "EC_PAID")
def reorder(event: Event, context: ConsumerContext) -> None:
    """Have the book printed again; another group, which gets every event too."""
    order = Order.objects.filter(pk=event.payload["order_id"]).first()
    if order is None:
        context.set_rollback_only("the order is not there yet")
        return
    print(f"one more {order.book}, please", flush=True)
