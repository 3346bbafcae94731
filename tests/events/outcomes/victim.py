"""A publisher in a process of its own that places orders and kills itself, as kill -9 does, at a named step of one of them.

Run as a program it places orders in transactions (``python -m tests.events.outcomes.victim …``); the environment says where it
dies: `DIE_AT` a step of `STEPS`, `DIE_ON` the number of the order, from 1. `die` runs it so from a test.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.orm import sessionmaker

from halfmoon.effects import Op
from halfmoon.events import Event, Publisher, PublishFailed
from halfmoon.events.outbox.relay import Relay
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Half, SendCallback
from halfmoon.model import Message, SendResult
from tests.events.outcomes.forked import Forked

if TYPE_CHECKING:
    from tests.events.outcomes.shop import Shop

DIE_AT, DIE_ON = "HALFMOON_TEST_DIE_AT", "HALFMOON_TEST_DIE_ON"
STEPS = (
    *("begin", "after token", "before prepare", "after prepare", "after flush", "before commit", "after commit before decide"),
    *("after decide", "after completion"),
)
"""From the begin of a transaction with a transactional event to what follows its commit."""

OUTBOX_STEPS = ("begin", "after row", "after flush", "before commit", "before post", "after post", "after completion")
PLAIN_STEPS = ("before send", "after send")
RELAY = {"poll_ms": 100, "timeout_ms": 500, "claim_ms": 4_500}
"""Claims of a relay that was killed end soon."""


class Deadly:
    """Counts orders and kills this process at the step and order that the environment names."""

    def __init__(self) -> None:
        self.step, self.on, self.order = os.environ.get(DIE_AT, ""), int(os.environ.get(DIE_ON, "1")), 0

    def at(self, step: str) -> None:
        """A step was reached."""
        if step == self.step and self.order == self.on:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyTransport(ClientTransport):
    """The transport over the client, with steps before and after what it does."""

    def __init__(self, deadly: Deadly, group: str, nameserver: str) -> None:
        super().__init__(group, nameserver)
        self._deadly = deadly

    def send(self, messages: Sequence[Message], timeout_ms: int) -> Op[Sequence[SendResult | Exception]]:
        self._deadly.at("before send")
        results = yield from super().send(messages, timeout_ms)
        self._deadly.at("after send")
        return results

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        self._deadly.at("before post")

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            self._deadly.at("after post")
            callback(result, error)

        super().post(message, ended, timeout_ms=timeout_ms)

    def prepare(
        self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None
    ) -> Op[Sequence[Half | Exception]]:
        self._deadly.at("before prepare")
        halves = yield from super().prepare(messages, timeout_ms, check_after_s)
        self._deadly.at("after prepare")
        return halves

    def decide(self, half: Any, *, commit: bool) -> None:
        self._deadly.at("after commit before decide")
        super().decide(half, commit=commit)
        self._deadly.at("after decide")


def die(shop: Shop, url: str, step: str, *, transactional: bool = True, mode: str = "two-phase") -> str:
    """Have a process place one order of a shop and die at a step; return the id of its event."""
    options = ["--topic", shop.topic, "--group", shop.producers, "--mode", mode, "--orders", "1", "--rollbacks", "0"]
    options += ["--linger-s", "30"]  # the relay may come to the step later than the one order does to its end
    process = start(shop.network.nameserver, url, options + ([] if transactional else ["--plain"]), {DIE_AT: step})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output
    (event_id,) = [line.split()[1] for line in output.splitlines() if line.startswith("event ")]
    return event_id


def start(nameserver: str, url: str, options: list[str], environment: dict[str, str]) -> Forked:
    """Start the program; it says ``ready``, and ``event ID`` for each event before it is published."""
    return Forked("tests.events.outcomes.victim", [nameserver, url, *options], environment)


def main() -> None:
    """Place orders."""
    from tests.events.outcomes.shop import CODE, Base, NoStock, Order

    options = _options()
    deadly, dice = Deadly(), random.Random(options.seed)
    engine = create_engine(options.url)
    event.listen(engine, "after_cursor_execute", lambda *seen: _executed(deadly, seen[2]))
    event.listen(engine, "commit", lambda _: deadly.at("before commit"))  # before the driver's commit
    Session = sessionmaker(engine)
    transport = DeadlyTransport(deadly, options.group, options.nameserver)
    events = Publisher(options.group, session=Session, mode=options.mode, transport=transport, relay=False)
    Base.metadata.create_all(engine)
    events.create_tables()
    events.start()
    relay = Relay(events.provider, transport, **RELAY)
    if options.mode == "outbox":
        relay.start()
    print("ready", flush=True)

    def place(many: list[Event], *, stock: bool) -> None:
        with Session.begin() as session:
            deadly.at("begin")
            for one in many:
                session.add(Order(number=f"o-{one.id}", event_id=one.id))
                print(f"event {one.id}", flush=True)
                events.publish(one)
            session.flush()
            deadly.at("after flush")
            if not stock:
                raise NoStock
        deadly.at("after completion")

    while deadly.order < options.orders:
        deadly.order += 1
        payload, plain = {"n": deadly.order}, options.plain
        many = [events.event(options.topic, CODE, payload, transactional=not plain) for _ in range(options.events)]
        try:
            place(many, stock=dice.random() >= options.rollbacks)
        except (NoStock, PublishFailed):
            pass
    if options.linger_s:
        time.sleep(options.linger_s)
    relay.close()
    events.close()


def _executed(deadly: Deadly, statement: Any) -> None:
    if re.search(r"INTO (\S+\.)?halfmoon_event", str(statement)):
        deadly.at("after token")
    if re.search(r"INTO (\S+\.)?halfmoon_outbox", str(statement)):
        deadly.at("after row")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("url")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--mode", default="two-phase")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--events", type=int, default=1, help="in one transaction")
    parser.add_argument("--rollbacks", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--linger-s", type=float, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
