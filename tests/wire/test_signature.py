"""Tests of signatures: what is signed, against the values of Apache's own signer, and that nothing else verifies."""

from __future__ import annotations

import hmac
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire import signature as signatures
from halfmoon.wire.signature import Credentials, content, signature, verify

SEND = {
    "a": "pg1", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "KEYS\x01k1\x02TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
ME = Credentials("RocketMQ", "12345678")


def test_a_request_is_signed_as_apaches_client_signs_it():
    assert ME.sign(SEND, b"hello") == {"AccessKey": "RocketMQ", "Signature": "Yf6oZsoboucXBo9puk2S3+OrJQU="}


def test_values_follow_each_other_in_the_order_of_their_names_and_the_body_comes_last():
    assert content({"b": "2", "A": "1", "a": "3", "Signature": "no", "_UNIQUE_KEY_QUERY": "true"}, b"body") == b"132body"


def test_names_are_ordered_as_java_compares_texts():
    assert content({"\uffff": "2", "\U00010000": "1"}, b"") == b"12"


def test_half_a_surrogate_pair_is_signed_as_the_question_mark_that_java_writes():
    assert content({"a": "x\ud800y"}, b"") == b"x?y"


@pytest.mark.parametrize("token", ["", "a token"])
def test_what_was_signed_verifies(token):
    fields = {**SEND, **ME._replace(security_token=token).sign(SEND, b"hello")}

    assert verify(b"12345678", fields, b"hello")
    assert verify(b"12345678", {**fields, "_UNIQUE_KEY_QUERY": "true"}, memoryview(b"hello"))


@pytest.mark.parametrize("changes", [
    {"b": "Other"}, {"z": "more"}, {"AccessKey": "another"}, {"Signature": ""}, {"Signature": "Yf6oZsob"}, {"Signature": "é\ud800"},
])  # fmt: skip
def test_what_was_changed_does_not_verify(changes):
    assert not verify(b"12345678", {**SEND, **ME.sign(SEND, b"hello"), **changes}, b"hello")


def test_another_body_another_secret_or_no_signature_does_not_verify():
    fields = {**SEND, **ME.sign(SEND, b"hello")}

    assert not verify(b"12345678", fields, b"hellO")
    assert not verify(b"12345679", fields, b"hello")
    assert not verify(b"12345678", SEND, b"hello")


def test_credentials_do_not_show_their_secret():
    assert "12345678" not in repr(ME._replace(security_token="tok"))
    assert "tok" not in repr(ME._replace(security_token="tok"))


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_a_signature_is_an_hmac_with_sha_1(secret, signed):
    assert b64decode(signature(secret, signed)) == hmac.digest(secret, signed, "sha1")


def test_orders_of_names_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(signatures, "_SIGNED_MAX", 3)
    signatures._signed.clear()
    for number in range(10):
        assert content({f"b{number}": "2", "a": "1"}, b"") == b"12"
        assert len(signatures._signed) <= 3
    for fields in ({f"n{number:03}": str(number % 10) for number in range(100)}, {"n" * 2000: "0"}):
        before = dict(signatures._signed)
        assert content(fields, b"") == "".join(fields.values()).encode()
        assert signatures._signed == before


def test_a_request_without_fields_signs_its_body():
    assert content({}, b"body") == content({"Signature": "x"}, b"body") == b"body"
