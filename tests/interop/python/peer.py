"""Our own clients, told what to do over standard input: one JSON object a line with a "verb", answered by one a line, in order.

The verbs are those of the other clients' programs. It decides nothing: what the answers should be is for the caller to say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from halfmoon import (
    AsyncProducer,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
    StoredMessage,
    TransactionProducer,
)

Order = dict[str, Any]
STATES = {
    "COMMIT_MESSAGE": LocalTransactionState.COMMIT,
    "ROLLBACK_MESSAGE": LocalTransactionState.ROLLBACK,
    "UNKNOW": LocalTransactionState.UNKNOWN,
}


class Loop(threading.Thread):
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        self.loop.run_forever()

    def result(self, coroutine: Any) -> Any:
        """Run a coroutine there, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()


class Load(threading.Thread):
    """Sends one message after another until told to stop; what fails is tried again as a new message."""

    def __init__(self, order: Order, send: Callable[[Message], SendResult]) -> None:
        super().__init__(daemon=True)
        self._order, self._send = order, send
        self._stopping = threading.Event()
        self.acknowledged: dict[str, Any] = {}
        self.failures: list[str] = []
        self.longest_ms = 0.0
        self.start()

    def run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._stopping.wait(self._order.get("pause_ms", 0) / 1000):
            made = message(self._order, number)
            number += 1
            try:
                result = self._send(made)
            except Exception as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
                continue
            if result.status is not SendStatus.SEND_OK:
                self.failures.append(result.status.name)
                continue
            self.longest_ms = max(self.longest_ms, (time.monotonic() - last) * 1000)
            last = time.monotonic()
            self.acknowledged[bytes(made.body).decode()] = {**sent(result), "properties": dict(made.properties)}

    def finish(self) -> dict[str, Any]:
        """Stop, and return what became of the messages."""
        self._stopping.set()
        self.join(30)
        facts = {"acknowledged": self.acknowledged, "failed": len(self.failures), "failures": self.failures}
        return {**facts, "longest_ms": self.longest_ms}


LOOP = Loop()
PRODUCERS: dict[str, Producer | AsyncProducer] = {}
DECIDERS: dict[str, TransactionProducer] = {}
CHECKS: dict[str, list[dict[str, Any]]] = {}
LOADS: dict[str, Load] = {}
CONSUMERS: dict[str, PushConsumer] = {}
RECEIVED: dict[str, list[dict[str, Any]]] = {}


def message(order: Order, number: int) -> Message:
    """Return a message of an order. "cycle" has the properties of the first messages, and again of those that follow."""
    properties = order["cycle"][number % len(order["cycle"])] if "cycle" in order else order.get("properties", {})
    made = Message(order["topic"], order["body"].replace("{n}", str(number)).encode(), properties=properties)
    if order.get("level"):
        made.delay_level = order["level"]
    return made


def sent(result: SendResult) -> dict[str, Any]:
    """Return the facts of a send."""
    place = {"queue_id": result.queue.queue_id, "queue_offset": result.queue_offset}
    return {"status": result.status.name, "msg_id": result.msg_id, **place}


def received(found: StoredMessage) -> dict[str, Any]:
    """Return the facts of a message."""
    place = {"queue_id": found.queue_id, "queue_offset": found.queue_offset}
    times = {"born_ms": found.born_ms, "at_ms": time.time_ns() // 1_000_000}
    return {"body": bytes(found.body).decode(), "msg_id": found.msg_id, "reconsume_times": found.reconsume_times, **place, **times}


def settings(order: Order) -> dict[str, Any]:
    """Return the settings of a producer."""
    found = {"group": order["group"], "nameserver": order["nameserver"], "instance_name": f"producer-{order['group']}"}
    return {**found, **({"send_timeout_ms": order["timeout_ms"]} if "timeout_ms" in order else {})}


def start_producer(order: Order) -> bool:
    """Start a producer; an asyncio one if the order is "asynchronous"."""
    if order.get("asynchronous"):
        waiting = AsyncProducer(**settings(order))
        LOOP.result(waiting.start())
        PRODUCERS[order["group"]] = waiting
    else:
        blocking = Producer(**settings(order))
        blocking.start()
        PRODUCERS[order["group"]] = blocking
    return True


def sending(order: Order) -> Callable[[Message], SendResult]:
    """Return what sends a message by the producer of an order."""
    if "name" in order:
        return decide(order["name"])
    producer = PRODUCERS[order["group"]]
    if isinstance(producer, AsyncProducer):
        return lambda made: LOOP.result(producer.send(made))
    return producer.send


def send(order: Order) -> list[dict[str, Any]]:
    """Send "count" messages one after another."""
    return [sent(sending(order)(message(order, number))) for number in range(order.get("count", 1))]


def load(order: Order) -> bool:
    """Start a load, which is known by its group."""
    LOADS[order["group"]] = Load(order, sending(order))
    return True


def start_transactions(order: Order) -> bool:
    """Start a transactional producer. A message's property "check" says what a check is answered."""
    checks = CHECKS[order["name"]] = []

    def check(found: StoredMessage) -> LocalTransactionState:
        checks.append(received(found))
        return STATES[found.properties["check"]]

    made = TransactionProducer(check=check, **settings(order))
    made.start()
    DECIDERS[order["name"]] = made
    return True


def decide(name: str) -> Callable[[Message], SendResult]:
    """Return what sends a message as a transaction: its property "execute" says what the local transaction returns."""
    state: Callable[[Message, object], LocalTransactionState] = lambda made, arg: STATES[made.properties["execute"]]  # noqa: E731
    return lambda made: DECIDERS[name].send_in_transaction(made, executor=state)


def push(order: Order) -> bool:
    """Start a consumer. What it receives is kept until it is asked for."""
    kept = RECEIVED[order["name"]] = []
    consumer = PushConsumer(
        group=order["group"],
        nameserver=order["nameserver"],
        instance_name=f"consumer-{order['name']}",
        consume_from=ConsumeFrom.FIRST_OFFSET,
        orderly=order.get("orderly", False),
    )
    consumer.subscribe(order["topic"])
    consumer.on_message(lambda messages: kept.extend(map(received, messages)))
    consumer.start()
    CONSUMERS[order["name"]] = consumer
    return True


def wait(order: Order) -> list[dict[str, Any]]:
    """Wait until "count" messages came or "timeout_ms" passed, and return all that came."""
    kept, end = RECEIVED[order["name"]], time.monotonic() + order["timeout_ms"] / 1000
    while len(kept) < order["count"] and time.monotonic() < end:
        time.sleep(0.005)
    return list(kept)


def stop(order: Order) -> list[dict[str, Any]]:
    """Close a consumer, and return all that came."""
    CONSUMERS.pop(order["name"]).close()
    return RECEIVED.pop(order["name"])


VERBS: dict[str, Callable[[Order], Any]] = {
    "producer": start_producer,
    "send": send,
    "load": load,
    "load.count": lambda order: len(LOADS[order["group"]].acknowledged),
    "load.stop": lambda order: LOADS.pop(order["group"]).finish(),
    "tx.producer": start_transactions,
    "tx.send": send,
    "tx.checks": lambda order: list(CHECKS[order["name"]]),
    "push": push,
    "push.wait": wait,
    "push.stop": stop,
}


def main() -> None:
    """Answer until the input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"result": VERBS[order["verb"]](order)}
        except Exception as exc:
            answer = {"error": type(exc).__name__, "text": str(exc), "code": getattr(exc, "code", None)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
