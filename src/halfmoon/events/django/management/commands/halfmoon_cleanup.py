"""Command ``manage.py halfmoon_cleanup``: removes rows that are not needed any more."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from halfmoon.errors import HalfmoonError
from halfmoon.events import dedup
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy
from halfmoon.events.django.configuration import configuration
from halfmoon.events.django.databases import provider

DAY_S = 86_400
DAYS = tokens.KEEP_MS // 1000 // DAY_S


class Command(BaseCommand):
    """Removal of old tokens and ids of consumed events, in small steps. Publishers and consumers do so by themselves, hourly."""

    help = f"Remove tokens and ids of consumed events that are older than {DAYS} days."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option for the age."""
        parser.add_argument("--days", type=int, default=DAYS, help=f"days to keep; default and minimum: {DAYS}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Remove. Raises CommandError."""
        if options["days"] < DAYS:
            raise CommandError(f"--days {options['days']}: checks rely on the tokens of {DAYS} days; keep at least {DAYS}")
        database, now_ms = provider(configuration().database), time.time_ns() // 1_000_000
        try:
            removed = tokens.purge(database, now_ms, keep_ms=options["days"] * DAY_S * 1000)
            forgotten = dedup.purge(database, now_ms, keep_s=options["days"] * DAY_S)
        except (HalfmoonError, Busy) as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"removed {removed} tokens and {forgotten} ids of consumed events")
