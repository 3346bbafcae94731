"""Placing an order: the row and the event, both or neither."""

from __future__ import annotations

from django.db import transaction

from halfmoon.events.django import events
from shop.models import Order


class PaymentRefused(Exception):
    """The bank does not pay."""


def place(book: str, email: str, card: str) -> Order:
    """Place an order and have it paid. Raises PaymentRefused; then there is no order and no event."""
    with transaction.atomic():
        order = Order.objects.create(book=book, email=email)
        events.publish("TP_ORDER", "EC_PAID", {"order_id": order.pk}, key=f"order-{order.pk}")
        pay(card)
    return order


def pay(card: str) -> None:
    """Ask the bank, which takes every card but one. Raises PaymentRefused."""
    if card == "declined":
        raise PaymentRefused("the bank declines this card")
