"""Orders, whose number is unique, and lines, whose order is looked at when the transaction commits."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.CharField(max_length=40, unique=True)


class Line(models.Model):
    """A line of an order. Its order may be missing until the commit, which then refuses it."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
