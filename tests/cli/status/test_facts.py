"""What brokers say, read carefully, and when that counts as degraded or down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from halfmoon.cli.status.facts import Backlog, Limits, status_of
from halfmoon.errors import BrokerError, NetworkError

INFO = {
    "brokerVersionDesc": "V4_9_7",
    "putTps": "12.5 11.0 10.0",
    "getTransferedTps": "3.0 2.0 1.0",
    "msgPutTotalTodayNow": "110",
    "msgPutTotalTodayMorning": "10",
    "commitLogDiskRatio": "0.5",
    "bootTimestamp": "1000",
    "transactionsPending": "2",
    "transactionsOldestPendingAgeMs": "60000",
    "requestsRefused": "7",
}


class Cluster:
    """Stands for an administration client: brokers by address, and queues by group."""

    def __init__(self, brokers, groups=None):
        self._brokers, self._groups = brokers, groups or {}

    def cluster(self):
        data = {name: SimpleNamespace(cluster="C", broker_addrs={0: name}) for name in self._brokers}
        return SimpleNamespace(broker_addr_table=data)

    def broker_runtime_info(self, address):
        found = self._brokers[address]
        if isinstance(found, Exception):
            raise found
        return found

    def groups(self):
        return list(self._groups)

    def consume_stats(self, group):
        found = self._groups[group]
        if isinstance(found, Exception):
            raise found
        return {at: SimpleNamespace(broker_offset=b, consumer_offset=c, last_timestamp=t) for at, (b, c, t) in enumerate(found)}


def test_numbers_of_a_broker():
    [broker] = status_of(Cluster({"a": INFO}), Limits()).brokers
    assert (broker.in_per_second, broker.out_per_second, broker.in_today, broker.out_today) == (12.5, 3.0, 100, 0)
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.requests_refused) == (2, 60_000, 7)
    assert broker.uptime_ms > 0


def test_a_broker_that_has_not_looked_at_its_disk_says_no_share():
    status = status_of(Cluster({"a": {**INFO, "commitLogDiskRatio": "-1.0"}}), Limits(disk=0.01))
    assert (status.health, status.brokers[0].disk_used) == ("healthy", None)


@pytest.mark.parametrize("text", ["", "NaN", "x", "inf", "-1", "1" * 400, "٣"])
def test_what_is_no_number_is_none_and_stops_nothing(text):
    status = status_of(Cluster({"a": dict.fromkeys(INFO, text)}), Limits(lag=0, pending_age_ms=0))
    [broker] = status.brokers
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.uptime_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(), None),
        (Limits(lag=15), None),
        (Limits(lag=14), "C_shop is 15 messages behind"),
        (Limits(pending_age_ms=60_000), None),
        (Limits(pending_age_ms=59_999), "a: a transaction has been pending for 1m00s"),
        (Limits(disk=0.51), None),
        (Limits(disk=0.5), "a: its disk is 50% full"),
    ],
)
def test_each_threshold(limits, words):
    status = status_of(Cluster({"a": INFO}, {"C_shop": [(20, 10, 0), (5, 0, 0), (7, 7, 0)]}), limits)
    assert status.faults == ([words] if words else [])
    assert status.health == ("degraded" if words else "healthy")


def test_a_group_is_behind_for_the_age_of_what_it_consumed_last_where_more_has_come():
    queues = {
        "C_none": [(5, 5, 1)],
        "C_late": [(5, 5, 1), (9, 5, 2_000), (9, 5, 3_000)],
        "C_new": [(9, 0, 0)],
        "C_gone": BrokerError(1, ""),
    }
    status = status_of(Cluster({"a": INFO}, queues), Limits())
    assert status.backlog["C_none"] == Backlog(0, None)
    assert status.backlog["C_late"] == Backlog(8, status.at_ms - 2_000)
    assert status.backlog["C_new"] == Backlog(9, None)
    assert "C_gone" not in status.backlog


def test_a_broker_that_does_not_answer_degrades_and_all_of_them_are_down():
    one = status_of(Cluster({"a": INFO, "b": NetworkError("no route")}), Limits())
    assert (one.health, one.faults) == ("degraded", ["b: does not answer: no route"])
    assert status_of(Cluster({"b": NetworkError("no route")}), Limits()).health == "down"


def test_what_a_broker_itself_finds_wrong_is_said_and_no_disk_besides():
    status = status_of(Cluster({"a": {**INFO, "brokerFaults": "the disk is full", "commitLogDiskRatio": "0.99"}}), Limits())
    assert status.faults == ["a: the disk is full"]
