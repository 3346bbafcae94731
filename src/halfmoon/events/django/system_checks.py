"""What Django's system checks say of ``HALFMOON``: each error names the place and the remedy. Opens nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from halfmoon.errors import HalfmoonError
from halfmoon.events.django.configuration import SETTING, read

ID = "halfmoon_events.E001"
ID_PUBLISHER = "halfmoon_events.E002"


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:
    """Return what is wrong with the settings."""
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
