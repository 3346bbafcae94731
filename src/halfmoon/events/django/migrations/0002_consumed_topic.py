"""The topic belongs to what was consumed: an event's id is its own in its topic."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from halfmoon.events.django.migrating import UpdateTable
from halfmoon.events.tables import CONSUMED


class Migration(migrations.Migration):
    """The table of consumed events."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("halfmoon_events", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.SeparateDatabaseAndState(
            database_operations=[UpdateTable(CONSUMED)],
            state_operations=[
                migrations.AddField("Consumed", "topic", models.CharField(max_length=127, default=""), preserve_default=False)
            ],
        )
    ]
