"""`halfmoon tx expired` and `tx resume` against a broker whose half messages expire after two checks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon import LocalTransactionState
from halfmoon.testing.local import LocalCluster
from tests.cli.tx.test_commands import Shop, bodies
from tests.waiting import until

COMMIT = LocalTransactionState.COMMIT
IMPATIENT = {"transactionTimeOut": 0, "transactionCheckInterval": 1000, "transactionCheckMax": 2}


pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker of the test's own that asks each second, twice."""
    with LocalCluster(tmp_path / "store", IMPATIENT) as running:
        yield running


@pytest.mark.mission("000-73", "001-22")
def test_what_expired_is_listed_with_its_history_never_delivered_and_can_be_resumed(run, topic, cluster):
    shop = Shop(cluster)
    with shop.producer:
        unique = shop.leave(topic, "stubborn")
        [found] = until(lambda: run("tx", "expired", "--json").json())
        text = run("tx", "expired").out
        assert bodies(run, topic) == []
        shown = run("tx", "show", unique, "--json").json()
        shop.says = COMMIT
        resumed = run("tx", "resume", found["offset_msg_id"])
        until(lambda: bodies(run, topic))
        [after] = run("tx", "expired", "--json").json()
        again = run("tx", "resume", found["offset_msg_id"], "--json")
        [figures] = run("tx", "status", "--json").json()

    assert (found["msg_id"], found["group"], found["topic"], found["keys"]) == (unique, "P_shop", topic, "stubborn")
    assert (found["reason"], found["checks_sent"], found["resumed"]) == ("2 checks brought no decision", 2, False)
    assert [check["answer"] for check in found["checks"]] == ["UNKNOWN", "UNKNOWN"]
    assert all(abs(check["sent_ms"] - time.time() * 1000) < 600_000 for check in found["checks"])
    assert re.search(rf"stubborn +2 checks brought no decision +2 +unknown unknown +nothing +{found['offset_msg_id']}", text)
    assert (shown["state"], shown["checks_left"]) == ("EXPIRED", 0)
    assert (resumed.code, "resumed" in resumed.out) == (0, True)
    assert after["resumed"] is True
    assert (again.code, "resumed already" in again.err) == (1, True)
    assert (figures["counters"]["expired"], figures["counters"]["resumed"]) == (1, 1)
    assert bodies(run, topic) == ["order"]


def test_as_many_as_asked_for_are_listed_the_newest(run, topic, cluster):
    shop = Shop(cluster, "P_many")
    with shop.producer:
        for number in range(3):
            shop.leave(topic, f"m{number}")
        until(lambda: sum(one["group"] == "P_many" for one in run("tx", "expired", "--json").json()) == 3)

    assert [one["keys"] for one in run("tx", "expired", "--limit", "2", "--json").json()] == ["m1", "m2"]
