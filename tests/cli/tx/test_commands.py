"""`halfmoon tx` against a running broker: what is pending, one transaction, checks, decisions by hand, figures."""

from __future__ import annotations

import io
import math
import re
import sys
import time
from collections.abc import Iterator

import pytest

from halfmoon import LocalTransactionState, Message, TransactionProducer
from halfmoon.cli.main import main
from halfmoon.testing.local import LocalCluster
from tests.cli.conftest import Run
from tests.waiting import until

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
GROUP = "P_shop"


@pytest.fixture(scope="module")
def broker_settings():
    """The broker asks nobody by itself while these tests run."""
    return {"transactionCheckInterval": 600_000}


class Shop:
    """A producer that leaves half messages undecided, and says on a check what it is told to."""

    def __init__(self, cluster: LocalCluster, group: str = GROUP) -> None:
        self.says = UNKNOWN
        self.producer = TransactionProducer(group=group, nameserver=cluster.nameserver, check=lambda message: self.says)

    def leave(self, topic: str, *keys: str) -> str:
        """Store a half message, decide nothing, and return its id."""
        with self.producer.half(Message(topic, b"order", tag="paid", keys=list(keys))) as half:
            half.leave()
        return half.message_id


@pytest.fixture
def shop(cluster: LocalCluster) -> Iterator[Shop]:
    """A running producer."""
    found = Shop(cluster)
    with found.producer:
        yield found


def bodies(run: Run, topic: str) -> list[str]:
    """Return what consumers of a topic see."""
    return [each["body"] for each in run("consume", "--topic", topic, "--json").lines()]


# ---------------------------------------------------------------- looking


def test_pending_transactions_are_listed_with_everything_an_operator_asks_for(run, shop):
    topic = "TP_open"  # a short name is shown whole, whatever other tests left pending
    assert run("topic", "create", topic, "--queues", "2").code == 0
    unique = shop.leave(topic, "o-1", "urgent")

    [one] = [each for each in run("tx", "pending", "--group", GROUP, "--json").json()["transactions"] if each["topic"] == topic]
    assert (one["msg_id"], one["group"], one["keys"], one["tag"], one["state"]) == (unique, GROUP, "o-1 urgent", "paid", "PREPARED")
    assert (one["checks_sent"], one["checks_left"], one["producers"], one["broker"]) == (0, 15, 1, "broker-a")
    assert one["next_check_ms"] > time.time() * 1000
    assert 0 <= time.time() * 1000 - one["since_ms"] < 60_000
    assert one["not_reported"] == []
    said = run("tx", "pending")
    assert (said.code, said.err) == (0, "")
    assert re.search(
        rf"\ds {GROUP} {topic} o-1 urgent {unique} 0 of 15; next in \S+; 1 producer online", " ".join(said.out.split())
    )


@pytest.mark.slow
def test_pending_transactions_are_chosen_by_group_and_age_and_counted_out(run, topic, cluster):
    other = Shop(cluster, "P_other")
    begun = time.monotonic()
    run("tx", "pending", "--group", "P_nobody")
    apart_s = 2 + math.ceil(5 * (time.monotonic() - begun))  # a loaded machine takes its time for a command
    with other.producer:
        first = other.leave(topic, "a")
        time.sleep(apart_s + 0.1)
        rest = [other.leave(topic, key) for key in "bc"]

    def listed(*options: str):
        return [one["msg_id"] for one in run("tx", "pending", "--group", "P_other", "--json", *options).json()["transactions"]]

    assert listed("--older-than", f"{apart_s}s") == [first]
    codes = [run("tx", "pending", "--group", "P_other", *age).code for age in ((), ("--older-than", "0s"), ("--older-than", "1h"))]
    assert codes == [0, 1, 0], "monitoring asks for old ones"
    assert listed() == [first, *rest]
    assert listed("--older-than", "1h") == []
    assert listed("--limit", "2") == [first, rest[0]]
    assert run("tx", "pending", "--group", "P_other", "--limit", "2", "--json").json()["more"] is True
    assert "more are pending than the 2 oldest" in run("tx", "pending", "--group", "P_other", "--limit", "2").out
    assert run("tx", "pending", "--group", "P_other", "--limit", "3", "--json").json()["more"] is False
    assert "pending: none" in run("tx", "pending", "--group", "P_nobody").out


@pytest.mark.parametrize("command", ["show", "check", "commit", "rollback"])
def test_a_key_of_digits_is_a_key_and_one_name_is_given(run, topic, shop, command):
    key = str(4711 + len(command) * 7 + ord(command[0]))
    unique = shop.leave(topic, key)
    yes = ["--yes"] if command in ("commit", "rollback") else []
    assert "there is no half message '0'" in run("tx", command, "0", *yes).err
    assert run("tx", "show", key, "--json").json()["msg_id"] == unique
    shop.leave(topic, key)
    several = run("tx", command, key, *yes)
    assert (several.code, f"the key {key!r} names 2 transactions, give one of: " in several.err) == (1, True)
    assert run("tx", "show", unique, "--json").json()["state"] == "PREPARED"
    assert run("tx", command, *yes).code == run("tx", command, unique, "--offset", "0", *yes).code == 2


@pytest.mark.parametrize("name", ["msg_id", "offset_msg_id", "index", "key"])
def test_one_transaction_is_shown_by_any_of_its_names(run, topic, shop, name):
    unique = shop.leave(topic, f"key-{topic}")
    one = run("tx", "show", unique, "--json").json()

    named = ["--offset", str(one[name])] if name == "index" else [f"key-{topic}" if name == "key" else one[name]]
    again = run("tx", "show", *named, "--json").json()
    assert again["msg_id"] == unique
    said = run("tx", "show", unique).out
    lines = (
        "state              PREPARED", f"group              {GROUP}", "live producers     1",
        f"keys               key-{topic}", "checks left        15",
    )  # fmt: skip
    assert set(lines) <= set(said.splitlines())


def test_what_is_not_there_is_exit_code_1_and_an_argument_that_does_not_fit_2(run):
    for verb in ("show", "check", "commit", "rollback"):
        ran = run("tx", verb, "o-none", *(["--yes"] if verb in ("commit", "rollback") else []))
        assert (ran.code, "no half message 'o-none'" in ran.err) == (1, True)
    assert run("tx", "resume", "7F00000100002A9F00000000FFFFFFFF").code in (1, 2)
    assert run("tx", "resume", "rubbish").code == 2
    assert run("tx", "pending", "--older-than", "soon").code == 2
    assert run("tx", "pending", "--limit", "0").code == 2
    assert run("tx").code == 2


# ---------------------------------------------------------------- checks


def test_a_check_by_hand_goes_from_member_to_member_until_one_answers_and_each_answer_is_shown(run, topic, cluster):
    group = "P_by_member"
    with Shop(cluster, group).producer as leaving:
        leaving.on_check(topic, lambda message: LocalTransactionState.NOT_MINE)
        with leaving.half(Message(topic, b"order")) as half:
            half.leave()
        run("tx", "check", half.message_id)
        until(lambda: "not mine" in run("tx", "show", half.message_id).out)
        assert re.search(r"to \S+@\S+ at 127\.0\.0\.1:\d+: not mine", run("tx", "show", half.message_id).out)
        with TransactionProducer(group=group, nameserver=cluster.nameserver, check=lambda message: COMMIT):
            until(lambda: run("tx", "show", half.message_id, "--json").json()["producers"] == 2)
            run("tx", "check", half.message_id)
            until(lambda: run("tx", "show", half.message_id, "--json").json()["state"] == "COMMITTED")
    shown = run("tx", "show", half.message_id).out
    answers = re.findall(r"to producer (\w+), which is not connected: (.*)", shown)
    assert [answer for _, answer in answers][-1] == "commit"
    assert {answer for _, answer in answers[:-1]} == {"not mine"}
    assert answers[-1][0] not in {producer for producer, _ in answers[:-1]}


def test_a_check_by_hand_is_sent_answered_and_remembered(run, topic, shop):
    unique = shop.leave(topic)

    asked = run("tx", "check", unique)
    assert (asked.code, asked.out) == (0, f"a producer of group {GROUP} got check 1, 14 left\n")
    until(lambda: run("tx", "show", unique, "--json").json()["checks"][0]["answer"] == "UNKNOWN")
    assert "last answer        unknown" in run("tx", "show", unique).out
    shop.says = COMMIT
    run("tx", "check", unique, "--json")
    until(lambda: run("tx", "show", unique, "--json").json()["state"] == "COMMITTED")
    assert bodies(run, topic) == ["order"]
    again = run("tx", "check", unique)
    assert (again.code, "decided: COMMITTED" in again.err) == (1, True)


def test_where_nobody_of_the_group_is_there_no_check_can_be_sent(run, topic, cluster):
    gone = Shop(cluster, "P_gone")
    with gone.producer:
        unique = gone.leave(topic)

    ran = until(lambda: (asked := run("tx", "check", unique)).code == 1 and asked)
    assert "no producer of its group is connected" in ran.err
    assert "if a producer is there" in run("tx", "show", unique).out


# ---------------------------------------------------------------- decisions by hand


@pytest.mark.mission("001-20")
def test_a_decision_by_hand_is_carried_out_with_the_name_of_who_made_it(run, topic, shop, caplog):
    good, bad = shop.leave(topic, "good"), shop.leave(topic, "bad")

    with caplog.at_level("WARNING", "halfmoon.audit"):
        committed = run("tx", "commit", good, "--yes", "--operator", "Ada")
        rolled_back = run("tx", "rollback", bad, "--yes", "--json")
    assert (committed.code, committed.out) == (0, f"{good} of group {GROUP} is committed by Ada\n")
    assert rolled_back.json()["state"] == "ROLLED_BACK"
    assert "@" in rolled_back.json()["operator"]
    assert bodies(run, topic) == ["order"]
    assert [("committed" in text, "by Ada" in text) for text in caplog.messages if "is committed" in text] == [(True, True)]
    assert any(rolled_back.json()["operator"] in text for text in caplog.messages)
    still = [one["msg_id"] for one in run("tx", "pending", "--json").json()["transactions"]]
    assert not {good, bad} & set(still)


def test_a_decision_made_before_is_not_made_again_and_a_contradicting_one_is_refused(run, topic, shop):
    unique = shop.leave(topic)
    run("tx", "commit", unique, "--yes")

    again = run("tx", "commit", unique, "--yes")
    against = run("tx", "rollback", unique, "--yes", "--json")
    assert (again.code, "already; nothing was changed" in again.out) == (0, True)
    assert (against.code, "decided: COMMITTED" in against.err) == (1, True)
    assert bodies(run, topic) == ["order"]


def test_without_a_terminal_a_decision_needs_yes(run, topic, shop):
    unique = shop.leave(topic)

    for verb in ("commit", "rollback"):
        ran = run("tx", verb, unique)
        assert (ran.code, "Not done. Add --yes to decide." in ran.err) == (2, True)
    assert run("tx", "show", unique, "--json").json()["state"] == "PREPARED"


@pytest.mark.parametrize(("said", "state", "code"), [("y\n", "COMMITTED", 0), ("n\n", "PREPARED", 1)])
def test_on_a_terminal_a_decision_is_confirmed(run, topic, shop, monkeypatch, said, state, code):
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    unique = shop.leave(topic)
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(said.encode())))

    assert main(["tx", "commit", unique]) == code
    assert run("tx", "show", unique, "--json").json()["state"] == state


@pytest.mark.parametrize("operator", [" ", "x" * 201, "a\x07b"])
def test_an_operator_whose_name_cannot_be_written_down_decides_nothing(run, topic, shop, operator):
    unique = shop.leave(topic)

    assert run("tx", "rollback", unique, "--yes", "--operator", operator).code == 1
    assert run("tx", "show", unique, "--json").json()["state"] == "PREPARED"


# ---------------------------------------------------------------- figures


def test_figures_follow_what_happens(run, topic, cluster):
    counting = Shop(cluster, "P_counted")
    with counting.producer:
        before = run("tx", "status", "--json").json()[0]["counters"]
        one, two, _ = (counting.leave(topic) for _ in range(3))
        run("tx", "commit", one, "--yes")
        run("tx", "rollback", two, "--yes")
        [found] = run("tx", "status", "--json").json()
        text = run("tx", "status").out

    grown = {name: found["counters"][name] - before[name] for name in before}
    assert (grown["halves"], grown["commits"], grown["rollbacks"], grown["by_hand"]) == (3, 1, 1, 2)
    [group] = [each for each in found["groups"] if each["group"] == "P_counted"]
    assert (group["pending"], group["producers"]) == (1, 1)
    assert found["now_ms"] - group["oldest_ms"] < 60_000
    assert re.search(r"P_counted +1 +\d+\.\ds +1 +\d", text)
    assert {"checks_sent", "checks_answered", "checks_unanswered", "contradictions", "expired"} <= found["counters"].keys()


def test_the_health_of_a_cluster_tells_what_is_pending(run, topic, shop):
    shop.leave(topic)

    [broker] = run("status", "--json").json()["brokers"]
    assert broker["transactions_pending"] == run("tx", "status", "--json").json()[0]["pending_count"]
    assert 0 <= broker["oldest_pending_ms"] < 600_000
    assert re.search(rf"{broker['transactions_pending']} for \d", run("status").out)
