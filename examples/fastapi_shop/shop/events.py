"""What the shop tells others: the publisher, and the payloads of its events."""

from __future__ import annotations

import os

from pydantic import BaseModel

from halfmoon.events import Publisher
from shop.database import Session

NAMESERVER = os.environ.get("SHOP_NAMESERVER", "127.0.0.1:9876")

events = Publisher(group="P_shop", nameserver=NAMESERVER, session=Session, topics=["TP_ORDER"])


class Placed(BaseModel):
    """The payload of TP_ORDER/EC_PLACED."""

    order_id: int
    title: str
    customer: str
