"""The Django app: its name, its system checks, and the steps of the project's start."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.signals import request_started, setting_changed
from django.db import connections

from halfmoon.errors import HalfmoonError
from halfmoon.events.django.configuration import SETTING, read
from halfmoon.events.django.databases import provider
from halfmoon.events.django.project import OpenOnRequest, project, settings_changed

ID = "halfmoon_events.E001"
ID_PUBLISHER = "halfmoon_events.E002"


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


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """Return an error for each wrong setting of ``HALFMOON``, with its place and the remedy. Opens nothing."""
    configured, problems = read(getattr(settings, SETTING, None))
    if problems:
        return [
            checks.Error(f"{problem.place}: {problem.what}.", hint=f"{problem.remedy}.", obj=SETTING, id=ID) for problem in problems
        ]
    try:
        configured.publisher()
    except HalfmoonError as exc:
        return [checks.Error(f"{SETTING}: {exc}", hint="See halfmoon.events.Publisher.", obj=SETTING, id=ID_PUBLISHER)]
    except TypeError as exc:
        return [checks.Error(f'{SETTING}["SETTINGS"]: {exc}', hint="See TransactionSettings.", obj=SETTING, id=ID_PUBLISHER)]
    return []
