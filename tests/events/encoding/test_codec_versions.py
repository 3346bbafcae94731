"""Versions of payloads, and content types that users add."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from halfmoon.events.encoding.codec import JSON, Codecs
from halfmoon.events.errors import PayloadRefused


class Mail(pydantic.BaseModel):
    to: str
    at: datetime


def versioned() -> Codecs:
    codecs = Codecs()

    @codecs.upcast("TP_ORDER", "EC_PAID", from_version=1)
    def with_currency(payload: Any) -> Any:
        return {**payload, "currency": "EUR"}

    @codecs.upcast("TP_ORDER", "EC_PAID", from_version=2)
    def in_cents(payload: Any) -> Any:
        return {"cents": payload["amount"] * 100, "currency": payload["currency"]}

    return codecs


@pytest.mark.parametrize(
    ("version", "body"),
    [(1, b'{"amount":3}'), (2, b'{"amount":3,"currency":"EUR"}'), (3, b'{"cents":300,"currency":"EUR"}')],
)
def test_old_payloads_become_new_ones_step_by_step(version: int, body: bytes):
    assert versioned().decode(JSON, version, body, topic="TP_ORDER", code="EC_PAID") == {"cents": 300, "currency": "EUR"}


def test_versions_of_one_event_do_not_concern_another():
    codecs = versioned()

    assert (codecs.newest("TP_ORDER", "EC_PAID"), codecs.newest("TP_ORDER", "EC_NEW")) == (3, 1)
    assert codecs.decode(JSON, 1, b"{}", topic="TP_ORDER", code="EC_NEW") == {}


def test_a_star_stands_for_any_code_and_the_most_exact_function_wins():
    codecs = Codecs()
    codecs.upcast("TP_ORDER", from_version=1)(lambda payload: "any code")
    codecs.upcast("*", "EC_PAID", from_version=1)(lambda payload: "any topic")
    codecs.upcast("TP_ORDER", "EC_PAID", from_version=1)(lambda payload: "exact")

    found = [codecs.decode(JSON, 1, b"1", topic=topic, code=code) for topic, code in
             [("TP_ORDER", "EC_PAID"), ("TP_ORDER", "EC_NEW"), ("TP_STOCK", "EC_PAID"), ("TP_STOCK", "EC_NEW")]]  # fmt: skip

    assert found == ["exact", "any code", "any topic", 1]


@pytest.mark.parametrize("version", [2, 3, 0, -1])
def test_a_version_that_is_not_known_is_refused_with_the_remedy(version: int):
    with pytest.raises(PayloadRefused, match=rf"version {version} is not understood here, 1 is the newest.*accept"):
        Codecs().decode(JSON, version, b"{}", topic="TP_ORDER", code="EC_PAID")


def test_accepting_a_version_needs_a_way_from_the_older_ones():
    codecs = Codecs()
    codecs.accept(2, "TP_ORDER", "EC_PAID")

    assert codecs.decode(JSON, 2, b"[]", topic="TP_ORDER", code="EC_PAID") == []
    with pytest.raises(PayloadRefused, match=r"nothing turns version 1 into 2; add a function with @Codecs.upcast"):
        codecs.decode(JSON, 1, b"[]", topic="TP_ORDER", code="EC_PAID")


def test_a_function_that_fails_refuses_the_payload_and_a_second_one_is_refused():
    codecs = versioned()

    with pytest.raises(PayloadRefused, match="version 2 does not become 3: KeyError"):
        codecs.decode(JSON, 2, b"{}", topic="TP_ORDER", code="EC_PAID")
    with pytest.raises(PayloadRefused, match="two functions"):
        codecs.upcast("TP_ORDER", "EC_PAID", from_version=1)(lambda payload: payload)


def test_a_type_is_built_of_the_newest_form():
    codecs = Codecs()
    codecs.upcast("*", "*", from_version=1)(lambda payload: {"to": payload["mail"], "at": "2026-01-01T00:00:00Z"})

    assert codecs.decode(JSON, 1, b'{"mail":"a"}', into=Mail) == Mail(to="a", at=datetime(2026, 1, 1, tzinfo=UTC))


# ---------------------------------------------------------------- further codecs


def test_another_content_type_can_be_added():
    codecs = Codecs()
    codecs.add("text/csv", lambda rows: "\n".join(",".join(row) for row in rows).encode(), lambda body: body.decode().split("\n"))

    encoded = codecs.encode([["a", "b"], ["c", "d"]], content_type="text/csv")

    assert codecs.decode("text/csv", 1, encoded.body) == ["a,b", "c,d"]
    with pytest.raises(PayloadRefused, match="cannot be encoded as text/csv"):
        codecs.encode(3, content_type="text/csv")


def test_a_codec_that_gives_no_bytes_is_refused():
    codecs = Codecs()
    codecs.add("text/x", lambda payload: payload, bytes)

    with pytest.raises(PayloadRefused, match="gave str, not bytes"):
        codecs.encode("x", content_type="text/x")


def test_declarations_have_bounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.events.encoding.codec.CODECS_MAX", 4)
    monkeypatch.setattr("halfmoon.events.encoding.codec.UPCASTS_MAX", 0)

    with pytest.raises(PayloadRefused, match="more than 4 content types"):
        Codecs().add("text/x", bytes, bytes)
    with pytest.raises(PayloadRefused, match="more than 0"):
        Codecs().upcast(from_version=1)(lambda payload: payload)
