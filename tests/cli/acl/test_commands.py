"""`halfmoon acl` against a broker with accounts, with an operator's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.testing.local import LocalCluster
from tests.broker.access.rule_files import write

RULES = """
globalWhiteRemoteAddresses: [10.0.0.1]
accounts:
- {accessKey: shop-service, secretKey: the secret 1, topicPerms: [orders=PUB|SUB, audit=PUB], defaultGroupPerm: SUB}
- {accessKey: operator, secretKey: the secret 2, admin: true}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    data = tmp_path_factory.mktemp("acl") / "store"
    write(data, RULES)
    with LocalCluster(data, {"aclEnable": "true"}) as running:
        yield running


def credentials(tmp_path, access_key="operator", secret_key="the secret 2"):
    path = tmp_path / f"{access_key}.yml"
    path.touch(0o600)
    path.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")
    return str(path)


@pytest.fixture
def acl(run, tmp_path):
    return lambda *arguments: run("--credentials", credentials(tmp_path), "acl", *arguments)


def test_accounts_are_listed_without_their_secrets(acl):
    for ran in (acl("list"), acl("list", "--json")):
        assert ran.code == 0
        assert "shop-service" in ran.out
        assert "orders=PUB|SUB" in ran.out
        assert "10.0.0.1" in ran.out
        assert "the secret" not in ran.out
    (broker,) = acl("list", "--json").json()
    assert [(each["access_key"], each["admin"]) for each in broker["accounts"]][:2] == [("shop-service", False), ("operator", True)]


def test_an_account_is_added_with_a_secret_of_its_own_used_and_removed(acl, run, tmp_path):
    added = acl("add", "new-service", "--topic", "orders=PUB", "--groups", "SUB")
    path = tmp_path / "new.yml"
    path.touch(0o600)
    path.write_text(added.out)
    sent = run("--credentials", str(path), "produce", "--topic", "orders", "a body")
    removed = acl("remove", "new-service", "--yes", "--json")
    refused = run("--credentials", str(path), "produce", "--topic", "orders", "a body")

    assert (added.code, sent.code, removed.code, refused.code) == (0, 0, 0, 1)
    assert removed.json() == {"access_key": "new-service", "brokers": ["broker-a"]}
    assert "No acl config for new-service" in refused.err


def produce(run, tmp_path, name, text):
    path = tmp_path / name
    path.touch(0o600)
    path.write_text(text)
    return run("--credentials", str(path), "produce", "--topic", "orders", "a body")


def test_a_secret_is_rotated_beside_the_old_one_which_then_is_ended(acl, run, tmp_path):
    old = acl("add", "turn-service", "--topic", "orders=PUB").out
    new = acl("rotate", "turn-service", "--keep", "2h")

    assert [produce(run, tmp_path, "turn.yml", text).code for text in (old, new.out)] == [0, 0]
    for ran in (acl("list"), acl("explain", "turn-service", "--send", "orders")):
        assert "its previous secret is good until 20" in ran.out
        assert "last used from 127.0.0.1 at 20" in ran.out
    (broker,) = acl("list", "--json").json()
    (account,) = (each for each in broker["accounts"] if each["access_key"] == "turn-service")
    assert (list(account["previous_secret_used"]), "previous_secret_key" in account) == (["127.0.0.1"], False)
    assert "is good until" in acl("rotate", "turn-service").err

    asked, ended = acl("rotate", "turn-service", "--end"), acl("rotate", "turn-service", "--end", "--yes")
    assert (asked.code, "end the old secret of account turn-service" in asked.err) == (2, True)
    assert ended.out == "account turn-service has no previous secret at broker-a\n"
    assert [produce(run, tmp_path, "turn.yml", text).code for text in (old, new.out)] == [1, 0]


def test_a_rotation_that_broke_off_shows_its_secret_and_is_repeated_with_it(acl, monkeypatch, tmp_path):
    acl("add", "half-service")
    broken = acl("rotate", "half-service", "--keep", "1h", "--json")
    again = acl("rotate", "half-service", "--keep", "1h", "--json")  # refused, as a broker may that has rotated it
    plain = acl("rotate", "half-service", "--keep", "1h")  # whose output may be on its way into the file of the good credentials
    secret = private(tmp_path / "secret", broken.json()["secret_key"])
    repeated = acl("rotate", "half-service", "--keep", "1h", "--secret-file", secret)

    assert (plain.code, plain.out, "the secret that none or some brokers have now is" in plain.err) == (1, "", True)
    assert (again.code, again.json()["brokers"], "repeat the command with --secret-file" in again.err) == (1, [], True)
    assert repeated.out == "account half-service has a new secret, and the previous one for 1h, at broker-a\n"


def test_a_file_with_a_secret_that_others_may_read_is_refused(acl, tmp_path):
    secret = private(tmp_path / "secret", "from the file\n")
    Path(secret).chmod(0o640)
    refused = acl("add", "file-service", "--secret-file", secret)

    assert (refused.code, "chmod 600" in refused.err) == (2, True)


def private(path, text):
    """Write a file for its owner alone; return its name."""
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_a_secret_is_taken_from_a_file_and_not_shown(acl, tmp_path):
    added = acl("add", "file-service", "--secret-file", private(tmp_path / "secret", "from the file\n"), "--json")

    assert added.json() == {"access_key": "file-service", "brokers": ["broker-a"], "secret_key": None}
    assert acl("remove", "file-service", "--yes").out == "account file-service is removed from broker-a\n"


@pytest.mark.parametrize(("options", "code", "words"), [
    (("--read", "orders", "--group", "GID_a"), 0, "yes: topic orders has PUB|SUB; group GID_a is not named, and groups have SUB"),
    (("--read", "audit"), 1, "no: topic audit has PUB"),
    (("--send", "audit"), 0, "yes: topic audit has PUB"),
    (("--send", "other"), 1, "no: topic other is not named, and topics have DENY"),
])  # fmt: skip
def test_what_an_account_may_do_is_explained(acl, options, code, words):
    ran = acl("explain", "shop-service", *options)

    assert ran.code == code
    assert words in ran.out
    assert "white addresses need no account: 10.0.0.1" in ran.out


def test_an_administrator_may_do_everything(acl):
    (found,) = acl("explain", "operator", "--send", "other", "--group", "GID_a", "--json").json()
    assert (found["allowed"], found["reasons"].count("the account is an administrator")) == (True, 1)


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("explain", "shop-service"), 2, "give a topic"),
    (("explain", "nobody1", "--read", "orders"), 2, "has no account nobody1"),
    (("remove", "nobody1", "--yes"), 1, "has been deleted failed"),
    (("add", "short"), 1, "length should longer than 6"),
    (("add", "new-service", "--topic", "orders=ALL"), 2, "'ALL' is no permission"),
    (("add", "new-service", "--topic", "orders"), 2, "name=value"),
    (("add", "new-service", "--secret-file", "/not/there"), 2, "cannot be read"),
    (("rotate", "nobody1"), 1, "there is no such account"),
    (("rotate", "shop-service", "--end", "--secret-file", "/not/there"), 2, "--end makes no secret"),
    (("rotate", "shop-service", "--keep", "24"), 2, "--keep 24: 24s or 24ms?"),
])  # fmt: skip
def test_what_cannot_be_is_refused(acl, arguments, code, words):
    ran = acl(*arguments)
    assert ran.code == code
    assert words in ran.err


def test_who_is_no_administrator_or_nobody_is_refused(run, tmp_path):
    user = run("--credentials", credentials(tmp_path, "shop-service", "the secret 1"), "acl", "list")
    nobody = run("acl", "list")

    assert (user.code, "Need admin permission" in user.err) == (1, True)
    assert (nobody.code, " requires an account: access_key=" in nobody.err) == (1, True)


def test_credentials_on_the_command_line_win_over_the_environment_and_do_not_outlive_the_command(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", "operator")
    monkeypatch.setenv("HALFMOON_SECRET_KEY", "wrong secret")

    assert run("acl", "list").code == 1
    assert run("--credentials", credentials(tmp_path), "acl", "list").code == 0
    assert run("acl", "list").code == 1


def test_an_account_is_removed_only_when_that_is_confirmed(acl):
    acl("add", "stays-here")
    unasked = acl("remove", "stays-here")

    assert (unasked.code, "to remove account stays-here from every broker" in unasked.err) == (2, True)
    assert "stays-here" in acl("list").out
