"""Events bound to the transactions of a Django project: an app, its settings, and the publisher made from them.

::

    INSTALLED_APPS += ["halfmoon.events.django"]
    HALFMOON = {"GROUP": "P_shop", "NAMESERVER": "127.0.0.1:9876", "CONSUMERS": ["shop.consumers"]}

    from halfmoon.events.django import events

    with transaction.atomic():
        order.save()
        events.publish("TP_ORDER", "EC_PAID", {"order_id": order.pk})

`events` is the publisher of the project; it is made, and connects, when a web process starts or when it is first used. `atomic` and
`provider` serve who makes publishers by hand.
"""

from __future__ import annotations

from halfmoon.events.django.atomic_block import atomic
from halfmoon.events.django.databases import DjangoProvider, provider
from halfmoon.events.django.project import events

__all__ = ["DjangoProvider", "atomic", "events", "provider"]
