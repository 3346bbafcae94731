"""`halfmoon tx` against Apache's brokers, which know none of its requests: what their queues tell, and what they do not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, TypeVar

import pytest

from halfmoon import Admin, BrokerError, LocalTransactionState, Message, TransactionProducer
from halfmoon.cli.main import main
from tests.interop.apache import Cluster
from tests.waiting import until

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
QUICK = {"transactionTimeOut": 500, "transactionCheckInterval": 1000, "transactionCheckMax": 5, "transactionOpBatchInterval": 300}
"""Checks every second, five of them, for a command takes a second on a busy machine; 5.x gathers decisions for 300 ms, comma behind
comma, in one op record."""

T = TypeVar("T")
_NUMBERS = count(1)


SLOW = {**QUICK, "transactionCheckInterval": 600_000}
"""No round of checks comes, so that nothing is settled: every op record is to be read."""


def _versions(pace: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "cluster", [f"{version} {pace}" for version in ("4.7.1", "4.9.7", "5.3.3")], indirect=True, scope="module"
    )


CHECKING, NOT_CHECKING = _versions("quick"), _versions("slow")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    version, pace = request.param.split()
    settings = QUICK if pace == "quick" else SLOW
    if version == "4.7.1":  # each command waits 2 s for an answer to a request of ours: checks must not be spent meanwhile
        interval = max(3000, settings["transactionCheckInterval"])
        settings = {**settings, "transactionCheckInterval": interval, "transactionCheckMax": 3}
    found = Cluster(version, tmp_path_factory.mktemp("apache"), settings=settings)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(nameserver=cluster.nameserver) as found:
        yield found


Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run(*words)``: exit code, what was written to standard output (with --json: read), and to standard error."""

    def command(*words: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = main(["tx", *words, "--nameserver", cluster.nameserver])
        written = capsys.readouterr()
        return code, json.loads(written.out) if "--json" in words and written.out else written.out, written.err

    return command


class Shop:
    """Producers of a group of their own that leave their half messages, and say on checks what they are told to."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.group, self.says, self.topic = group, UNKNOWN, f"T_{group}"
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.create_topic(self.topic, queue_count=1)
        self.producer = TransactionProducer(group=group, nameserver=cluster.nameserver, check=lambda message: self.says)

    def leave(self, key: str, *, check_after_s: int | None = None, decide: str = "") -> str:
        """Store a half message, decide as told or nothing, and return its id."""
        with self.producer.half(Message(self.topic, key.encode(), keys=[key]), check_after_s=check_after_s) as half:
            getattr(half, decide or "leave")()
        return half.message_id


@pytest.fixture
def shop(cluster: Cluster) -> Iterator[Shop]:
    found = Shop(cluster, f"P_{next(_NUMBERS)}")
    with ExitStack() as stack:
        stack.enter_context(found.producer)
        yield found
        found.says = COMMIT


def ids(admin: Admin, group: str) -> list[str]:
    return [one.msg_id for one in admin.pending_transactions(group=group)]


@NOT_CHECKING
def test_pending_is_what_the_half_queue_holds_and_no_op_record_names(cluster: Cluster, admin: Admin, shop: Shop, run: Run) -> None:
    decided = [shop.leave(f"d{i}", decide="commit" if i % 2 else "rollback") for i in range(40)]
    left = [shop.leave(f"k{i}", check_after_s=600) for i in range(3)]

    until(lambda: ids(admin, shop.group) == left)  # 5.x writes op records down a while after the decisions
    code, found, _ = run("pending", "--group", shop.group, "--json")
    assert code == 0
    assert [one["keys"] for one in found["transactions"]] == ["k0", "k1", "k2"]
    for one in found["transactions"]:
        assert (one["group"], one["topic"], one["state"], one["producers"]) == (shop.group, shop.topic, "PREPARED", 1)
        assert one["checks_sent"] + one["checks_left"] == cluster.settings["transactionCheckMax"]
        assert one["next_check_ms"] == -1
        assert one["not_reported"]
    assert len(run("pending", "--group", shop.group, "--limit", "2", "--json")[1]["transactions"]) == 2
    assert run("pending", "--group", shop.group, "--older-than", "1h", "--json")[1]["transactions"] == []
    code, text, _ = run("pending", "--group", shop.group)
    assert "checks are counted in copies" in text
    assert "not reported" in text
    [stats] = run("status", "--json")[1]
    assert [(each["pending"], each["producers"]) for each in stats["groups"] if each["group"] == shop.group] == [(3, 1)]
    assert (stats["counters"], bool(stats["not_reported"])) == ({}, True)
    assert {admin.transaction(one).state for one in (decided[0], decided[1])} == {"COMMITTED", "ROLLED_BACK"}
    for one in left:
        admin.decide_transaction(one, commit=False, operator="test")


@NOT_CHECKING
def test_a_check_cannot_be_asked_for_and_it_says_so(admin: Admin, shop: Shop, run: Run) -> None:
    unique = shop.leave("unasked", check_after_s=600)

    code, _, err = run("check", unique)
    assert (code, "no Halfmoon broker" in err, "checks in its own time" in err) == (1, True, True)
    with pytest.raises(BrokerError):
        admin.check_transaction(unique)
    code, text, _ = run("show", "unasked")
    assert code == 0
    assert f"id                 {unique}" in text
    assert "next check         not reported" in text
    assert run("show", "nobody")[0] == 1
    admin.decide_transaction(unique, commit=False, operator="test")


@NOT_CHECKING
def test_a_producer_that_is_gone_is_not_counted(cluster: Cluster, admin: Admin) -> None:
    gone = Shop(cluster, "P_gone")
    with gone.producer:
        unique = gone.leave("k", check_after_s=600)
        assert [one.producers for one in admin.pending_transactions(group="P_gone")] == [1]

    until(lambda: [one.producers for one in admin.pending_transactions(group="P_gone")] == [0])
    admin.decide_transaction(unique, commit=False, operator="test")


@NOT_CHECKING
def test_the_queues_are_only_read(admin: Admin, shop: Shop, cluster: Cluster) -> None:
    shop.leave("kept", check_after_s=600)

    address = f"127.0.0.1:{cluster.broker_port}"

    def holds() -> tuple[str, set[str]] | None:
        try:
            return admin.broker_runtime_info(address)["msgPutTotalTodayNow"], set(admin.topic_configs(address))
        except BrokerError:  # until its first second is over the original has no figures, and fails
            return None

    before = until(holds)
    for _ in range(3):
        admin.pending_transactions()
        admin.transaction_stats()
        admin.transaction("kept")
        admin.expired_transactions()
    assert holds() == before
    admin.decide_transaction("kept", commit=False, operator="test")


@CHECKING
def test_a_decision_by_hand_reaches_the_newest_copy_and_is_made_once(admin: Admin, shop: Shop, run: Run) -> None:
    def checked(key: str) -> str:
        unique = shop.leave(key)
        until(lambda: [one.checks_sent > 0 for one in admin.pending_transactions(group=shop.group)] == [True])
        return unique

    good = checked("good")
    code, found, err = run("commit", good, "--yes", "--json")
    assert (code, err, found["state"]) == (0, "", "COMMITTED")
    assert any("written down nowhere" in text for text in found["not_reported"])
    until(lambda: ids(admin, shop.group) == [])
    bad = checked("bad")
    code, _, err = run("rollback", bad, "--yes")
    assert (code, err) == (0, "")
    until(lambda: admin.transaction(good).state == "COMMITTED" and admin.transaction(bad).state == "ROLLED_BACK")
    assert run("commit", good, "--yes")[0] == 0
    assert run("rollback", good, "--yes", "--json")[0] == 1
    assert run("commit", bad, "--yes", "--json")[0] == 1
    until(lambda: ids(admin, shop.group) == [])
    ends = admin.topic_stats(shop.topic)
    assert sum(each.max_offset for each in ends.values()) == 1, "delivered once"


@NOT_CHECKING
def test_a_decision_by_hand_later_than_the_messages_own_age_is_made(admin: Admin, shop: Shop, run: Run) -> None:
    """5.3.3 refuses it (604) unless it answers a check."""
    unique = shop.leave("late", check_after_s=1)
    time.sleep(1.5)
    code, found, _ = run("commit", unique, "--yes", "--json")
    assert (code, found["state"]) == (0, "COMMITTED")
    until(lambda: admin.transaction(unique).state == "COMMITTED")
    assert sum(each.max_offset for each in admin.topic_stats(shop.topic).values()) == 1


@CHECKING
def test_what_expired_is_listed_and_resumed(cluster: Cluster, admin: Admin, shop: Shop, run: Run) -> None:
    unique = shop.leave("stubborn")

    def listed() -> Any:
        found = run("expired", "--json")[1]
        return next((one for one in found if one["msg_id"] == unique), None)

    one = until(listed)
    assert (one["group"], one["topic"], one["keys"], one["resumed"]) == (shop.group, shop.topic, "stubborn", False)
    assert one["checks_sent"] == cluster.settings["transactionCheckMax"]
    assert (one["reason"], bool(one["not_reported"])) == ("", True)
    assert admin.transaction(unique).state == "EXPIRED"
    assert run("commit", unique, "--yes")[0] == 1
    shop.says = COMMIT
    assert run("resume", one["offset_msg_id"])[0] == 0
    assert until(lambda: listed()["resumed"])
    until(lambda: admin.transaction(unique).state == "COMMITTED")
    assert "why it expired" in run("expired")[1]
