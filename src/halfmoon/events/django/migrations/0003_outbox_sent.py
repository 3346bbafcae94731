"""Events of the outbox that were sent can be kept for a while."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from halfmoon.events.django.migrating import MakeTables
from halfmoon.events.tables import SENT


class Migration(migrations.Migration):
    """The table of events that were sent."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("halfmoon_events", "0002_consumed_topic")]
    operations: ClassVar[list[Any]] = [
        migrations.SeparateDatabaseAndState(
            database_operations=[MakeTables((SENT,))],
            state_operations=[
                migrations.CreateModel(
                    name="SentEvent",
                    fields=[
                        ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                        ("event_id", models.CharField(max_length=64, verbose_name="event")),
                        ("topic", models.CharField(max_length=127)),
                        ("order_key", models.BigIntegerField()),
                        ("message", models.BinaryField()),
                        ("created_ms", models.BigIntegerField()),
                        ("sent_ms", models.BigIntegerField()),
                        ("message_id", models.CharField(max_length=64, verbose_name="message")),
                    ],
                    options={
                        "db_table": "halfmoon_sent",
                        "verbose_name": "event that was sent",
                        "verbose_name_plural": "events that were sent",
                    },
                ),
            ],
        )
    ]
