"""Tests of rule files: which of them count, changes that are written, and files that change while nobody looks."""

from __future__ import annotations

import os

import pytest

from halfmoon.broker.access.accounts import FILE_BYTES_MAX
from halfmoon.broker.access.files import FILES_MAX, RuleFiles
from halfmoon.errors import BrokerError, SettingError
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS
from tests.broker.access.rule_files import RULES, write


@pytest.fixture
def rule_files(tmp_path):
    write(tmp_path)
    return RuleFiles(RealDisk(tmp_path), str(tmp_path))


def test_the_directory_stands_beside_the_main_file(rule_files):
    assert rule_files.directory == "conf/acl"
    assert rule_files._replace(main="accounts.yml").directory == "acl"


def test_only_a_file_of_these_can_be_named(rule_files, tmp_path):
    write(tmp_path, name="acl/more.yml")

    assert rule_files.path(f"{tmp_path}/conf/acl/more.yml") == "conf/acl/more.yml"
    assert rule_files.path("conf/plain_acl.yml") == "conf/plain_acl.yml"
    for name in ("/etc/passwd", "conf/acl/../../x.yml", "conf/acl/other.yml", ""):
        with pytest.raises(BrokerError, match="is no file of rules"):
            rule_files.path(name)


def test_what_has_not_changed_is_not_read_again(rule_files, tmp_path):
    rules = rule_files.load()
    assert rule_files.newer(rules) is None

    path = write(tmp_path, RULES.replace("12345678", "another-secret"))
    os.utime(path, ns=(1, 10**18))
    assert rule_files.newer(rules).accounts["RocketMQ"].secret == b"another-secret"


def test_a_file_that_has_become_empty_is_not_believed_and_one_that_says_so_is(rule_files, tmp_path):
    rules = rule_files.load()
    write(tmp_path, "")
    with pytest.raises(SettingError, match=r"plain_acl\.yml: it is empty"):
        rule_files.newer(rules)

    write(tmp_path, "accounts: []\n")
    assert rule_files.newer(rules).accounts == {}


ACCOUNT = "- {accessKey: account%d, secretKey: secret-1, certificate: [%s]}\n"


@pytest.mark.parametrize(("main", "more", "place"), [
    (ACCOUNT % (1, "x, a") + ACCOUNT % (2, "a"), "", "plain_acl.yml:3: the certificate 'a' of account2 is that of account1, too"),
    (ACCOUNT % (1, "a"), ACCOUNT % (2, "b, a"), "plain_acl.yml:2: the certificate 'a' of account1 is that of account2, too"),
])  # fmt: skip
def test_two_accounts_with_the_same_certificate_are_refused_with_the_line(rule_files, tmp_path, main, more, place):
    write(tmp_path, "accounts:\n" + main)
    write(tmp_path, "accounts:\n" + more, "acl/more.yml")

    with pytest.raises(SettingError) as caught:
        rule_files.load()
    assert str(caught.value) == f"{tmp_path}/conf/{place}"


def test_certificates_lead_to_the_accounts_that_count(rule_files, tmp_path):
    write(tmp_path, "accounts:\n" + ACCOUNT % (1, "a, a") + ACCOUNT % (2, "b") + ACCOUNT % (1, "b, c"))
    rules = rule_files.load()

    assert [rules.keys_of(names) for names in ((), ("c",), ("x", "a"), ("b", "a"))] == [
        (), (), ("account1",), ("account1", "account2"),
    ]  # fmt: skip


def test_a_change_leaves_certificates_as_they_are(rule_files, tmp_path):
    write(tmp_path, "accounts:\n" + ACCOUNT % (1, "a, 'spiffe://b'"))
    rules = rule_files.change("conf/plain_acl.yml", lambda data: data["accounts"][0].update(admin=True), 1)

    assert rules.accounts["account1"].certificates == ("a", "spiffe://b")
    assert rule_files.load().certificates == {"a": "account1", "spiffe://b": "account1"}


def test_a_change_counts_the_version_up_keeps_the_rest_and_leaves_no_copy(rule_files, tmp_path):
    def edit(data):
        data["accounts"][0]["admin"] = True

    rules = rule_files.change("conf/plain_acl.yml", edit, 1_700_000_000_000)

    assert rules.accounts["RocketMQ"].admin
    assert rules.files["conf/plain_acl.yml"].version.counter == 1
    assert rules == rule_files.load()
    assert rule_files.newer(rules) is None
    assert os.listdir(tmp_path / "conf") == ["plain_acl.yml"]
    assert (tmp_path / "conf" / "plain_acl.yml").stat().st_mode & 0o777 == 0o600


def test_a_rule_file_becomes_its_owners_alone_with_a_change_where_others_may_read_the_data(tmp_path):
    path = write(tmp_path)
    rule_files = RuleFiles(RealDisk(tmp_path, PERMISSIONS["all"]), "data", open_to_others=True)
    path.chmod(0o640)

    rule_files.change("conf/plain_acl.yml", lambda data: None, 0)

    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["plain_acl.yml", "acl/more.yml"])
def test_a_file_that_others_may_use_is_refused_by_name_and_not_changed(rule_files, tmp_path, name):
    path = write(tmp_path, name=name)
    known = rule_files.load()
    path.chmod(0o640)

    for refused in (rule_files.load, lambda: rule_files.newer(known), lambda: rule_files.change(f"conf/{name}", dict.clear, 0)):
        with pytest.raises(SettingError, match=rf"conf/{name}: other users may read or change the secrets in it: .*chmod 600"):
            refused()
    assert path.read_text() == RULES
    path.chmod(0o600)
    assert rule_files.newer(known) is None


def test_a_change_that_makes_no_sense_is_not_written(rule_files, tmp_path):
    def edit(data):
        data["accounts"][0]["accessKey"] = "short"

    with pytest.raises(SettingError, match="must have 7 to 256 characters"):
        rule_files.change("conf/plain_acl.yml", edit, 0)
    assert (tmp_path / "conf" / "plain_acl.yml").read_text() == RULES


def test_a_file_that_is_too_long_is_not_read(rule_files, tmp_path):
    write(tmp_path, "#" * FILE_BYTES_MAX + "\n" + "accounts: []\n")
    with pytest.raises(SettingError, match=f"longer than {FILE_BYTES_MAX} bytes"):
        rule_files.load()


def test_too_many_files_are_refused_by_name_and_not_left_out(rule_files, tmp_path):
    for number in range(FILES_MAX + 1):
        write(tmp_path, "accounts: []\n", f"acl/{number:03}.yml")
        if number in (0, FILES_MAX - 1):
            assert rule_files.load().accounts
    with pytest.raises(SettingError, match=rf"conf/acl/{FILES_MAX:03}\.yml: more than {FILES_MAX} files of accounts"):
        rule_files.load()


CHANGES = {
    "a secret": ("secretKey: 12345678", "secretKey: 12345679"),
    "an administrator": ("admin: true", "admin: false"),
    "a permission": ("topicC=SUB", "topicC=PUB"),
    "a default": ("defaultGroupPerm: SUB", "defaultGroupPerm: PUB"),
    "a white address": ("192.168.1.*", "192.168.2.*"),
    "a global white address": ("10.10.103.*", "10.10.104.*"),
    "a key": ("accessKey: rocketmq2", "accessKey: rocketmq3"),
    "a certificate": ("admin: true", "admin: true\n  certificate: shop.example"),
    "a previous secret": ("admin: true", "admin: true\n  previousSecretKey: secret-0\n  previousSecretUntil: 2030-01-31T12:00:00Z"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_digest_of_accounts_tells_every_difference_that_counts(rule_files, tmp_path, what):
    before = rule_files.load().digest()
    old, new = CHANGES[what]
    assert old in RULES
    write(tmp_path, RULES.replace(old, new))

    assert rule_files.load().digest() != before


def test_the_digest_of_accounts_leaves_out_versions_files_and_when_a_previous_secret_expires(rule_files, tmp_path):
    rotated = RULES + "  previousSecretKey: secret-0\n  previousSecretUntil: 2030-01-31T12:00:0%dZ\ndataVersion: [{counter: %d}]\n"
    write(tmp_path, rotated % (0, 1))
    before = rule_files.load().digest()

    write(tmp_path, rotated % (1, 2))
    assert rule_files.load().digest() == before
    write(tmp_path, "accounts: []\n")
    write(tmp_path, rotated % (0, 1), name="acl/more.yml")
    assert rule_files.load().digest() == before
