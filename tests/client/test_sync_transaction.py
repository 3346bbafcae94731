"""Transactional producers as users make and call them: listeners, executors, decorators, settings, and the two twins alike."""

from __future__ import annotations

import threading

import pytest

from halfmoon import (
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionSettings,
    UsageError,
)
from halfmoon.errors import SettingError
from tests.client.scripted import Scripted
from tests.client.transacting import COMMIT, ROLLBACK, Shop
from tests.client.transacting_faces import blocking, told

ORDER = Message("orders", b"paid")


# ---------------------------------------------------------------- the call with a listener


@pytest.mark.mission("000-02", "003-02", "003-03", "003-04", "003-05")
def test_the_blocking_call_runs_the_local_transaction_in_the_callers_thread():
    script, threads = Scripted(), []
    shop = Shop()
    producer = blocking(script, listener=shop, check=None)

    result = producer.send_in_transaction(ORDER, 7)
    other = producer.send_in_transaction(
        ORDER, executor=lambda message, arg: threads.append(threading.current_thread()) or ROLLBACK
    )

    assert (result.local_state, other.local_state) == (COMMIT, ROLLBACK)
    assert [arg for _, arg in shop.executed] == [7]
    assert threads == [threading.current_thread()]
    assert told(script) == [8, 12]
    with pytest.raises(UsageError, match=r"^TransactionListener is null$"):
        blocking(Scripted(), check=None).send_in_transaction(ORDER)
    with pytest.raises(UsageError, match=r"^tranExecutor is null$"):
        blocking(Scripted()).send_in_transaction(ORDER)


@pytest.mark.mission("000-36")
def test_an_interrupt_of_the_blocking_call_goes_on_and_tells_nothing():
    script = Scripted()
    producer = blocking(script, listener=Shop(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        producer.send_in_transaction(ORDER)

    assert told(script) == []
    assert not producer._client.transactions.running


def test_a_producer_that_is_closed_meanwhile_still_gives_the_result():
    script = Scripted()
    producer = blocking(script)

    def execute(message, arg):
        producer._client.state = "closed"
        return COMMIT

    assert producer.send_in_transaction(ORDER, executor=execute).local_state is COMMIT
    assert told(script) == [8]


# ---------------------------------------------------------------- made, and told apart


def test_checks_are_set_by_call_or_decorator_and_one_for_all_when_it_is_made():
    producer = TransactionProducer(group="P", nameserver="127.0.0.1:9876", check=repr)

    @producer.on_check("orders")
    def committed(message):
        return COMMIT

    assert producer.on_check("pay*", str) is str
    find = producer._client.transactions.checkers.find
    assert (find("orders"), find("payments"), find("other")) == (committed, str, repr)


def test_a_check_function_is_asked_before_the_listener():
    def committed(message):
        return COMMIT

    producer = TransactionProducer(group="P", nameserver="127.0.0.1:9876", check=committed, listener=Shop())

    assert producer._client.transactions.checkers.find("orders") is committed


def test_a_listener_without_its_methods_is_refused():
    class Half:
        def check(self, message): ...

    for producer in (TransactionProducer, AsyncTransactionProducer):
        with pytest.raises(UsageError, match="has no execute"):
            producer(group="P", nameserver="127.0.0.1:9876", listener=Half())


@pytest.mark.mission("000-74")
def test_the_defaults_are_those_of_the_original():
    settings = TransactionProducer(group="P", nameserver="127.0.0.1:9876").settings

    assert isinstance(settings, TransactionSettings)
    assert (settings.check_threads, settings.check_hold_max) == (1, 2_000)
    assert (settings.create_topic_key, settings.default_topic_queue_count, settings.send_timeout_ms) == ("TBW102", 4, 3_000)
    with pytest.raises(SettingError, match="check_threads"):
        TransactionProducer(group="P", nameserver="127.0.0.1:9876", check_threads=0)


def test_a_group_is_needed_because_brokers_ask_by_it():
    for group in ("", "DEFAULT_PRODUCER"):
        with pytest.raises(UsageError):
            TransactionProducer(group=group, nameserver="127.0.0.1:9876")


def test_states_have_the_numbers_of_the_wire():
    codes = {state.name: state.code for state in LocalTransactionState}
    assert codes == {"UNKNOWN": 0, "COMMIT": 8, "ROLLBACK": 12, "OPEN": 0, "NOT_MINE": 0}
