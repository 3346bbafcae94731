"""Makes the tables of `halfmoon.events.tables`, with its own statements; tables that are there already are kept."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from halfmoon.events.django.migrating import MakeTables
from halfmoon.events.tables import CONSUMED, OUTBOX, TOKENS


class Migration(migrations.Migration):
    """The three tables."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.SeparateDatabaseAndState(
            database_operations=[MakeTables((TOKENS, OUTBOX, CONSUMED))],
            state_operations=[
                migrations.CreateModel(
                    name="Token",
                    fields=[
                        ("id", models.CharField(max_length=64, primary_key=True, serialize=False, verbose_name="event")),
                        ("state", models.BigIntegerField()),
                        ("created_ms", models.BigIntegerField()),
                    ],
                    options={
                        "db_table": "halfmoon_event",
                        "verbose_name": "token of a transactional event",
                        "verbose_name_plural": "tokens of transactional events",
                    },
                ),
                migrations.CreateModel(
                    name="OutboxEvent",
                    fields=[
                        ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                        ("event_id", models.CharField(max_length=64, verbose_name="event")),
                        ("topic", models.CharField(max_length=127)),
                        ("order_key", models.BigIntegerField()),
                        ("message", models.BinaryField()),
                        ("created_ms", models.BigIntegerField()),
                        ("attempts", models.BigIntegerField()),
                        ("next_ms", models.BigIntegerField()),
                        ("error", models.CharField(max_length=500)),
                        ("claimed_by", models.CharField(max_length=100)),
                        ("claimed_until_ms", models.BigIntegerField()),
                    ],
                    options={
                        "db_table": "halfmoon_outbox",
                        "verbose_name": "event in the outbox",
                        "verbose_name_plural": "events in the outbox",
                    },
                ),
                migrations.CreateModel(
                    name="Consumed",
                    fields=[
                        ("consumer_group", models.CharField(max_length=255, verbose_name="group")),
                        ("event_id", models.CharField(max_length=64, primary_key=True, serialize=False, verbose_name="event")),
                        ("consumed_ms", models.BigIntegerField()),
                    ],
                    options={"db_table": "halfmoon_consumed", "verbose_name": "consumed event"},
                ),
            ],
        )
    ]
