"""The result of a send by its reply, the code of a failure, and who is told of them.

Codes of failures that no broker sent: 10001 no connection, 10002 no answer in time, 10003 no such broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from halfmoon.client.core.names import unwrap
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.effects import Op, run
from halfmoon.errors import BadHeader, BrokerError, ConnectFailed, ConnectionLost, NetworkError, RequestTimeout, broker_error
from halfmoon.logs import log_failure
from halfmoon.model import Message, MessageQueue, SendResult, SendStatus
from halfmoon.wire.command import Command
from halfmoon.wire.headers.send import SendMessageReply

CONNECT_BROKER, ACCESS_BROKER_TIMEOUT, BROKER_NOT_EXIST = 10001, 10002, 10003

log = logging.getLogger("halfmoon.client")

Callback = Callable[[SendResult | None, Exception | None], Any]
"""Called with an asynchronous send's result or its error. A plain function runs in a thread."""

_STATUS = {status.value: status for status in SendStatus}


def send_result(reply: Command, outgoing: Outgoing, queue: MessageQueue, address: str, namespace: str = "") -> SendResult:
    """Return what a reply says; codes 10, 11 and 12 are results too. Raises BrokerError, and NetworkError for a broken reply."""
    if reply.code not in _STATUS:
        raise broker_error(reply.code, reply.remark, address)
    try:
        header = reply.header(SendMessageReply)
    except BadHeader as exc:
        raise NetworkError(f"reply of a send without its fields: {exc}", address) from exc
    queue_id = header.queue_id if header.queue_id >= 0 else queue.queue_id
    if namespace or queue_id != queue.queue_id:
        queue = MessageQueue(unwrap(queue.topic, namespace), queue.broker_name, queue_id)
    return SendResult(
        _STATUS[reply.code],
        outgoing.msg_id,
        header.msg_id,
        queue,
        header.queue_offset,
        header.transaction_id,
        header.region_id or "DefaultRegion",
        header.trace_on is not False,
        header.recall_handle or None,
    )


def failure_code(cause: Exception | None) -> int:
    """Return the code that tells callers why the last attempt failed. Follows ClientErrorCode."""
    if isinstance(cause, BrokerError):
        return cause.code
    if isinstance(cause, RequestTimeout):
        return ACCESS_BROKER_TIMEOUT
    if isinstance(cause, ConnectFailed | ConnectionLost):
        return CONNECT_BROKER
    return BROKER_NOT_EXIST


def tell_callback(callback: Callback, group: str, message: Message, result: SendResult | None, error: Exception | None) -> Op[None]:
    """Call the callback of an asynchronous send. What it raises is logged, and changes nothing about the send."""
    try:
        yield from run(callback, result, error)
    except Exception as exc:
        facts = {"group": group, "topic": message.topic, "message": None if result is None else result.msg_id}
        then = "the message is stored" if error is None else f"the message could not be sent: {error}"
        log_failure(log, "callback of a send failed", exc, facts, then)
