"""Transactions decided and taken up again by hand: what is asked of which broker, and what is refused before."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.transactions import end_transaction, resume_half
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import AdminSettings, settings_of
from halfmoon.errors import BrokerError, UsageError
from halfmoon.wire.headers.pull import ViewMessageById
from halfmoon.wire.headers.transaction import EndTransaction, ResumeCheckHalfMessage
from tests.client.messages import record
from tests.client.scripted import Reply, Scripted
from tests.client.transacting import COMMIT, OFFSET_ID, ROLLBACK, UNKNOWN

HALF = record(9, topic="RMQ_SYS_TRANS_HALF_TOPIC", PGROUP="P", REAL_TOPIC="orders", TRAN_MSG="true")
BROKER = "127.0.0.1:10911"


def admin() -> AdminCore:
    return AdminCore(Instance(settings_of(AdminSettings, {"nameserver": "ns:1"}), "id", Random(1)))


@pytest.mark.parametrize(("state", "number"), [(COMMIT, "8"), (ROLLBACK, "12")])
def test_a_half_message_is_decided_with_its_own_fields_and_the_answer_is_waited_for(state, number):
    script = Scripted()
    script.on(ViewMessageById, Reply(body=HALF))
    script.on(EndTransaction, Reply())

    message = script.run(end_transaction(admin(), OFFSET_ID, state))

    assert script.asked(ViewMessageById)[0].fields["offset"] == "4096"
    (end,) = script.asked(EndTransaction)
    assert (end.address, end.oneway) == (BROKER, False)
    assert end.fields == {
        "producerGroup": "P", "tranStateTableOffset": "9", "commitLogOffset": "900", "commitOrRollback": number, "msgId": "ID9",
        "fromTransactionCheck": "false", "transactionId": "ID9", "topic": "orders",
    }  # fmt: skip
    assert message.msg_id == "ID9"


def test_unknown_is_no_decision_and_nothing_is_asked():
    script = Scripted()

    with pytest.raises(UsageError, match="COMMIT or ROLLBACK"):
        script.run(end_transaction(admin(), OFFSET_ID, UNKNOWN))

    assert script.seen == []


def test_a_message_that_is_not_half_is_left_alone():
    script = Scripted()
    script.on(ViewMessageById, Reply(body=record(9, topic="orders")))

    with pytest.raises(UsageError, match="lies in topic orders"):
        script.run(end_transaction(admin(), OFFSET_ID, COMMIT))

    assert script.asked(EndTransaction) == []


def test_a_refusal_of_the_broker_is_raised():
    script = Scripted()
    script.on(ViewMessageById, Reply(body=HALF))
    script.on(EndTransaction, Reply(1, remark="The producer group wrong"))
    script.on(ResumeCheckHalfMessage, Reply(1, remark="put back message failed"))

    with pytest.raises(BrokerError, match="The producer group wrong"):
        script.run(end_transaction(admin(), OFFSET_ID, COMMIT))
    with pytest.raises(BrokerError, match="put back"):
        script.run(resume_half(admin(), OFFSET_ID))


def test_an_expired_message_is_resumed_at_the_broker_that_its_id_names():
    script = Scripted()
    script.on(ResumeCheckHalfMessage, Reply())

    script.run(resume_half(admin(), OFFSET_ID))
    with pytest.raises(UsageError):
        script.run(resume_half(admin(), "nonsense"))

    (seen,) = script.seen
    assert (seen.address, seen.fields) == (BROKER, {"msgId": OFFSET_ID, "topic": "TRANS_CHECK_MAX_TIME_TOPIC"})


def test_a_decision_later_than_5_x_takes_it_is_told_as_the_answer_to_a_check():
    script = Scripted()
    script.on(ViewMessageById, Reply(body=HALF))
    script.on(EndTransaction, lambda seen: Reply() if seen.request.from_transaction_check else Reply(604, remark="late"))

    script.run(end_transaction(admin(), OFFSET_ID, COMMIT))

    assert [end.fields["fromTransactionCheck"] for end in script.asked(EndTransaction)] == ["false", "true"]
