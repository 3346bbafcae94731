"""The order service of the demo, a process of its own: each order is a row, then a message that is sent until it is stored."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from halfmoon import HalfmoonError, Message, Producer, SendStatus
from halfmoon.cli.demo.ledgers import ORDERS, PRODUCER_GROUP, TAG, TOPIC, connect

TRY_AGAIN_S = 0.1


def main() -> None:
    """Write orders and publish that they are paid, at a steady pace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--per-second", type=int, required=True)
    given = parser.parse_args()
    database = connect(given.directory, ORDERS)
    with Producer(group=PRODUCER_GROUP, nameserver=given.nameserver, send_timeout_ms=1500) as producer:
        begin = time.monotonic()
        for number in range(given.count):
            time.sleep(max(0.0, begin + number / given.per_second - time.monotonic()))
            order, cents = f"o-{number:06}", 100 + number * 37 % 9900
            database.execute("INSERT INTO orders (id, cents) VALUES (?, ?)", (order, cents))
            promise = publish(producer, order, cents)
            database.execute("UPDATE orders SET acknowledged = ? WHERE id = ?", (promise, order))


def publish(producer: Producer, order: str, cents: int) -> str:
    """Send until a broker has stored the message; return the broker's id of it. A lost answer may store it twice."""
    message = Message(TOPIC, f'{{"order": "{order}", "cents": {cents}}}'.encode(), tag=TAG, keys=[order])
    while True:
        try:
            result = producer.send(message)
            if result.status is SendStatus.SEND_OK:
                return result.offset_msg_id
        except HalfmoonError:
            pass  # the broker is away: that is what the demo shows
        time.sleep(TRY_AGAIN_S)


if __name__ == "__main__":
    main()
