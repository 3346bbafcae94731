"""Declarations in TOML: what is read of a file and what it can set, and every refusal with its place and remedy."""

from __future__ import annotations

import pytest

from halfmoon.events.declarations.declaration import ChannelDeclaration, EventDeclaration
from halfmoon.events.declarations.tomlfile import plain_settings, read_toml
from halfmoon.events.errors import DeclarationRefused
from tests.events.declarations.test_declaration import TOML


def test_a_list_of_codes_is_a_channel_of_events_with_nothing_special():
    text = TOML.partition(b"[consumers.mail.channels")[0] + b'[consumers.mail.channels]\nTP_ORDER = ["EC_PAID"]'

    (consumer,) = read_toml(text, "events.toml").declarations.consumers

    assert consumer.channels == (ChannelDeclaration(topic="TP_ORDER", events=(EventDeclaration(code="EC_PAID"),)),)


def test_settings_of_a_file_are_kept_with_their_publisher_or_consumer():
    text = b'nameserver = "127.0.0.1:9876"\n' + TOML.replace(
        b'group = "P_shop"', b'group = "P_shop"\nmode = "outbox"\ntimeout_ms = 2000\nstrict = true\ncheck_after_s = 30'
    ).replace(b'group = "S_mail"', b'group = "S_mail"\nthreads = 4\nnameserver = "127.0.0.1:9877"')

    found = read_toml(text, "events.toml").declarations

    assert found.publishers[0].settings == {
        "nameserver": "127.0.0.1:9876",
        "mode": "outbox",
        "timeout_ms": 2000,
        "strict": True,
        "check_after_s": 30,
    }
    assert found.consumers[0].settings == {"nameserver": "127.0.0.1:9877", "threads": 4}


def test_what_a_file_can_set_are_plain_values_of_publisher_and_push_consumer():
    publisher, consumer = plain_settings("publisher"), plain_settings("consumer")

    assert {"mode": str, "relay": bool, "tries_max": int, "check_after_s": int}.items() <= publisher.items()
    assert not {"session", "provider", "transport", "codecs", "topics", "group", "self"} & publisher.keys()
    assert {"threads": int, "orderly": bool, "reconsume_max": int}.items() <= consumer.items()
    assert "group" not in consumer


ORDERS, MAIL = "events.toml: publishers.orders", "events.toml: consumers.mail"
CHANNEL = f"{MAIL}.channels.TP_ORDER"


@pytest.mark.parametrize(
    ("old", "new", "place", "what", "remedy"),
    [
        (b"[publishers.orders]", b"[publisher.orders]", "events.toml", "unknown key 'publisher'", "did you mean 'publishers'?"),
        (b'group = "P_shop"', b'grup = "P"', ORDERS, "unknown key 'grup'", "did you mean 'group'?"),
        (b'group = "P_shop"', b"", ORDERS, "group is missing", "add group = …"),
        (b'"P_shop"', b"7", f"{ORDERS}.group", "7 does not fit", "write a text"),
        (b'"P_shop"', b'"P shop"', ORDERS, "group 'P shop'", "use 1 to 127 letters"),
        (b'["TP_ORDER", "TP_STOCK"]', b"[]", ORDERS, "has no topic", "name at least one"),
        (b'"TP_STOCK"', b"5", f"{ORDERS}.topics", "5 is no text", "write a list of texts"),
        (b"tx_callback", b"tx-callback", ORDERS, "unknown key 'tx-callback'", "did you mean 'tx_callback'?"),
        (b"tx_callback", b"strict", f"{ORDERS}.strict", "does not fit", "write true or false"),
        (b"tx_callback", b"tries_max", f"{ORDERS}.tries_max", "does not fit", "write a whole number"),
        (b"tx_callback", b"session", ORDERS, "unknown key 'session'", "known here: access_key, binding, body_bytes_max"),
        (b"listener =", b"listner =", MAIL, "unknown key 'listner'", "did you mean 'listener'?"),
        (b'"com.shop.MailListener"', b'""', MAIL, "has no listener", "table of classes"),
        (b"{}", b"{ persistance = true }", f"{CHANNEL}.EC_PAID", "unknown key", "'persistence'?"),
        (b"{}", b"{ persistence = 1 }", f"{CHANNEL}.EC_PAID.persistence", "1 does", "true or"),
        (b"{}", b"true", f"{CHANNEL}.EC_PAID", "True is no table", "write a table"),
        (b"EC_SENT =", b'"EC SENT" =', f"{CHANNEL}.EC SENT", "event code 'EC SENT'", "use 1"),
        (b"[consumers.mail]", b"[consumers.orders]", "events.toml: consumers.orders", "channels is missing", "add channels"),
        (b"EC_SENT = {", b"EC_PAID = {", "events.toml:13", "not TOML", "mend the TOML"),
        (b"listener =", b"listener", "events.toml:9", "not TOML", "mend the TOML"),
        (b"persistence = false }", b"persistence = ", "events.toml:13", "not TOML", "mend the TOML"),
        (b"P_shop", b"P_\xff", "events.toml:3", "not UTF-8", "save it as UTF-8"),
    ],
)
def test_toml_that_is_wrong_is_refused_with_place_and_remedy(old: bytes, new: bytes, place: str, what: str, remedy: str):
    assert old in TOML

    with pytest.raises(DeclarationRefused) as caught:
        read_toml(TOML.replace(old, new), "events.toml")

    assert caught.value.place == place
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_toml_that_lies_too_deep_is_refused():
    with pytest.raises(DeclarationRefused, match=r"events.toml: lists or tables lie too deep"):
        read_toml(b"a = " + b"[" * 100_000, "events.toml")
