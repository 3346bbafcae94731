"""Tests of who signs, and of what a secret verifies. What is signed, and how, is tested with `halfmoon.columns.signing`."""

from __future__ import annotations

from halfmoon.columns.signing import Signer
from halfmoon.wire.signature import Credentials, signer, verify

ME = Credentials("RocketMQ", "12345678")


def test_what_was_signed_verifies_with_the_secret_alone():
    fields = {"a": "1", **Signer(*ME).sign({"a": "1"}, b"hello")}

    assert verify(b"12345678", fields, b"hello")
    assert not verify(b"12345679", fields, b"hello")
    assert not verify(b"12345678", fields, b"hellO")


def test_what_signs_is_made_once_for_equal_credentials():
    assert signer(ME) is signer(Credentials("RocketMQ", "12345678"))
    assert signer(ME) is not signer(ME._replace(security_token="tok"))


def test_credentials_do_not_show_their_secret():
    assert "12345678" not in repr(ME._replace(security_token="tok"))
    assert "tok" not in repr(ME._replace(security_token="tok"))
