"""Brokers that answer nothing to requests that they do not know (4.7.1): found out once, and then read as others are."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.transactions import transaction_stats
from halfmoon.errors import RequestTimeout
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.transaction import GetTransactionStats
from tests.client.core.admin.test_admin import admin
from tests.client.core.admin.test_half_queue import Apache
from tests.client.scripted import Reply, Scripted


@pytest.fixture
def script():
    found = Scripted()
    Apache(found).half("u1")
    found.on(GetTransactionStats, lambda seen: RequestTimeout("timeout", seen.address))
    return found


def test_a_broker_that_answers_nothing_to_our_own_requests_is_found_out_once(script):
    core = admin(script)
    script.on(GetBrokerRuntimeInfo, Reply(body=b'{"table":{"brokerVersionDesc":"V4_7_1"}}'))
    for _ in range(2):
        assert [each.pending_count for each in script.run(transaction_stats(core))] == [1, 0]
    assert len(script.asked(GetTransactionStats)) == len(script.asked(GetBrokerRuntimeInfo)) == 2, "once a broker"


def test_one_of_our_brokers_that_answers_too_late_is_an_error(script):
    script.on(GetBrokerRuntimeInfo, Reply(body=b'{"table":{"transactionsPending":"7"}}'))
    with pytest.raises(RequestTimeout):
        script.run(transaction_stats(admin(script)))
