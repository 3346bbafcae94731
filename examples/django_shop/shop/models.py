"""Models of the shop."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A paid order."""

    book = models.CharField(max_length=100)
    email = models.EmailField()
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.book}"


class Mail(models.Model):
    """A mail sent for an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="mails")
    event_id = models.CharField(max_length=64)
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"mail for {self.order}"
