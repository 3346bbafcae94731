"""Views of these tests: orders that are placed over HTTP."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from halfmoon.events.django import events
from tests.events.django.orders.models import Order


def _place(number: str) -> None:
    with transaction.atomic():
        Order.objects.create(number=number)
        events.publish("TP_ORDER", "EC_PAID", {"number": number}, transactional=True)


def place(request: HttpRequest, number: str) -> HttpResponse:
    """Place an order; the request is its transaction where ATOMIC_REQUESTS says so."""
    _place(number)
    if "fail" in request.GET:
        raise RuntimeError("after the publish")
    return HttpResponse("placed")


async def place_async(request: HttpRequest, number: str) -> HttpResponse:
    """Place an order from an event loop."""
    await sync_to_async(_place)(number)
    await events.publish_async("TP_ORDER", "EC_SEEN", {"number": number}, transactional=False)
    return HttpResponse("placed")
