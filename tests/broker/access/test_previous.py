"""Tests of previous secrets: both are taken until the time, the old one nowhere from then on, and who still uses it is told."""

from __future__ import annotations

import json

import pytest

from halfmoon.broker.access.previous import ADDRESSES_MAX, NEVER, PreviousSecrets, text
from halfmoon.columns.signing import Signer
from halfmoon.errors import ACCESS_REFUSED
from halfmoon.shown.texts import time_text
from halfmoon.wire.bodies import HeartbeatData, ProducerData, to_json
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.access import GetBrokerClusterAclConfig, UpdateAndCreateAclConfig
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.client import HeartBeat
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.talk import START_MS, Talk, pull_header, send_header

OLD, NEW, WRONG = USER, USER._replace(secret_key="a new secret"), USER._replace(secret_key="neither")
UNTIL_MS = START_MS + 600_000
BOTH = f"  secretKey: a new secret\n  previousSecretKey: 12345678\n  previousSecretUntil: {time_text(UNTIL_MS)}\n"
TWO = RULES.replace("  secretKey: 12345678\n", BOTH)
EXPIRED = ACCESS_REFUSED + "Check signature failed for accessKey=RocketMQ"


@pytest.fixture
def talk(tmp_path):
    write(tmp_path, TWO)
    talk = Talk(tmp_path, acl_enable=True)
    for who in (OLD, OLD):  # the first one creates the topic, the second opens its queue
        assert talk.ask(send_header("topicB"), b"x", who=who, peer=9).code == 0
    talk.lose(9)
    return talk


def remark(talk, who, peer=1, header=None):
    return talk.ask(header or send_header("topicB"), b"x", who=who, peer=peer).remark


def told(talk, key="RocketMQ"):
    """What administrators are told of an account (54)."""
    accounts = json.loads(bytes(talk.ask(GetBrokerClusterAclConfig(), who=ADMIN, peer=8).body))["plainAccessConfigs"]
    return next(account for account in accounts if account["accessKey"] == key)


def sends(who, count, opaque):
    """Frames of signed sends, which are read at once on a connection that has proved the secret."""
    command = request_command(send_header("topicB"), b"fast", opaque=opaque)
    command.fields = {**command.fields, **Signer(*who).sign(command.fields, b"fast")}
    return encode(command) * count


def test_both_secrets_are_taken_until_the_time_and_from_then_on_the_new_one_alone(talk):
    talk.now = UNTIL_MS - 1
    assert (remark(talk, OLD), remark(talk, NEW, 2), remark(talk, WRONG, 3)) == (None, None, EXPIRED)

    talk.now = UNTIL_MS  # no tick comes before the requests
    assert (remark(talk, OLD), remark(talk, NEW, 2), remark(talk, OLD, 4)) == (EXPIRED, None, EXPIRED)


def test_both_secrets_are_read_at_once_until_the_time_and_a_connection_that_used_the_old_one_is_refused_from_then_on(talk, general):
    for who, peer in ((OLD, 1), (NEW, 2)):
        remark(talk, who, peer)
    general.clear()

    def send(opaque):
        for who, peer in ((OLD, 1), (NEW, 2)):
            talk.feed(peer, sends(who, 2, opaque))
        talk.turn()
        return [[reply.code for reply in talk.received[peer] if reply.opaque == opaque] for peer in (1, 2)]

    before = talk.broker.store.queue_max("topicB", 0)
    assert send(801) == [[0, 0], [0, 0]]
    assert general == []
    talk.now = UNTIL_MS
    assert send(802) == [[1, 1], [0, 0]]
    assert general.count(1) == 2
    assert talk.broker.store.queue_max("topicB", 0) == before + 6


def test_one_connection_may_go_from_the_old_secret_to_the_new_one_and_keeps_that(talk):
    for who in (OLD, NEW, OLD, NEW):
        assert remark(talk, who) is None
    talk.now = UNTIL_MS
    assert (remark(talk, NEW), remark(talk, OLD)) == (None, EXPIRED)


def test_a_held_pull_is_refused_at_the_time_if_the_old_secret_signed_it_and_goes_on_if_the_new_one_did(talk):
    talk.now = UNTIL_MS - 5_000
    pull = pull_header("topicB", group="groupB", offset=talk.broker.store.queue_max("topicB", 0), wait_ms=15_000)
    old, new = talk.post(pull, who=OLD), talk.post(pull, who=NEW, peer=2)
    talk.turn()
    assert talk.broker.holds.count == 2

    talk.wait(5_000)

    assert talk.answer(old).remark == EXPIRED
    assert talk.broker.holds.count == 1
    talk.ask(send_header("topicB"), b"late", who=ADMIN, peer=3)
    assert b"late" in talk.answer(new, peer=2).body


def test_a_member_that_used_the_old_secret_leaves_its_groups_at_the_time(talk):
    beat = to_json(HeartbeatData(client_id="c", producer_data_set=[ProducerData("groupB")], consumer_data_set=[]))
    for who, peer in ((OLD, 1), (NEW, 2)):
        assert talk.ask(HeartBeat(), beat, who=who, peer=peer).code == 0
    assert set(talk.broker.clients.producers["groupB"]) == {1, 2}

    talk.now = UNTIL_MS
    talk.turn()

    assert set(talk.broker.clients.producers["groupB"]) == {2}


def test_other_white_addresses_make_nobody_forget_who_has_proved_which_secret(talk, tmp_path):
    beat = to_json(HeartbeatData(client_id="c", producer_data_set=[ProducerData("groupB")], consumer_data_set=[]))
    for who, peer in ((OLD, 1), (NEW, 2)):
        assert talk.ask(HeartBeat(), beat, who=who, peer=talk.connect(peer, f"10.0.0.1:{peer}")).code == 0
    write(tmp_path, TWO.replace("10.10.103.*", "10.10.104.*"))
    talk.wait(5_001)
    talk.connect(3, "10.0.0.1:3")
    said = [remark(talk, WRONG, 3) for _ in range(31)]

    assert "Too many wrong signatures" in said[-1]
    assert remark(talk, NEW, 2) is None
    talk.now = UNTIL_MS
    talk.turn()
    assert set(talk.broker.clients.producers["groupB"]) == {2}


def test_who_has_proved_the_new_secret_goes_on_although_others_at_its_address_still_try_the_old_one(talk):
    talk.connect(1, "10.0.0.1:1")
    talk.connect(2, "10.0.0.1:2")
    assert (remark(talk, NEW, 1), remark(talk, OLD, 2)) == (None, None)
    talk.now = UNTIL_MS
    said = [remark(talk, WRONG, 2) for _ in range(31)]

    assert "Too many wrong signatures" in said[-1]
    assert remark(talk, NEW, 1) is None


@pytest.mark.parametrize("how", ["expired", "ended", "replaced"])
def test_a_client_that_still_has_the_secret_that_ended_keeps_no_other_at_its_address_out(talk, tmp_path, how):
    talk.connect(2, "10.0.0.1:2")
    if how == "expired":
        talk.now = UNTIL_MS
    else:
        one = "\n".join(line for line in TWO.splitlines() if "previousSecret" not in line)
        write(tmp_path, one if how == "ended" else one.replace(NEW.secret_key, "another secret"))
        talk.wait(5_001)
    who, ended = (NEW, OLD) if how != "replaced" else (NEW._replace(secret_key="another secret"), NEW)

    assert {remark(talk, ended, 2) for _ in range(40)} == {EXPIRED}
    assert remark(talk, who, talk.connect(3, "10.0.0.1:3")) is None


def test_the_broker_wakes_at_the_time_and_a_step_of_the_clock_does_not_move_it(talk):
    access = talk.broker.access
    talk.now = UNTIL_MS - 160_000
    access.tick(talk.instant)
    talk.set_clock(159_900)
    assert access.due(talk.instant) == talk.instant.at(UNTIL_MS) == talk.instant.steady + 100
    talk.now = UNTIL_MS
    access.tick(talk.instant)
    assert access.due(talk.instant) > talk.instant.steady
    assert access.rules.accounts["RocketMQ"].secrets == (b"a new secret",)


def test_files_that_are_read_again_after_the_time_do_not_bring_it_back(talk, tmp_path):
    talk.wait(700_000)
    write(tmp_path, TWO.replace("topicC=SUB", "topicC=PUB"))
    talk.wait(5_001)
    assert (remark(talk, OLD), remark(talk, NEW, header=send_header("topicC"))) == (EXPIRED, None)
    talk.restart()
    assert (remark(talk, OLD), remark(talk, NEW)) == (EXPIRED, None)


def test_an_administrators_old_secret_is_good_at_the_name_server_of_its_process_as_long_as_at_the_broker(talk):
    account = talk.broker.access.rules.accounts["RocketMQ"]
    assert account.at(UNTIL_MS - 1).secrets == (b"a new secret", b"12345678")
    assert account.at(UNTIL_MS).secrets == (b"a new secret",)


# ---------------------------------------------------------------- uses


def test_who_still_uses_the_old_secret_is_told_by_address_and_time_and_the_secrets_are_not(talk):
    used = told(talk)["previousSecretUsed"]
    assert used == {"10.0.0.9": START_MS}
    talk.now += 1000
    remark(talk, NEW, 2)
    remark(talk, OLD, 1)
    talk.now += 1000

    account = told(talk)

    assert account["previousSecretUsed"] == {"10.0.0.9": START_MS, "10.0.0.1": talk.now}  # it is connected
    assert (account["previousSecretUntil"], account["previousSecretSince"]) == (time_text(UNTIL_MS), START_MS)
    assert account["secretKey"] == account["previousSecretKey"] == "***"
    assert "previousSecretKey" not in told(talk, "rocketmq2")
    talk.lose(1)
    talk.now += 1000
    assert told(talk)["previousSecretUsed"]["10.0.0.1"] == talk.now - 1000


def test_runtime_information_says_until_when_previous_secrets_are_good_and_when_one_was_last_used(talk):
    def said(peer=8):
        return json.loads(bytes(talk.ask(GetBrokerRuntimeInfo(), who=ADMIN, peer=peer).body))["table"]["aclPreviousSecrets"]

    since = time_text(START_MS)
    assert said() == f"accounts=1 until={time_text(UNTIL_MS)} used={since} since={since}"
    talk.wait(600_000)
    assert said(7) == "accounts=0"
    talk.connect(8)
    assert "previousSecretSince" not in told(talk)
    assert told(talk)["previousSecretUntil"] == time_text(UNTIL_MS)


def test_an_account_whose_old_secret_nobody_used_says_so(tmp_path):
    write(tmp_path, TWO)
    talk = Talk(tmp_path, acl_enable=True)
    assert told(talk)["previousSecretUsed"] == {}
    assert " used=not " in text(talk.broker.access.uses())


def test_uses_stay_when_other_things_change_and_begin_anew_with_another_secret(talk, tmp_path):
    talk.now += 10
    assert talk.ask(UpdateAndCreateAclConfig(access_key="account3", secret_key="secret-3"), who=ADMIN).code == 0
    assert told(talk)["previousSecretUsed"] == {"10.0.0.9": START_MS}

    write(tmp_path, TWO.replace("previousSecretKey: 12345678", "previousSecretKey: yet another"))
    talk.wait(5_001)
    assert told(talk)["previousSecretUsed"] == {}
    assert told(talk)["previousSecretSince"] > START_MS


def test_addresses_are_bounded_and_the_one_that_signed_longest_ago_is_forgotten(talk):
    last = ADDRESSES_MAX + 1
    for number in (*range(1, last), 1, last):
        peer = talk.connect(1000 + number, f"10.0.1.{number}:1")
        remark(talk, OLD, peer)
        talk.lose(peer)
    assert list(told(talk)["previousSecretUsed"]) == [f"10.0.1.{number}" for number in (*range(3, last), 1, last)]


def test_without_previous_secrets_nothing_is_due():
    secrets = PreviousSecrets()
    assert secrets.count({}, {}, 0) == {}
    assert secrets.due_ms == NEVER
    assert text(secrets.by_account) == "accounts=0"
