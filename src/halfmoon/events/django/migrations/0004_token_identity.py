"""Each table of tokens has a random id: half messages carry it, so that no other database is asked about their rows."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from halfmoon.events.django.migrating import UpdateTable
from halfmoon.events.tables import TOKENS


class Migration(migrations.Migration):
    """The table of tokens."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("halfmoon_events", "0003_outbox_sent")]
    operations: ClassVar[list[Any]] = [UpdateTable(TOKENS)]
