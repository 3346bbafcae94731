"""The refusal of a request that failed, by what failed, and what a request gives to its handler."""

import pytest

from halfmoon.broker.request import Reply, Request, refusal_of, reply_to
from halfmoon.errors import BrokerError, MessageIllegal, StoreError, SystemBusy
from halfmoon.wire.bodies import SubscriptionGroupConfig
from halfmoon.wire.command import Command


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (SystemBusy("full"), 2, "full"),
        (MessageIllegal("odd"), 13, "the message is illegal: odd"),
        (OSError(28, "no space"), 14, "service not available now: [Errno 28] no space"),
        (StoreError("damaged"), 1, "damaged"),
        (KeyError("k"), 1, "KeyError: 'k'"),
    ],
)
def test_each_kind_of_error_has_its_code(error, code, remark):
    refusal = refusal_of(error, "a request")
    assert (refusal.code, refusal.remark) == (code, remark)


def test_only_a_mistake_of_our_own_has_a_traceback_in_the_log(caplog):
    refusal_of(OSError(28, "no space"), "a request")
    refusal_of(KeyError("k"), "a request")
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_a_body_of_another_shape_is_refused_with_its_reason():
    request = Request(Command(200, 0, 1, 0, 0, None, {}, b"[]", 0), None, 0)
    with pytest.raises(BrokerError, match="the body is not a SubscriptionGroupConfig"):
        request.body(SubscriptionGroupConfig)


def test_a_reply_has_the_opaque_of_its_request_and_is_marked_as_one():
    command = reply_to(7, 1, Reply(3, "no"))
    assert (command.code, command.opaque, command.remark, command.serialization, command.is_response) == (3, 7, "no", 1, True)
