"""The result of a send by its reply, and the code of a failure.

Codes of failures that no broker sent: 10001 no connection, 10002 no answer in time, 10003 no such broker.
"""

from __future__ import annotations

from halfmoon.client.core.names import unwrap
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.errors import BadHeader, BrokerError, ConnectFailed, ConnectionLost, NetworkError, RequestTimeout, broker_error
from halfmoon.model import MessageQueue, SendResult, SendStatus
from halfmoon.wire.command import Command
from halfmoon.wire.headers.send import SendMessageReply

CONNECT_BROKER, ACCESS_BROKER_TIMEOUT, BROKER_NOT_EXIST = 10001, 10002, 10003

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
