"""Tests of the requests that administer accounts: what they change on the disk and at once, and each refusal."""

from __future__ import annotations

import json

import msgspec
import pytest

from halfmoon.broker.access.access import CHANGES_MAX
from halfmoon.broker.access.accounts import read_rules
from halfmoon.wire.headers.access import (
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    GetBrokerClusterAclInfo,
    UpdateAndCreateAclConfig,
    UpdateGlobalWhiteAddrsConfig,
)
from halfmoon.wire.needs import SUB
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import ADMIN, USER, write
from tests.broker.talk import START_MS, Talk, send_header

NEW = Credentials("account3", "secret-3")


@pytest.fixture
def talk(tmp_path):
    write(tmp_path)
    return Talk(tmp_path, acl_enable=True)


def ask(talk, header, who=ADMIN):
    return talk.ask(header, who=who)


def update(key=NEW.access_key, secret=NEW.secret_key, **fields):
    return UpdateAndCreateAclConfig(access_key=key, secret_key=secret, **fields)


def saved(talk):
    return read_rules("saved", (talk.root / "conf" / "plain_acl.yml").read_bytes())


@pytest.mark.parametrize(
    "header",
    [update(), DeleteAclConfig(access_key="RocketMQ"), UpdateGlobalWhiteAddrsConfig(global_white_addrs="*"),
     GetBrokerClusterAclInfo(), GetBrokerClusterAclConfig()],
    ids=lambda header: type(header).__name__,
)  # fmt: skip
def test_only_administrators_may_ask(talk, header):
    assert "Need admin permission" in ask(talk, header, USER).remark


def test_a_new_account_counts_at_once_and_after_a_restart(talk):
    assert ask(talk, update(topic_perms="topicN=PUB,topicM=SUB", default_group_perm="SUB")).code == 0

    assert talk.ask(send_header("topicN"), b"x", who=NEW).code == 0
    assert "topic:topicM" in talk.ask(send_header("topicM"), b"x", who=NEW).remark
    talk.restart()
    assert talk.ask(send_header("topicN"), b"x", who=NEW).code == 0


def test_what_is_not_given_of_an_account_stays(talk):
    assert ask(talk, update("RocketMQ", "new-secret", default_topic_perm="PUB")).code == 0

    user = next(account for account in saved(talk).accounts if account.access_key == "RocketMQ")
    assert user.secret == b"new-secret"
    assert "topicA" in user.permissions
    changed = USER._replace(secret_key="new-secret")
    assert talk.ask(send_header("other"), b"x", who=changed).code == 0
    assert "topic:topicA" in talk.ask(send_header("topicA"), b"x", who=changed).remark


HOUR_MS = 3_600_000


def rotate(talk, secret="new-secret", keep_ms=HOUR_MS, key="RocketMQ"):
    return ask(talk, UpdateAndCreateAclConfig(access_key=key, secret_key=secret, keep_previous_ms=keep_ms))


def secrets(talk, key="RocketMQ"):
    """The secrets of an account that count, and those in the file."""
    counting = next(account for account in saved(talk).accounts if account.access_key == key)
    assert talk.broker.access.rules.accounts[key].secrets == counting.at(talk.now).secrets
    return counting.secrets


def test_a_rotation_keeps_the_old_secret_for_its_time_and_changes_nothing_else(talk):
    before = talk.broker.access.rules.accounts["rocketmq2"]
    assert rotate(talk, key="rocketmq2").code == 0

    account = talk.broker.access.rules.accounts["rocketmq2"]
    assert (account.secrets, account.previous_until_ms) == ((b"new-secret", b"87654321"), START_MS + HOUR_MS)
    assert account.at(START_MS + HOUR_MS) == msgspec.structs.replace(before, secret=b"new-secret")
    assert "previousSecretUntil: '2023-11-14T23:13:20.000Z'" in (talk.root / "conf" / "plain_acl.yml").read_text()
    talk.restart()
    assert secrets(talk, "rocketmq2") == (b"new-secret", b"87654321")
    talk.wait(HOUR_MS)
    assert talk.ask(GetBrokerClusterAclConfig(), who=ADMIN, peer=7).remark.endswith(
        "Check signature failed for accessKey=rocketmq2"
    )


def test_the_same_rotation_again_only_moves_the_time(talk):
    assert [rotate(talk).code, rotate(talk, keep_ms=5).code] == [0, 0]

    assert secrets(talk) == (b"new-secret", b"12345678")
    assert talk.broker.access.rules.accounts["RocketMQ"].previous_until_ms == START_MS + 5


def test_a_second_rotation_is_refused_while_the_first_lasts_for_a_third_secret_is_not_kept(talk):
    rotate(talk)
    reply = rotate(talk, "third-secret")

    assert (reply.code, "a previous secret is good until 2023-11-14T23:13:20.000Z: end that first" in reply.remark) == (209, True)
    assert secrets(talk) == (b"new-secret", b"12345678")
    talk.wait(HOUR_MS)
    assert (
        talk.ask(
            UpdateAndCreateAclConfig(access_key="RocketMQ", secret_key="third-secret", keep_previous_ms=9), who=ADMIN, peer=7
        ).code
        == 0
    )
    assert secrets(talk) == (b"third-secret", b"new-secret")


def test_the_previous_secret_ends_or_gets_another_time_without_a_new_one(talk):
    rotate(talk)
    assert rotate(talk, None, 7).code == 0
    assert talk.broker.access.rules.accounts["RocketMQ"].previous_until_ms == START_MS + 7
    assert rotate(talk, None, 0).code == 0
    assert secrets(talk) == (b"new-secret",)
    assert rotate(talk, None, HOUR_MS).code == 0
    assert secrets(talk) == (b"new-secret",)
    assert rotate(talk, "third-secret", 0).code == 0
    assert secrets(talk) == (b"third-secret",)


def test_a_secret_that_is_changed_as_by_mqadmin_counts_at_once_and_the_old_ones_are_gone(talk):
    rotate(talk)
    assert ask(talk, update("RocketMQ", "new-secret", default_topic_perm="PUB")).code == 0
    assert secrets(talk) == (b"new-secret", b"12345678")  # another permission ends no rotation

    assert ask(talk, update("RocketMQ", "third-secret")).code == 0
    assert secrets(talk) == (b"third-secret",)
    assert "revious" not in (talk.root / "conf" / "plain_acl.yml").read_text()


@pytest.mark.parametrize(("given", "remark"), [
    ({"key": "nobody1"}, "there is no such account"), ({"secret": "short"}, "length should longer than 6"),
    ({"keep_ms": -1}, "is kept for 0 to"), ({"keep_ms": 1 << 62}, "is kept for 0 to"),
    ({"secret": "x" * 300}, "must have 7 to 256"),
])  # fmt: skip
def test_a_rotation_that_makes_no_sense_changes_nothing(talk, given, remark):
    before = (talk.root / "conf" / "plain_acl.yml").read_bytes()
    reply = rotate(talk, **given)

    assert (reply.code, remark in reply.remark) == (209, True)
    assert (talk.root / "conf" / "plain_acl.yml").read_bytes() == before


def test_a_deleted_account_is_unknown_at_once(talk):
    assert ask(talk, DeleteAclConfig(access_key="RocketMQ")).code == 0

    assert talk.ask(send_header("topicB"), b"x", who=USER).remark.endswith("No acl config for RocketMQ")
    assert "12345678" not in (talk.root / "conf" / "plain_acl.yml").read_text()


def test_an_account_of_a_further_file_is_changed_there(tmp_path):
    write(tmp_path)
    path = write(tmp_path, "accounts:\n- {accessKey: account3, secretKey: secret-3}\n", "acl/more.yml")
    talk = Talk(tmp_path, acl_enable=True)

    assert ask(talk, update(default_topic_perm="PUB")).code == 0
    assert "defaultTopicPerm: PUB" in path.read_text()
    assert ask(talk, DeleteAclConfig(access_key="account3")).code == 0
    assert "account3" not in path.read_text()


TWICE = "accounts:\n- {accessKey: account3, secretKey: secret-3}\n- {accessKey: account4, secretKey: secret-4}\n"


def test_a_change_of_an_account_that_is_given_twice_changes_the_one_that_counts_and_drops_the_other(tmp_path):
    write(tmp_path)
    path = write(tmp_path, TWICE + "- {accessKey: account3, secretKey: another-secret, defaultTopicPerm: PUB}\n", "acl/more.yml")
    talk = Talk(tmp_path, acl_enable=True)

    assert ask(talk, update(default_group_perm="SUB")).code == 0
    assert [account["accessKey"] for account in read_rules("more", path.read_bytes()).data["accounts"]] == ["account3", "account4"]
    assert "defaultTopicPerm" not in path.read_text()
    assert talk.broker.access.rules.accounts["account3"].group_default == SUB


def test_an_account_that_several_files_give_is_not_deleted_from_one_of_them_alone(tmp_path):
    write(tmp_path)
    for name in ("acl/more.yml", "acl/other.yml"):
        path = write(tmp_path, TWICE, name)
    talk = Talk(tmp_path, acl_enable=True)

    reply = ask(talk, DeleteAclConfig(access_key="account3"))

    assert (reply.code, "conf/acl/other.yml first" in reply.remark) == (210, True)
    path.unlink()
    talk.wait(5_001)
    assert ask(talk, DeleteAclConfig(access_key="account3")).code == 0
    assert "account3" not in talk.broker.access.rules.accounts


def test_white_addresses_are_replaced_in_the_file_that_is_named(tmp_path):
    write(tmp_path)
    more = write(tmp_path, "accounts: []\n", "acl/more.yml")
    talk = Talk(tmp_path, acl_enable=True, store={"data": str(tmp_path)})

    assert ask(talk, UpdateGlobalWhiteAddrsConfig(global_white_addrs="10.0.0.3,10.0.1.*")).code == 0
    assert saved(talk).white == ("10.0.0.3", "10.0.1.*")
    assert talk.ask(send_header("topicA"), b"x", peer=3).code == 0
    assert ask(talk, UpdateGlobalWhiteAddrsConfig(global_white_addrs="", acl_file_full_path=str(more))).code == 0
    assert read_rules("more", more.read_bytes()).white == ()


@pytest.mark.parametrize(("header", "code", "remark"), [
    (UpdateAndCreateAclConfig(), 209, "The accessKey=null and secretKey=null cannot be null and length should longer than 6"),
    (update(key="short"), 209, "The accessKey=short and secretKey=*** cannot be null"),
    (update(secret="short"), 209, "The accessKey=account3 and secretKey=*** cannot be null"),
    (update(topic_perms="a"), 209, "'a' is not of the form NAME=PERMISSION"),
    (update(group_perms="a=ALL"), 209, "'a=ALL' is not of the form"),
    (update(white_remote_address="host"), 209, "'host' is no address"),
    (DeleteAclConfig(), 210, "The accesskey[null] corresponding to accessConfig has been deleted failed."),
    (DeleteAclConfig(access_key="nobody1"), 210, "The accesskey[nobody1] corresponding to accessConfig has been deleted failed."),
    (UpdateGlobalWhiteAddrsConfig(), 211, "The globalWhiteAddresses[null] has been updated failed."),
    (UpdateGlobalWhiteAddrsConfig(global_white_addrs="host"), 211, "'host' is no address"),
    (UpdateGlobalWhiteAddrsConfig(global_white_addrs="*", acl_file_full_path="/etc/passwd"), 211, "is no file of rules"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_and_changes_nothing(talk, header, code, remark):
    before = (talk.root / "conf" / "plain_acl.yml").read_bytes()

    reply = ask(talk, header)

    assert reply.code == code
    assert remark in reply.remark
    assert "secret-3" not in reply.remark
    assert (talk.root / "conf" / "plain_acl.yml").read_bytes() == before


def test_each_change_counts_the_version_up(talk):
    for count in (1, 2):
        ask(talk, update(admin=count == 1))
        reply = ask(talk, GetBrokerClusterAclInfo())
        assert json.loads(reply.fields["version"]) == {"counter": count, "timestamp": START_MS}
    assert json.loads(reply.fields["allAclFileVersion"]) == {"/conf/plain_acl.yml": {"counter": 2, "timestamp": START_MS}}
    assert (reply.fields["brokerName"], reply.fields["clusterName"]) == ("broker-a", "DefaultCluster")


def test_all_accounts_are_told_without_their_secrets(talk):
    body = bytes(ask(talk, GetBrokerClusterAclConfig()).body)
    accounts = json.loads(body)

    assert accounts["globalWhiteAddrs"] == ["10.10.103.*"]
    user, admin = accounts["plainAccessConfigs"]
    assert (user["accessKey"], user["secretKey"], user["topicPerms"][0]) == ("RocketMQ", "***", "topicA=DENY")
    assert (admin["admin"], admin["whiteRemoteAddress"]) == (True, "192.168.1.*")
    assert not any(secret in body for secret in (b"12345678", b"87654321"))
    assert ask(talk, update(secret=user["secretKey"])).code == 209  # what is shown cannot be set by mistake


def test_changes_are_made_one_after_the_other_and_answered_when_they_are_on_the_device(talk):
    talk.held_back = []
    opaques = [talk.post(update(f"account{n}"), who=ADMIN) for n in range(3)]
    talk.turn()
    assert [work.name for work in talk.held_back] == ["change accounts"]
    assert talk.answer(opaques[0]) is None

    talk.release()
    assert [talk.answer(opaque).code for opaque in opaques] == [0, 0, 0]
    assert {f"account{n}" for n in range(3)} < {account.access_key for account in saved(talk).accounts}


def test_a_change_that_cannot_be_saved_is_refused_and_does_not_count(talk, monkeypatch):
    def full(*_arguments, **_kw):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(talk.disk), "save", full)
        reply = ask(talk, update(default_topic_perm="PUB"))

    assert (reply.code, "No space left" in reply.remark) == (14, True)
    assert "No acl config for account3" in talk.ask(send_header("T"), b"x", who=NEW).remark


def test_too_many_changes_at_once_are_refused(talk):
    talk.held_back = []
    opaques = [talk.post(update(f"account{n}"), who=ADMIN) for n in range(CHANGES_MAX + 3)]  # the first one is being saved
    talk.turn()

    assert [reply.code for opaque in opaques if (reply := talk.answer(opaque))] == [2, 2]


@pytest.mark.parametrize(("header", "code"), [
    (update(), 209), (DeleteAclConfig(access_key="RocketMQ"), 210), (UpdateGlobalWhiteAddrsConfig(global_white_addrs="*"), 211),
    (GetBrokerClusterAclInfo(), 1), (GetBrokerClusterAclConfig(), 1),
])  # fmt: skip
def test_without_access_control_nothing_is_administered(tmp_path, header, code):
    reply = Talk(tmp_path).ask(header)
    assert (reply.code, reply.remark) == (code, "access control is off: start the broker with aclEnable=true")
