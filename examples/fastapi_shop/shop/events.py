"""Events of the shop, and their publisher."""

from __future__ import annotations

import os

from pydantic import BaseModel

from halfmoon.events import Publisher, event
from shop.database import Session

NAMESERVER = os.environ.get("SHOP_NAMESERVER", "127.0.0.1:9876")

events = Publisher(group="P_shop", nameserver=NAMESERVER, session=Session, topics=["TP_ORDER"])


@event("TP_ORDER", "EC_PLACED", key="order_id")
class Placed(BaseModel):
    """An order was placed."""

    order_id: int
    title: str
    customer: str
