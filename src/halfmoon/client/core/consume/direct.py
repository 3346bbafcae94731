"""One message consumed at once because an operator asked for it (309). Moves no progress and gives nothing back.

Follows ConsumeMessageConcurrentlyService.consumeMessageDirectly and its sibling of ordered consumption (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from halfmoon.client.core.consume.pull import unpacked
from halfmoon.effects import Op, steady
from halfmoon.logs import log_failure
from halfmoon.model import StoredMessage
from halfmoon.shown.names import queue_name
from halfmoon.wire.bodies import ConsumeDirectlyResult, ConsumeResult
from halfmoon.wire.record import decode_record

RESULTS = {
    "": ConsumeResult.CR_SUCCESS,
    "CONSUME_SUCCESS": ConsumeResult.CR_SUCCESS,
    "SUCCESS": ConsumeResult.CR_SUCCESS,
    "COMMIT": ConsumeResult.CR_COMMIT,
    "ROLLBACK": ConsumeResult.CR_ROLLBACK,
}
"""Results of listeners by name, as the wire has them; anything else is CR_LATER. Returning nothing is success in Halfmoon."""

log = logging.getLogger("halfmoon.client")


Handed = Callable[[StoredMessage], Op[tuple[Any, bool]]]
"""Calls the listener with one message; returns what it returned, and whether its context says auto commit."""


def consume_directly(
    record: bytes, broker_name: str, hand: Handed, *, group: str, orderly: bool = False
) -> Op[ConsumeDirectlyResult]:
    """Hand the message of a record to the listener; return what came of it. Raises BadMessage when it does not decode."""
    message = unpacked(decode_record(record))
    message.broker_name = broker_name
    begin = yield from steady()
    result = ConsumeDirectlyResult(order=orderly)
    try:
        status, result.auto_commit = yield from hand(message)
        result.consume_result = RESULTS.get("" if status is None else getattr(status, "name", "?"), ConsumeResult.CR_LATER)
    except Exception as exc:
        facts = {
            "group": group, "topic": message.topic, "queue": queue_name(message.queue, message.topic),
            "offset": message.queue_offset, "message": message.msg_id, "tag": message.tag,
        }  # fmt: skip
        log_failure(log, "listener failed", exc, facts, "an operator asked for this call, nothing else comes of it")
        result.consume_result, result.remark = ConsumeResult.CR_THROW_EXCEPTION, f"{type(exc).__name__}: {exc}"
    result.spent_time_mills = (yield from steady()) - begin
    return result
