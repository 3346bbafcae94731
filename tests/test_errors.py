"""One tree of errors: which class a response code becomes, and which facts and texts an error has."""

from __future__ import annotations

import pytest

from halfmoon import errors
from halfmoon.errors import AccessRefused, BrokerError, HalfmoonError, NetworkError, ResponseCode, broker_error, kind_of


@pytest.mark.parametrize("code", sorted(BrokerError.by_code))
def test_a_response_code_with_a_class_of_its_own_becomes_that_class(code: int) -> None:
    error = broker_error(code, "why", "a:1")
    assert type(error) is BrokerError.by_code[code]
    assert (error.code, error.remark, error.address) == (code, "why", "a:1")
    assert str(error) == f"CODE: {code} {ResponseCode(code).name}  DESC: why  BROKER: a:1"
    assert code in {int(known) for known in ResponseCode}


def test_any_other_code_is_kept_in_the_general_class() -> None:
    error = broker_error(9999, None)
    assert (type(error), error.code, error.retry, str(error)) == (BrokerError, 9999, False, "CODE: 9999  DESC: ")


def test_another_try_may_help_where_the_broker_was_not_able_and_not_where_it_said_no() -> None:
    again = {ResponseCode(code).name for code, cls in BrokerError.by_code.items() if cls.retry}
    assert again == {
        "SYSTEM_ERROR", "SYSTEM_BUSY", "SERVICE_NOT_AVAILABLE", "TOPIC_NOT_EXIST", "NOT_IN_CURRENT_UNIT",
        "FLOW_CONTROL", "GO_AWAY",
    }  # fmt: skip
    assert NetworkError.retry
    assert not errors.TooManyRequests.retry


def test_every_error_belongs_to_the_one_tree() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert [cls for cls in classes if not issubclass(cls, HalfmoonError)] == []


def test_name_servers_that_do_not_answer_are_named_with_their_reasons() -> None:
    error = errors.NoNameServerAnswers({"a:1": NetworkError("a:1 refused", "a:1"), "b:2": NetworkError("b:2 silent", "b:2")})
    assert str(error) == (
        "no name server answers: a:1 refused; b:2 silent; "
        "check the address (port 9876 by default), that a name server runs there, and whether it requires TLS"
    )
    assert error.address == "a:1;b:2"


def test_a_missing_route_says_why_and_what_is_spelt_alike() -> None:
    assert str(errors.NoRoute("orders")) == "No route info of this topic: orders"
    assert str(errors.NoRoute("ordres", near=("orders",))) == "No route info of this topic: ordres; did you mean 'orders'?"
    assert str(errors.NoRoute("orders", "it rains")) == "topic orders cannot be looked up: it rains"
    closed = errors.NotWritable("orders", ["broker-a"])
    assert (closed.topic, closed.retry) == ("orders", False)
    assert "permission on broker-a" in str(closed)


def test_a_refusal_of_access_control_is_told_from_other_failures_with_code_1_and_not_tried_again():
    error = broker_error(1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache…(X.java:1)")

    assert (type(error), error.code, error.retry) == (AccessRefused, 1, False)
    assert broker_error(1, "another reason").retry


def test_what_a_user_needs_stands_first_in_an_error():
    unsigned = broker_error(
        1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache…(X.java:1)", "a:1"
    )
    advice = (
        "a:1 requires an account: access_key= and secret_key= in Python, --credentials FILE for commands, or "
        "HALFMOON_ACCESS_KEY and HALFMOON_SECRET_KEY in the environment"
    )
    assert str(unsigned).startswith(f"{advice} (CODE: 1 SYSTEM_ERROR  DESC: org.apache")
    wrong = broker_error(1, f"{errors.ACCESS_REFUSED}Check signature failed for accessKey=shop", "a:1")
    assert str(wrong).startswith(
        "a:1 refused access: Check signature failed for accessKey=shop (see halfmoon docs access) (CODE: 1 SYSTEM_ERROR  DESC"
    )

    gone = errors.ConnectFailed("connect to a:1 failed: Connection refused", "a:1")
    gone.refused = True
    failed = errors.SendFailed("TP_OWN", ["broker-a"], 3, 10001, gone)
    assert str(failed) == "Could not send to TP_OWN: broker-a refused the connection (1 attempt in 3 ms, at broker-a)"
    full = errors.SendFailed("TP_OWN", ["broker-a", "broker-b"], 3, 16, broker_error(16, "forbidden", "b:1"))
    assert (
        str(full)
        == "Could not send to TP_OWN: broker-b: forbidden (code 16 NO_PERMISSION) (2 attempts in 3 ms, at broker-a, broker-b)"
    )
    assert (failed.retry, full.retry) == (True, False)


def test_the_kind_of_every_error_is_a_word_without_underscores_and_one_of_its_own() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, HalfmoonError)]
    kinds = [kind_of(cls.__new__(cls)) for cls in classes]
    assert [kind for kind in kinds if "_" in kind] == []
    assert len(set(kinds)) == len(classes)
    assert kind_of(broker_error(1, "why")) == "SystemError"
