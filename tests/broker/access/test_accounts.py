"""Tests of accounts: what a file says, which files are refused and at which line, and what an account may do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.broker.access import accounts
from halfmoon.broker.access.accounts import Account, read_rules, write_rules
from halfmoon.columns.signing import Signer
from halfmoon.errors import SettingError
from halfmoon.wire.bodies import DataVersion
from halfmoon.wire.needs import ADMIN, DENY, PUB, SUB, account
from halfmoon.wire.table import REQUESTS
from tests.broker.access.rule_files import RULES

ANY_ACCOUNT = account("a reason")


def read(text):
    return read_rules("rules.yml", text.encode())


def refusal(of, *resources, needs=ANY_ACCOUNT):
    return of.refusal(10, needs, list(resources))


def test_a_file_of_the_original_is_read():
    file = read(RULES)

    user, admin = file.accounts
    assert (user.access_key, user.secret, user.admin, user.white) == ("RocketMQ", b"12345678", False, ())
    assert (user.topic_default, user.group_default) == (DENY, SUB)
    assert user.permissions == {
        "topicA": DENY,
        "topicB": PUB | SUB,
        "topicC": SUB,
        "%RETRY%groupA": DENY,
        "%RETRY%groupB": PUB | SUB,
    }
    assert (admin.admin, len(admin.white), file.white, len(file.patterns)) == (True, 1, ("10.10.103.*",), 1)


def test_a_secret_is_the_text_that_stands_in_the_file():
    secrets = ["0123456789", "1_000_000", "0x1234567", "1e100000", "12:34:56:78", "2001-12-14", "'quo ted'"]
    text = "accounts:\n" + "".join(f"- accessKey: account{n}\n  secretKey: {secret}\n" for n, secret in enumerate(secrets))
    file = read(text)

    assert [a.secret.decode() for a in file.accounts] == [secret.strip("'") for secret in secrets]
    assert read_rules("again", write_rules(file.data)).accounts == file.accounts


def test_a_file_that_is_written_again_says_the_same_with_numbers_as_apache_reads_them():
    file = read(RULES + "dataVersion:\n- counter: 7\n  timestamp: 1700000000000\n")

    text = write_rules(file.data).decode()
    again = read(text)

    assert again == file
    assert file.version == DataVersion(7, 1700000000000)
    assert "counter: 7" in text


@pytest.mark.parametrize("text", ["", "# nothing\n", "~", "accounts:\n", "accounts: []\nglobalWhiteRemoteAddresses:\n"])
def test_a_file_may_be_empty(text):
    assert read(text).accounts == ()


def test_of_an_access_key_that_is_given_twice_the_first_counts():
    twice = "accounts:\n- {accessKey: account1, secretKey: secret-1}\n- {accessKey: account1, secretKey: secret-2}\n"
    file = read(twice)

    assert [a.secret for a in file.accounts] == [b"secret-1"]
    assert file.repeated == ("account1",)


ONE = "accounts:\n- accessKey: account1\n  secretKey: secret-1\n"


@pytest.mark.parametrize(("text", "line", "reason"), [
    ("accounts:\n- accessKey: ]\n", 2, "not YAML"),
    ("a: b: c", 1, "not YAML"),
    ("just text", 1, "must be keys with values"),
    ("accounts: 7", 1, "must be a list"),
    ("accounts:\n- 7", 2, "must be keys with values"),
    ("accounts:\n- accessKey: short\n  secretKey: secret-1\n", 2, "'short' must have 7 to 256 characters"),
    ("accounts:\n- accessKey: account1\n  secretKey: secret\n", 3, "secretKey of an account must have"),
    ("accounts:\n- accessKey: account1\n", 2, "secretKey of an account must have"),
    ("accounts:\n- accessKey: account1\n  secretKey:\n", 3, "secretKey of an account must have"),
    (ONE + "  admin: perhaps\n", 4, "admin is true or false, not 'perhaps'"),
    (ONE + "  defaultTopicPerm: PUBLISH\n", 4, "'PUBLISH' is no permission"),
    (ONE + "  topicPerms:\n  - a=PUB\n  - b=ALL\n", 6, "'b=ALL' is not of the form NAME=PERMISSION"),
    (ONE + "  groupPerms: [b]\n", 4, "'b' is not of the form"),
    (ONE + "  groupPerms: ['=SUB']\n", 4, "not of the form"),
    (ONE + "  whiteRemoteAddress: 1.2.3\n", 4, "no address"),
    (ONE + "  certificate: '*.example'\n", 4, "'*.example' is no name of a certificate: 1 to 1024 characters"),
    (ONE + "  certificate:\n  - a\n  -\n", 6, "'' is no name of a certificate"),
    (ONE + f"  certificate: {'x' * 1025}\n", 4, "is no name of a certificate"),
    (ONE + "  certificate: {a: b}\n", 4, "must be a list"),
    ("globalWhiteRemoteAddresses:\n- 1.2.3.4\n- host\n", 3, "'host' is no address"),
    (ONE + "dataVersion:\n- counter: many\n", 5, "dataVersion"),
    (ONE + "  admin: [true]\n", 4, "must be a single value"),
    (ONE + "account: []\n", 4, "an unknown key: it must be one of accounts, dataVersion, globalWhiteRemoteAddresses"),
    (ONE + "  topicPerm: [a=PUB]\n", 4, "an unknown key: it must be one of accessKey, admin, "),
    ("accounts:\n- {accessKey: account1, secretKey:secret-1}\n", 2, "an unknown key"),
    (ONE + "accounts: []\n", 4, "given twice"),
    (ONE + "  admin: false\n  admin: true\n", 5, "given twice"),
    (ONE.replace("- ", "- &one\n  ") + "- <<: *one\n  admin: true\n", 5, "not merged"),
    ("<<: {accounts: []}\n", 1, "not merged"),
    (ONE + "  previousSecretKey: secret-0\n", 2, "must be given both"),
    (ONE + "  previousSecretUntil: 2030-01-31T12:00:00Z\n", 2, "must be given both"),
    (ONE + "  previousSecretKey: short\n  previousSecretUntil: 2030-01-31T12:00:00Z\n", 4, "previousSecretKey of an account must"),
    (ONE + "  previousSecretKey: secret-1\n  previousSecretUntil: 2030-01-31T12:00:00Z\n", 4, "must be another one than secretKey"),
    *((ONE + f"  previousSecretKey: secret-0\n  previousSecretUntil: {until}\n", 5, "must be a time in UTC such as")
      for until in ("", "soon", "1900000000", "2030-01-31T12:00:00", "2030-01-31T12:00:00+02:00", "2030-02-31T12:00:00Z")),
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_its_line(text, line, reason):
    with pytest.raises(SettingError) as caught:
        read(text)

    assert f"rules.yml:{line}: " in str(caught.value)
    assert reason in str(caught.value)
    assert "secret-1" not in str(caught.value)


@pytest.mark.parametrize("until", ["2030-01-31T12:00:00Z", "'2030-01-31T12:00:00.000Z'", "2030-01-31 12:00:00+00:00"])
def test_a_previous_secret_is_read_with_its_time_and_written_again(until):
    file = read(ONE + f"  previousSecretKey: 20300131\n  previousSecretUntil: {until}\n")

    (account,) = file.accounts
    assert account.secrets == (b"secret-1", b"20300131")
    assert account.previous_until_ms == 1_896_091_200_000
    assert read(write_rules(file.data).decode()).accounts == file.accounts
    assert "20300131" not in repr(account)


def test_a_request_that_neither_secret_signs_is_nobodys():
    signer = Account(access_key="account1", secret=b"secret-1", previous=b"secret-0", previous_until_ms=5)
    fields = {"a": "b"}

    def signed(secret):
        return signer.signed({**fields, **Signer("account1", secret, "").sign(fields, b"")}, b"")

    assert signed("secret-1") is signer
    assert signed("secret-0").secrets == (b"secret-0",)
    assert signed("secret-2") is None
    assert signer.at(5).signed({**fields, **Signer("account1", "secret-0", "").sign(fields, b"")}, b"") is None


@pytest.mark.parametrize(("text", "names"), [
    ("a service", ("a service",)), ("[a, 'spiffe://b', c@d.e]", ("a", "spiffe://b", "c@d.e")), ("0x7f", ("0x7f",)),
    ("", ()), ("[]", ()),
])  # fmt: skip
def test_an_account_has_one_certificate_or_several_or_none(text, names):
    (account,) = read(f"{ONE}  certificate: {text}\n").accounts

    assert account.certificates == names


def test_a_file_is_bounded(monkeypatch):
    for name in ("FILE_BYTES_MAX", "ACCOUNTS_MAX", "PERMISSIONS_MAX", "PATTERNS_MAX", "NODES_MAX", "CERTIFICATES_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(accounts, name, 1)
            with pytest.raises(SettingError):
                read(RULES + "  certificate: [a, b]\n")


def test_aliases_of_aliases_do_not_fill_the_memory():
    bomb = "dataVersion:\n- {}\n- &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"- &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 7))
    with pytest.raises(SettingError, match="too much of it"):
        read(bomb)


def test_aliases_of_white_addresses_do_not_fill_the_memory():
    many = ",".join(["1.2.3.4"] * 1000)
    text = f"globalWhiteRemoteAddresses:\n- &many {many}\n"
    assert len(read(text + "- *many\n" * 19).patterns) == 20_000
    with pytest.raises(SettingError, match="more than 20000 white addresses"):
        read(text + "- *many\n" * 20)


def test_deep_nesting_is_refused():
    with pytest.raises(SettingError):
        read("accounts: " + "[" * 100_000)
    with pytest.raises(SettingError, match="too deep"):
        read("dataVersion: [{}, " + "[" * 20 + "]" * 20 + "]")


@given(st.binary(max_size=200) | st.text(alphabet="accountsKey:- [{}]&*!|>'\"\n", max_size=200).map(str.encode))
def test_any_bytes_are_rules_or_refused(data):
    try:
        read_rules("rules.yml", data)
    except SettingError:
        pass


# ---------------------------------------------------------------- permissions


def test_a_permission_for_a_topic_counts_and_else_the_default():
    user = Account(
        access_key="account1", secret=b"", permissions={"a": PUB, "b": SUB, "c": DENY, "d": PUB | SUB}, topic_default=SUB
    )

    assert [refusal(user, (topic, PUB)) is None for topic in "abcde"] == [True, False, False, True, False]
    assert [refusal(user, (topic, SUB)) is None for topic in "abcde"] == [False, True, False, True, True]
    assert refusal(user, ("c", SUB)) == "No default permission for topic:c"


def test_groups_have_a_default_of_their_own():
    user = Account(access_key="account1", secret=b"", group_default=SUB)

    assert refusal(user, ("%RETRY%g", SUB)) is None
    assert refusal(user, ("g", SUB)) == "No default permission for topic:g"
    assert refusal(Account(access_key="account1", secret=b""), ("%RETRY%g", SUB)) == "No default permission for group:g"


def test_every_resource_must_be_allowed():
    user = Account(access_key="account1", secret=b"", permissions={"a": SUB})
    assert refusal(user, ("a", SUB), ("%RETRY%g", SUB)) == "No default permission for group:g"


def test_an_administrator_may_do_everything_unless_single_permissions_are_given():
    admin = Account(access_key="account1", secret=b"", admin=True)
    bound = Account(access_key="account1", secret=b"", admin=True, permissions={"a": PUB})

    assert refusal(admin, ("a", PUB), needs=ADMIN) is None
    assert refusal(bound, ("a", PUB)) is None
    assert refusal(bound, ("b", PUB)) == "No default permission for topic:b"
    assert refusal(bound, needs=ADMIN) is None


def test_what_needs_an_administrator_names_the_code():
    user = Account(access_key="account1", secret=b"", topic_default=PUB | SUB)
    assert user.refusal(17, ADMIN, []) == "Need admin permission for request code=17, but accessKey=account1 is not"


def test_every_account_may_trace():
    user = Account(access_key="account1", secret=b"")
    trace = [("RMQ_SYS_TRACE_TOPIC", PUB)]
    assert [user.refusal(code, REQUESTS[code].needs, trace) for code in (10, 310, 320)] == [None] * 3
    assert user.refusal(325, REQUESTS[325].needs, trace) == "No default permission for topic:RMQ_SYS_TRACE_TOPIC"
    assert refusal(user, ("RMQ_SYS_TRACE_TOPIC", SUB)) is not None


def test_an_account_does_not_show_its_secret():
    assert "12345678" not in repr(read(RULES).accounts)
