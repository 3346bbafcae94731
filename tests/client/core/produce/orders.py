"""What tests of sending send, and where to: an order, and two brokers with two queues each."""

from __future__ import annotations

from halfmoon.model import Message
from halfmoon.wire.properties import decode

ORDER = Message("orders", b"paid", tag="A", keys=["k1", "k2"], properties={"who": "me"})
TWO = {"broker-a": 2, "broker-b": 2}


def properties(seen):
    """Return the properties of a message that was sent."""
    return decode(seen.request.properties.encode())
