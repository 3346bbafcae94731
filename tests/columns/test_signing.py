"""Tests of signatures: what is signed, against the values of Apache's own signer, and that nothing else verifies; and, with both
twins, what a verifier lets the reader take.
"""

from __future__ import annotations

import hmac
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.columns.signing import Signer, content, hashes, signature, signed
from halfmoon.limits import HEADER_FIELDS_MAX
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import decode, encode, request_command
from tests.columns.test_reading import send

SEND = {
    "a": "pg1", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "KEYS\x01k1\x02TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
ME = "RocketMQ", "12345678", ""
MINE = hashes(b"12345678")


def test_a_request_is_signed_as_apaches_client_signs_it():
    assert Signer(*ME).sign(SEND, b"hello") == {"AccessKey": "RocketMQ", "Signature": "Yf6oZsoboucXBo9puk2S3+OrJQU="}


def test_values_follow_each_other_in_the_order_of_their_names_and_the_body_comes_last():
    assert content({"b": "2", "A": "1", "a": "3", "Signature": "no", "_UNIQUE_KEY_QUERY": "true"}, b"body") == b"132body"


def test_names_are_ordered_as_java_compares_texts():
    assert content({"\uffff": "2", "\U00010000": "1"}, b"") == b"12"


def test_half_a_surrogate_pair_is_signed_as_the_question_mark_that_java_writes():
    assert content({"a": "x\ud800y"}, b"") == b"x?y"


@pytest.mark.parametrize("token", ["", "a token"])
def test_what_was_signed_verifies(token):
    fields = {**SEND, **Signer("RocketMQ", "12345678", token).sign(SEND, b"hello")}

    assert signed(MINE, fields, b"hello")
    assert signed(MINE, {**fields, "_UNIQUE_KEY_QUERY": "true"}, memoryview(b"hello"))


CHANGES = [
    {"b": "Other"}, {"z": "more"}, {"AccessKey": "another"}, {"Signature": ""}, {"Signature": "Yf6oZsob"}, {"Signature": "é\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES)
def test_what_was_changed_does_not_verify(changes):
    assert not signed(MINE, {**SEND, **Signer(*ME).sign(SEND, b"hello"), **changes}, b"hello")


def test_another_body_another_secret_or_no_signature_does_not_verify():
    fields = {**SEND, **Signer(*ME).sign(SEND, b"hello")}

    assert not signed(MINE, fields, b"hellO")
    assert not signed(hashes(b"12345679"), fields, b"hello")
    assert not signed(MINE, SEND, b"hello")


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_a_signature_is_an_hmac_with_sha_1(secret, text):
    assert b64decode(signature(hashes(secret), text)) == hmac.digest(secret, text, "sha1")


def test_a_request_without_fields_signs_its_body():
    assert content({}, b"body") == content({"Signature": "x"}, b"body") == b"body"


# ---------------------------------------------------------------- with both twins


def frame(changes, serialization, *, by=ME, body=b"hello", queue_id=1):
    """A signed send to TopicTest, with fields that are changed after it was signed."""
    command = request_command(send(queue_id=queue_id), body, serialization=serialization)
    command.fields = {**command.fields, **Signer(*by).sign(command.fields, body), **changes}
    return encode(command)


def left(compiled, verifier, *data):
    """How many of these sends a reader leaves."""
    reader = compiled.Reader(b"", 100)
    reader.open("TopicTest", 1)
    others, *_ = reader.read(7, b"h" * 8, b"".join(data), verifier)
    taken = sum(len(messages) for *_, messages in reader.take())
    assert taken + len(others) == len(data)
    return len(others)


@pytest.fixture
def verifier(compiled):
    made = compiled.Verifier("RocketMQ", b"12345678")
    made.allow(310, "TopicTest")
    return made


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reader_takes_what_is_signed_and_allowed(compiled, verifier, serialization):
    assert left(compiled, verifier, *[frame({}, serialization)] * 3) == 0
    assert left(compiled, verifier, frame({}, serialization, by=("RocketMQ", "12345678", "a token"))) == 0


@given(
    more=st.dictionaries(st.text(max_size=4).filter(lambda name: name not in {*SEND, "l", "n"}), st.text(max_size=9), max_size=5),
    changed=st.none() | st.tuples(st.integers(0, 30), st.text(max_size=2)),
    body=st.binary(max_size=90), serialization=st.sampled_from([JSON, ROCKETMQ]),
)  # fmt: skip
def test_a_reader_takes_what_the_general_check_lets_pass_and_nothing_else(compiled, more, changed, body, serialization):
    command = request_command(send(), body, serialization=serialization)
    command.fields = {**command.fields, **more}
    command.fields |= Signer(*ME).sign(command.fields, body)
    if changed is not None:
        name = [name for name in command.fields if name not in SEND or name == "i"][changed[0] % (len(more) + 3)]
        command.fields[name] += changed[1]
    data = encode(command)
    found = decode(data[8 : len(data) - len(body)], body, serialization).fields
    verifier = compiled.Verifier("RocketMQ", b"12345678")
    verifier.allow(310, "TopicTest")

    passes = found["AccessKey"] == "RocketMQ" and signed(MINE, found, body)
    assert left(compiled, verifier, data) == (0 if passes else 1)
    assert passes or changed is not None


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("changes", CHANGES[:-1])
def test_a_reader_leaves_what_was_changed(compiled, verifier, serialization, changes):
    assert left(compiled, verifier, frame({}, serialization), frame(changes, serialization), frame({}, serialization)) == 1


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reader_leaves_what_another_account_or_secret_or_nobody_signed(compiled, verifier, serialization):
    for by in (("RocketMQ", "12345679", ""), ("another", "12345678", "")):
        assert left(compiled, verifier, frame({}, serialization, by=by)) == 1
    assert left(compiled, verifier, encode(request_command(send(), b"hello", serialization=serialization))) == 1


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reader_leaves_what_is_not_known_to_be_allowed(compiled, serialization):
    verifier = compiled.Verifier("RocketMQ", b"12345678")
    for code, topic in ((310, "TopicTes"), (320, "TopicTest"), (37, ""), (310, "")):
        verifier.allow(code, topic)
        assert left(compiled, verifier, frame({}, serialization)) == 1
    verifier.allow(310, "TopicTest")
    assert left(compiled, verifier, frame({}, serialization)) == 0


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_an_account_that_need_not_sign_may_send_everything_in_its_name(compiled, serialization):
    verifier = compiled.Verifier("RocketMQ", None)

    assert left(compiled, verifier, frame({"Signature": "x"}, serialization)) == 0
    assert left(compiled, verifier, frame({"AccessKey": "another"}, serialization)) == 1


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("secret", [b"12345678", None])
def test_on_an_accounts_own_connection_a_reader_takes_what_names_no_account_and_is_allowed(compiled, serialization, secret):
    verifier = compiled.Verifier("RocketMQ", secret, bound=True)
    bare = encode(request_command(send(), b"hello", serialization=serialization))

    assert left(compiled, verifier, bare) == (0 if secret is None else 1)
    verifier.allow(310, "TopicTest")
    assert left(compiled, verifier, bare, frame({}, serialization)) == 0
    assert left(compiled, verifier, frame({"AccessKey": "another"}, serialization)) == 1
    assert left(compiled, verifier, frame({"AccessKey": ""}, serialization)) == (
        1 if serialization == JSON else 0
    )  # else: no field
    assert left(compiled, verifier, frame({"Signature": "x"}, serialization)) == (0 if secret is None else 1)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reader_leaves_a_header_with_more_fields_than_the_general_decoder_takes(compiled, serialization):
    verifier = compiled.Verifier("RocketMQ", None)
    usual = len(request_command(send()).fields) + 2
    for more, leaves in ((0, 0), (1, 1)):
        fields = {f"x{number}": "v" for number in range(HEADER_FIELDS_MAX - usual + more)}
        assert left(compiled, verifier, frame(fields, serialization)) == leaves


def test_secrets_are_not_shown(twin):
    for one in (twin.Signer("RocketMQ", "12345678", "a token"), twin.Verifier("RocketMQ", b"12345678")):
        assert "12345678" not in repr(one) + str(one)
        assert "a token" not in repr(one) + str(one)
