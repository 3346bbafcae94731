"""Sending what is encoded already: bodies of batches, with pauses between attempts. Decides where a failed one goes next.

`halfmoon.client.bulk` is its blocking face.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from halfmoon.client.core.ask import call
from halfmoon.client.core.names import wrap
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.send_result import send_result
from halfmoon.effects import Op, now, sleep
from halfmoon.errors import (
    ConnectFailed,
    HalfmoonError,
    NetworkError,
    NoPermission,
    RequestTimeout,
    ServiceNotAvailable,
    UsageError,
)
from halfmoon.model import WAIT, MessageQueue, SendResult, SendStatus
from halfmoon.wire import properties as wire_properties

PAUSE_MS, PAUSE_MAX_MS = 100, 5_000
"""Before the second attempt, doubled before each further one; a broker that restarts is back within the tries of a default."""

_BATCH = wire_properties.encode({WAIT: "true"}).decode()


class Encoded(NamedTuple):
    """Body of one request to one queue of a topic (the user's name of it).

    ``properties`` None: ``body`` is a batch (`halfmoon.wire.record.encode_batch`); else one message with these, as they are stored.
    ``sys_flag`` is that of every message: how the bodies are compressed.
    """

    topic: str
    body: bytes
    properties: bytes | None = None
    sys_flag: int = 0


def deliver(sender: Sender, encoded: Encoded, queues: Sequence[MessageQueue], retries_max: int, timeout_ms: int) -> Op[SendResult]:
    """Send to the first of ``queues``, after a failure to the next, and so on round; return where it went.

    An answer that the message is stored but a promise (flush, slave) was not kept counts as a failure. ``timeout_ms`` bounds
    an attempt. With one queue the order of what failed and what was sent after it is not kept.

    Raises:
        NoRoute, NetworkError, BrokerError: the last attempt's, or one after which another would not help.
    """
    if not queues:
        raise UsageError(f"topic {encoded.topic} has no queue that takes messages")
    allowing = {queue.broker_name for queue in queues}
    for attempt in range(retries_max + 1):
        queue = queues[attempt % len(queues)]
        try:
            return (yield from _attempt(sender, encoded, queue, timeout_ms))
        except HalfmoonError as exc:
            if is_refusal := isinstance(exc, NoPermission):
                allowing.discard(queue.broker_name)
            if attempt == retries_max or not (exc.retry or (is_refusal and allowing)):
                raise
        yield from sleep(min(PAUSE_MS << min(attempt, 16), PAUSE_MAX_MS))
    raise AssertionError("unreachable")


def _attempt(sender: Sender, encoded: Encoded, queue: MessageQueue, timeout_ms: int) -> Op[SendResult]:
    address = yield from sender.broker_address(encoded.topic, queue.broker_name)
    at = yield from now()
    topic = wrap(encoded.topic, sender.settings.namespace)
    batch = encoded.properties is None
    properties = _BATCH if encoded.properties is None else encoded.properties.decode()
    outgoing = Outgoing(topic, encoded.body, properties, "", sys_flag=encoded.sys_flag, batch=batch)
    target = MessageQueue(topic, queue.broker_name, queue.queue_id)
    try:
        reply = yield from call(address, sender.header(outgoing, target, at), encoded.body, timeout_ms)
        result = send_result(reply, outgoing, target, address, sender.settings.namespace)
    except (ConnectFailed, RequestTimeout, ServiceNotAvailable):
        yield from sender.routes.look_for(topic, queue.broker_name)  # for the next attempt
        raise
    if result.status is not SendStatus.SEND_OK:
        raise NetworkError(f"{queue.broker_name} stored it, but answered {result.status.name}", address)
    return result
