"""The Django app: its name, its checks, and what happens when the project starts."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.signals import request_started, setting_changed
from django.db import connections

from halfmoon.events.django.configuration import SETTING, read
from halfmoon.events.django.databases import provider
from halfmoon.events.django.project import OpenOnRequest, project, settings_changed
from halfmoon.events.django.system_checks import check_settings


class HalfmoonEvents(AppConfig):
    """The app of events. Its tables are made by ``migrate``."""

    name = "halfmoon.events.django"
    label = "halfmoon_events"
    verbose_name = "Events (Halfmoon)"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have settings checked, transactions found, modules with checks imported, and the publisher connected where it serves."""
        checks.register(check_settings)
        setting_changed.connect(settings_changed)
        configured, _ = read(getattr(settings, SETTING, None))
        if configured.database in connections:
            provider(configured.database)  # from now on its transactions are found
        for module in configured.checks:
            import_module(module)
        if configured.start:
            self._open_on_request = OpenOnRequest()  # signals hold their receivers weakly
            request_started.connect(self._open_on_request.request_started)
            project.connect()
