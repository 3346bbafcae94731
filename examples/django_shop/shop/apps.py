"""The shop as a Django app."""

from __future__ import annotations

import os

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The shop."""

    name = "shop"

    def ready(self) -> None:
        """Load what makes trouble on purpose, if that is asked for."""
        if os.environ.get("SHOP_CHAOS") == "1":
            from shop import chaos  # noqa: F401
