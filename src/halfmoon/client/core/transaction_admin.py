"""Transactions decided or taken up again by hand. Asks the broker that the message's id names; changes one message a call."""

from __future__ import annotations

from halfmoon.client.core.admin import AdminCore
from halfmoon.client.core.ask import ask
from halfmoon.client.core.find import message_by_offset_id
from halfmoon.effects import Op
from halfmoon.errors import UsageError
from halfmoon.model import LocalTransactionState, StoredMessage
from halfmoon.wire.headers.transaction import EndTransaction, ResumeCheckHalfMessage
from halfmoon.wire.ids import parse_offset_msg_id

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"


def end_transaction(admin: AdminCore, offset_msg_id: str, state: LocalTransactionState) -> Op[StoredMessage]:
    """Commit or roll back the half message with a broker's id, and return it once the broker agreed.

    Against Apache's brokers the id must be that of the newest copy: a check writes the half message anew, and a copy that was
    decided is not recognised, so that a second commit delivers a second time.

    Raises UsageError when the message is no half message or the state decides nothing, BrokerError, NetworkError.
    """
    if state not in (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK):
        raise UsageError(f"expected COMMIT or ROLLBACK, got {state!r}")
    message = yield from message_by_offset_id(admin, offset_msg_id)
    if message.topic != HALF_TOPIC:
        raise UsageError(f"not a half message: {offset_msg_id} lies in topic {message.topic}")
    request = EndTransaction(
        producer_group=message.properties.get("PGROUP", ""),
        tran_state_table_offset=message.queue_offset,
        commit_log_offset=message.physical_offset,
        commit_or_rollback=int(state),
        msg_id=message.msg_id,
        from_transaction_check=False,
        transaction_id=message.transaction_id,
        topic=message.properties.get("REAL_TOPIC"),
    )
    yield from ask(parse_offset_msg_id(offset_msg_id).address, request, b"", admin.settings.request_timeout_ms)
    return message


def resume_half(admin: AdminCore, offset_msg_id: str) -> Op[None]:
    """Have a half message that was given up checked again, from the first check on; the id is that of the given-up copy.

    Raises UsageError for a text that is no broker's id, BrokerError, NetworkError.
    """
    request = ResumeCheckHalfMessage(msg_id=offset_msg_id, topic=GIVEN_UP_TOPIC)
    yield from ask(parse_offset_msg_id(offset_msg_id).address, request, b"", admin.settings.request_timeout_ms)
