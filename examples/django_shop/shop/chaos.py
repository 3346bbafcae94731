"""Deliberate failure, with SHOP_CHAOS=1: the order of a book called CRASH kills the process right after its commit.

The second phase is then never sent. The event still arrives, once a broker asks a living process of the shop.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from shop.models import Order


@receiver(post_save, sender=Order)
def die_after_the_commit(instance: Order, **_: Any) -> None:
    """Kill this process between the commit and the second phase: the commit calls this function first."""
    if instance.book == "CRASH":
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
