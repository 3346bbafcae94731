"""Command ``manage.py halfmoon_relay``: sends the events of the project's outbox."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from halfmoon.errors import HalfmoonError
from halfmoon.events.checks.tokens import check_table
from halfmoon.events.django.configuration import configuration
from halfmoon.events.django.project import project
from halfmoon.events.outbox.relay import Relay
from halfmoon.shown.texts import count_text

LOOK_S = 0.2


class Command(BaseCommand):
    """Relay of the outbox until SIGTERM or Ctrl-C; the batch in hand is finished. Several may run side by side."""

    help = "Send the events of the outbox until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the relay."""
        parser.add_argument("--until-empty", action="store_true", help="exit when the outbox is empty")
        parser.add_argument("--poll-ms", type=int, default=None, help="how often to look for rows, ms; default: see HALFMOON")
        parser.add_argument(
            "--attempts-max",
            type=int,
            default=None,
            help="tries of an event before it is listed as failed; default: see HALFMOON",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run. Raises CommandError."""
        ended = threading.Event()
        try:
            with _signals(ended), project.made(relay=False) as publisher:
                given = {name: options[name] for name in ("poll_ms", "attempts_max") if options[name] is not None}
                made = configuration().relay_settings(**given)
                for table in made.tables:
                    check_table(publisher.provider, table)  # one that is missing is an error at once
                with Relay(publisher.provider, publisher.transport, made) as relay:
                    self.stdout.write(f"relay {relay.name} sends as {publisher.group}")
                    self.stdout.flush()
                    while not ended.wait(LOOK_S):
                        if options["until_empty"] and self._is_empty(relay):
                            break
                self.stdout.write(f"sent {count_text(relay.figures().sent, 'event')}")
        except HalfmoonError as exc:
            raise CommandError(str(exc)) from exc

    def _is_empty(self, relay: Relay) -> bool:
        return relay.backlog().backlog == 0


@contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """Have signals set ``ended`` for the block. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
