"""Command ``manage.py halfmoon_consume``: runs the project's consumers."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from halfmoon.errors import HalfmoonError
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.running import run
from halfmoon.events.django.configuration import configuration, named
from halfmoon.events.django.databases import fresh_connections
from halfmoon.events.django.project import project


class Command(BaseCommand):
    """Run of the consumers until SIGTERM or Ctrl-C; functions that run are finished. It answers brokers' checks, too."""

    help = "Run the consumers of HALFMOON['CONSUMERS'] until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the modules, in place of those of the settings."""
        parser.add_argument("modules", nargs="*", help="modules with @on functions, instead of those in the settings")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run. Raises CommandError."""
        configured = configuration()
        modules = options["modules"] or list(configured.consumers)
        if not modules:
            raise CommandError('name modules with @on functions, or write HALFMOON["CONSUMERS"] = ["shop.consumers"]')
        given = {"nameserver": configured.nameserver, "codecs": named(configured.codecs), "around": fresh_connections}
        try:
            with project.publisher():
                run(*modules, ready=self._ready, **{**given, **configured.consumer_settings})
        except HalfmoonError as exc:
            raise CommandError(str(exc)) from exc

    def _ready(self, consumers: Consumers) -> None:
        self.stdout.write(f"consuming as {', '.join(consumers.groups)}")
        self.stdout.flush()
