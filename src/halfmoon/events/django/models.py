"""The tables of events as models: for admin pages and queries. Rows are written by `halfmoon.events`, never through these.

The migration makes the tables that `events.tables` describes, with its statements; so the models say nothing of indexes.
"""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

from django.db import models


class _EventRow(models.Model):
    """A row with a time in ms since the epoch, in the column that ``time_column`` names; called as ``name_column`` says."""

    time_column: ClassVar[str] = "created_ms"
    name_column: ClassVar[str] = "event_id"

    class Meta:
        abstract = True

    @property
    def time(self) -> datetime.datetime:
        """Time at which the row was written."""
        return datetime.datetime.fromtimestamp(getattr(self, self.time_column) / 1000, tz=datetime.UTC)

    def __str__(self) -> str:
        return str(getattr(self, self.name_column))


class Token(_EventRow):
    """One transactional event: 1 when its transaction wrote the row, 0 when a check settled that it never commits."""

    name_column = "id"

    id: models.CharField[Any, str] = models.CharField("event", max_length=64, primary_key=True)
    state: models.BigIntegerField[Any, int] = models.BigIntegerField()
    created_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()

    class Meta:
        db_table = "halfmoon_event"
        verbose_name = "token of a transactional event"
        verbose_name_plural = "tokens of transactional events"


class _Event(_EventRow):
    """One event that a relay sends."""

    seq: models.BigAutoField[Any, int] = models.BigAutoField(primary_key=True)
    event_id: models.CharField[Any, str] = models.CharField("event", max_length=64)
    topic: models.CharField[Any, str] = models.CharField(max_length=127)
    order_key: models.BigIntegerField[Any, int] = models.BigIntegerField()
    message: models.BinaryField[Any, bytes] = models.BinaryField()
    created_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()

    class Meta:
        abstract = True


class OutboxEvent(_Event):
    """One event that waits for a relay."""

    attempts: models.BigIntegerField[Any, int] = models.BigIntegerField()
    next_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()
    error: models.CharField[Any, str] = models.CharField(max_length=500)
    claimed_by: models.CharField[Any, str] = models.CharField(max_length=100)
    claimed_until_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()

    class Meta:
        db_table = "halfmoon_outbox"
        verbose_name = "event in the outbox"
        verbose_name_plural = "events in the outbox"


class SentEvent(_Event):
    """One event of the outbox that was sent and is kept for a while."""

    time_column = "sent_ms"

    sent_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()
    message_id: models.CharField[Any, str] = models.CharField("message", max_length=64)

    class Meta:
        db_table = "halfmoon_sent"
        verbose_name = "event that was sent"
        verbose_name_plural = "events that were sent"


class Consumed(_EventRow):
    """One event that a group has consumed.

    The key of the table is group, topic and event together. Django before 5.2 knows no such keys: here the event stands for all
    three, and ``get(pk=…)`` may find several.
    """

    time_column = "consumed_ms"

    consumer_group: models.CharField[Any, str] = models.CharField("group", max_length=255)
    topic: models.CharField[Any, str] = models.CharField(max_length=127)
    event_id: models.CharField[Any, str] = models.CharField("event", max_length=64, primary_key=True)
    consumed_ms: models.BigIntegerField[Any, int] = models.BigIntegerField()

    class Meta:
        db_table = "halfmoon_consumed"
        verbose_name = "consumed event"

    def __str__(self) -> str:
        return f"{self.event_id} by {self.consumer_group}"
