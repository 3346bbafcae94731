"""Command ``manage.py halfmoon_status``: shows waiting and failed events."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from halfmoon.errors import HalfmoonError
from halfmoon.events.checks.tokens import PRESENT, TOMBSTONE
from halfmoon.events.databases.database import Busy, Rows
from halfmoon.events.django.configuration import configuration
from halfmoon.events.django.databases import provider
from halfmoon.events.django.pending import pending
from halfmoon.events.outbox import status as outbox_status
from halfmoon.events.tables import CONSUMED, TOKENS


class Command(BaseCommand):
    """Report of the tables of events and the half messages that wait.

    Exit code 1 when events failed or half messages expired, or when the brokers do not answer.
    """

    help = "Show what waits and what failed: outbox, half messages, tokens. Exit code 1 for something to look at."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option for JSON."""
        parser.add_argument("--json", action="store_true", help="write one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask and write. Raises CommandError when the database does not answer or has not the tables."""
        configured = configuration()
        database = provider(configured.database)
        try:
            backlog = outbox_status.backlog(database)
            with database.fresh() as rows:
                facts: dict[str, Any] = {
                    "group": configured.group,
                    "database": configured.database,
                    "outbox": {name: getattr(backlog, name) for name in backlog.__struct_fields__},
                    "tokens": _count(rows, f"SELECT COUNT(*) FROM {TOKENS.name} WHERE state = {PRESENT}"),
                    "tombstones": _count(rows, f"SELECT COUNT(*) FROM {TOKENS.name} WHERE state = {TOMBSTONE}"),
                    "consumed": _count(rows, f"SELECT COUNT(*) FROM {CONSUMED.name}"),
                }
        except (HalfmoonError, Busy) as exc:
            raise CommandError(str(exc)) from exc
        waiting = pending(configured)
        facts["half_messages"] = len(waiting.halves)
        facts["oldest_half_s"] = max((half.age_s for half in waiting.halves), default=0)
        facts["expired"] = len(waiting.expired)
        facts["brokers"] = waiting.error or "ok"
        self._write(facts, as_json=options["json"])
        if backlog.failed or waiting.expired or (waiting.error and configured.nameserver):
            sys.exit(1)

    def _write(self, facts: dict[str, Any], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(facts))
            return
        for name, value in facts.items():
            text = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
            self.stdout.write(f"{name.replace('_', ' '):<16} {text}")


def _count(rows: Rows, statement: str) -> int:
    return int(rows.all(statement)[0][0])
