"""The shop's pages."""

from __future__ import annotations

import json

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from shop.models import Order
from shop.placing import PaymentRefused, place


@require_http_methods(["GET", "POST"])
def home(request: HttpRequest) -> HttpResponse:
    """Show the form and the list of orders."""
    said = ""
    if request.method == "POST":
        try:
            place(request.POST.get("book", "")[:100], request.POST.get("email", "")[:254], request.POST.get("card", ""))
            return redirect("home")
        except PaymentRefused as exc:
            said = str(exc)
    orders = Order.objects.order_by("-pk").prefetch_related("mails")[:50]
    return render(request, "shop/home.html", {"orders": orders, "said": said}, status=402 if said else 200)


@csrf_exempt
@require_http_methods(["GET", "POST"])
def orders(request: HttpRequest) -> HttpResponse:
    """JSON interface for programs."""
    if request.method == "GET":
        found = Order.objects.order_by("pk").prefetch_related("mails")[:1000]
        return JsonResponse({"orders": [{"id": one.pk, "book": one.book, "mails": len(one.mails.all())} for one in found]})
    try:
        said = json.loads(request.body)
        order = place(str(said["book"])[:100], str(said["email"])[:254], str(said["card"]))
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "send book, email and card as JSON"}, status=400)
    except PaymentRefused as exc:
        return JsonResponse({"error": str(exc)}, status=402)
    return JsonResponse({"id": order.pk}, status=201)
