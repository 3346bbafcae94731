"""Tests of connections that are an account's by their certificate: unsigned, for life, on the general path and the fast one."""

from __future__ import annotations

import logging

import pytest

from halfmoon.broker.access.access import GUESSES_A_MINUTE
from halfmoon.columns.signing import Signer
from halfmoon.errors import ACCESS_REFUSED
from halfmoon.wire.bodies import HeartbeatData, ProducerData, from_json, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.access import AclConfig, DeleteAclConfig, GetBrokerClusterAclConfig
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.half import COMMIT, end_header, half_properties
from tests.broker.talk import Talk, pull_header, send_header

SPIFFE = "spiffe://example/orders"
MAPPED = RULES.replace("secretKey: 12345678\n", f"secretKey: 12345678\n  certificate: [orders-service, '{SPIFFE}']\n").replace(
    "secretKey: 87654321\n", "secretKey: 87654321\n  certificate: operator\n"
)
CHANGED = "the account of its certificate changed"


@pytest.fixture
def talk(tmp_path):
    write(tmp_path, MAPPED)
    talk = Talk(tmp_path, acl_enable=True)
    for topic in ("topicA", "topicB") * 2:  # the first one creates the topic, the second opens its queue
        assert talk.ask(send_header(topic), b"first", who=ADMIN, peer=99).code == 0
    return talk


def connect(talk, number, *names, remote=None):
    talk.connect(number, remote)
    talk.broker.certified(number, names)
    return number


def remark(talk, header, body=b"", **kw):
    """Ask; return the reason of a refusal, None: it is let pass."""
    reply = talk.ask(header, body, **kw)
    return reply.remark.removeprefix(ACCESS_REFUSED) if reply.code == 1 else None


def read_again(talk, root, rules):
    write(root, rules)
    talk.wait(5_001)


def test_listings_say_which_certificates_are_whose(talk):
    found = from_json(AclConfig, talk.ask(GetBrokerClusterAclConfig(), who=ADMIN, peer=99).body).plain_access_configs

    assert {each.access_key: each.certificates for each in found if each.certificates} == {
        "RocketMQ": ["orders-service", SPIFFE], "rocketmq2": ["operator"],
    }  # fmt: skip


# ---------------------------------------------------------------- whose a request is


@pytest.mark.parametrize("names", [("orders-service",), (SPIFFE,), ("a host", SPIFFE), (SPIFFE, "orders-service")])
def test_requests_of_a_connection_with_an_accounts_certificate_are_that_accounts_unsigned(talk, names):
    connect(talk, 1, *names)

    assert remark(talk, send_header("topicB"), b"x") is None
    assert remark(talk, send_header("topicA"), b"x") == "No default permission for topic:topicA"
    assert remark(talk, pull_header("topicB", group="groupB")) is None
    assert remark(talk, pull_header("topicB", group="groupA")) == "No default permission for group:groupA"
    assert "Need admin permission" in remark(talk, DeleteTopicInBroker(topic="topicB"))


@pytest.mark.parametrize(
    "name", ["Orders-Service", "orders-service.", "orders-service\0.example", "orders", "*", "spiffe://example/"]
)
def test_a_name_is_the_accounts_exactly_or_not_at_all_and_the_refusal_says_which_it_is(talk, name):
    connect(talk, 1, name)

    assert remark(talk, send_header("topicB")) == f"No accessKey is configured, and no account has the certificate {name!r}"
    assert remark(talk, send_header("topicB"), who=USER) is None


def test_a_refusal_shows_a_few_names_of_a_certificate_and_little_of_each(talk):
    connect(talk, 1, *[f"{number}" + "x" * 1000 for number in range(50)])

    assert len(remark(talk, send_header("topicB"))) < 500


def test_a_connection_without_a_certificate_must_sign_as_ever(talk):
    assert remark(talk, send_header("topicB")) == "No accessKey is configured"
    assert remark(talk, send_header("topicB"), who=USER) is None


def test_a_request_that_another_account_signed_is_refused_on_a_connection_with_a_certificate(talk):
    connect(talk, 1, "orders-service")

    assert remark(talk, send_header("topicB"), who=ADMIN) == "The certificate is that of RocketMQ, and not of accessKey=rocketmq2"
    nobody = ADMIN._replace(access_key="nobody1")
    assert remark(talk, send_header("topicB"), who=nobody) == "The certificate is that of RocketMQ, and not of accessKey=nobody1"
    assert remark(talk, send_header("topicB")) is None


def test_a_signature_of_the_same_account_is_checked_and_cannot_be_guessed_for_ever(talk):
    connect(talk, 1, "orders-service")
    wrong = USER._replace(secret_key="a guess of it")

    remarks = [remark(talk, send_header("topicB"), who=wrong)[:24] for _ in range(GUESSES_A_MINUTE + 1)]
    assert remarks == ["Check signature failed f"] * GUESSES_A_MINUTE + ["Too many wrong signature"]
    assert remark(talk, send_header("topicB")) is None


def test_who_signs_beside_its_certificate_goes_on_although_others_guess_at_its_address(talk, tmp_path):
    connect(talk, 1, "orders-service", remote="10.0.0.1:1")
    talk.connect(2, "10.0.0.1:2")
    beat = to_json(HeartbeatData(client_id="mine", producer_data_set=(ProducerData(group_name="groupB"),)))
    assert remark(talk, HeartBeat(), beat, who=USER) is None
    for _ in range(GUESSES_A_MINUTE + 1):
        assert remark(talk, send_header("topicB"), who=USER._replace(secret_key="a guess of it"), peer=2) is not None

    assert remark(talk, HeartBeat(), beat, who=USER) is None
    read_again(talk, tmp_path, MAPPED.replace("12345678", "another secret"))
    assert "Too many wrong signatures" in remark(talk, HeartBeat(), beat, who=USER)
    assert set(talk.broker.clients.producers["groupB"]) == {1}


def test_a_certificate_with_the_names_of_two_accounts_is_neithers(talk):
    connect(talk, 1, "operator", "orders-service")

    for who in (None, USER, ADMIN):
        assert remark(talk, send_header("topicB"), who=who) == "The certificate is that of several accounts: RocketMQ, rocketmq2"


def test_a_client_id_belongs_to_the_account_of_the_certificate(talk):
    beat = to_json(HeartbeatData(client_id="mine", producer_data_set=(ProducerData(group_name="groupB"),)))
    connect(talk, 1, "orders-service")

    assert remark(talk, HeartBeat(), beat) is None
    assert "belongs to a connected client of another account" in remark(talk, HeartBeat(), beat, who=ADMIN, peer=2)
    assert remark(talk, HeartBeat(), beat, who=USER, peer=3) is None


def test_what_operators_do_is_logged_with_the_account_of_their_certificate(talk, caplog):
    caplog.set_level(logging.INFO, "halfmoon.audit")
    for number, (name, remote) in enumerate([("operator", None), ("orders-service", None), ("operator", "10.10.103.9:1")], 1):
        talk.ask(DeleteTopicInBroker(topic="gone"), peer=connect(talk, number, name, remote=remote))

    done, refused, white = [record.getMessage() for record in caplog.records if record.name == "halfmoon.audit"]
    assert "by account rocketmq2 from 10.0.0.1:5000: done" in done
    assert "by account RocketMQ from 10.0.0.2:5000: refused (1)" in refused
    assert "by account rocketmq2 from 10.10.103.9:1: done" in white


def test_a_half_message_is_decided_by_the_account_of_the_certificate(talk):
    connect(talk, 1, "orders-service")
    before = talk.broker.store.queue_max("topicB", 0)
    for number in range(2):  # the first decision opens the way for the second
        header = send_header("topicB", sys_flag=4, properties=half_properties(f"k{number}", group="groupB"))
        half = talk.ask(header, b"half")
        assert half.code == 0
        decision = end_header(half.header(SendMessageReply), COMMIT, group="groupB", key=f"k{number}")
        assert talk.ask(decision).code == 0
        assert talk.broker.store.queue_max("topicB", 0) == before + number + 1


# ---------------------------------------------------------------- rules that change


def test_a_connection_whose_account_is_removed_is_closed_and_refused_when_it_comes_again(talk, tmp_path):
    connect(talk, 1, "orders-service")
    assert remark(talk, send_header("topicB")) is None
    read_again(talk, tmp_path, MAPPED.replace("accessKey: RocketMQ", "accessKey: RocketMQ9").replace("orders-service", "other"))

    assert talk.closed == {1: CHANGED}
    connect(talk, 2, "orders-service")
    refusal = "No accessKey is configured, and no account has the certificate 'orders-service'"
    assert remark(talk, send_header("topicB"), peer=2) == refusal


@pytest.mark.parametrize("rules", [
    MAPPED.replace("certificate: operator", "certificate: [operator, gateway]"),
    MAPPED.replace("orders-service", "orders-service, gateway"),
])  # fmt: skip
def test_a_certificate_that_gets_an_account_counts_for_connections_that_begin_then(talk, tmp_path, rules):
    connect(talk, 1, "gateway")
    held = talk.post(pull_header("topicB", group="groupB", offset=2, wait_ms=15_000), who=USER)
    talk.turn()
    assert talk.broker.holds.count == 1
    read_again(talk, tmp_path, rules)

    assert talk.closed == {1: CHANGED}
    talk.lose(1)
    assert talk.broker.holds.count == 0
    assert talk.answer(held) is None
    assert remark(talk, send_header("topicB"), peer=connect(talk, 2, "gateway")) is None


def test_a_connection_goes_on_while_its_certificate_stays_its_accounts_whatever_else_changes(talk, tmp_path):
    connect(talk, 1, "orders-service")
    assert remark(talk, send_header("topicB"), b"x") is None
    held = talk.post(pull_header("topicB", group="groupB", offset=3, wait_ms=15_000))
    talk.turn()
    read_again(talk, tmp_path, MAPPED.replace("12345678", "another secret").replace("topicC=SUB", "topicC=DENY"))

    assert talk.closed == {}
    assert talk.answer(held) is None
    assert remark(talk, send_header("topicB"), b"late") is None
    assert b"late" in talk.answer(held).body


def test_a_connection_that_only_holds_a_pull_is_closed_too_when_its_certificate_moves_after_other_changes(talk, tmp_path):
    connect(talk, 1, "orders-service")
    talk.post(pull_header("topicB", group="groupB", offset=2, wait_ms=15_000))
    talk.turn()
    other = MAPPED + "- accessKey: account3\n  secretKey: 12345678\n"
    read_again(talk, tmp_path, other)
    assert talk.closed == {}
    moved = other.replace("orders-service, ", "").replace("certificate: operator", "certificate: [operator, orders-service]")
    read_again(talk, tmp_path, moved)

    assert talk.closed == {1: CHANGED}


def test_an_administrator_who_removes_its_own_account_is_answered_before_its_connection_is_closed(talk):
    connect(talk, 1, "operator")

    assert talk.ask(DeleteAclConfig(access_key="rocketmq2")).code == 0
    assert talk.closed == {1: CHANGED}


# ---------------------------------------------------------------- the fast path


def frame(topic="topicB", body=b"x", who=None, serialization=JSON, opaque=0):
    command = request_command(send_header(topic), body, opaque=opaque, serialization=serialization)
    command.fields = {**command.fields, **(Signer(*who).sign(command.fields, body) if who is not None else {})}
    return encode(command)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_unsigned_sends_of_a_connection_with_a_certificate_are_read_at_once(talk, general, serialization):
    connect(talk, 1, "orders-service")
    for opaque in range(4):
        talk.feed(1, frame(serialization=serialization, opaque=opaque))
        talk.turn()

    assert len(general) == 1
    assert [talk.answer(opaque).code for opaque in range(4)] == [0] * 4


def test_what_a_signing_connection_may_send_unsigned_is_nothing_even_beside_one_with_the_same_accounts_certificate(talk, general):
    connect(talk, 1, "orders-service")
    for opaque in range(2):
        talk.feed(1, frame(opaque=opaque))
        talk.feed(2, frame(opaque=opaque, who=USER))
        talk.turn()
    general.clear()
    stored = talk.broker.store.queue_max("topicB", 0)
    talk.feed(2, frame(opaque=7, body=b"signed", who=USER) + frame(opaque=8, body=b"bare"))
    talk.feed(1, frame(opaque=7, body=b"same", who=USER) + frame(opaque=8, body=b"other", who=ADMIN) + frame("topicA", opaque=9))
    talk.turn()

    assert [talk.answer(opaque, peer=2).code for opaque in (7, 8)] == [0, 1]
    assert [talk.answer(opaque).code for opaque in (7, 8, 9)] == [0, 1, 1]
    assert talk.broker.store.queue_max("topicB", 0) == stored + 2
    assert len(general) == 3


def test_changed_permissions_count_for_the_very_next_unsigned_send(talk, tmp_path):
    connect(talk, 1, "orders-service")
    talk.feed(1, frame(opaque=1) * 2)
    talk.turn()
    read_again(talk, tmp_path, MAPPED.replace("topicB=PUB|SUB", "topicB=SUB"))
    talk.received[1].clear()
    talk.feed(1, frame(opaque=2) * 2)
    talk.turn()

    assert [(reply.opaque, reply.code) for reply in talk.received[1]] == [(2, 1)] * 2
