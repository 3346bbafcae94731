"""Properties as they are stored, with both twins: what goes out, what comes in, and what the general decoder must look at."""

from __future__ import annotations

import pytest

from halfmoon.columns.properties import half_properties
from halfmoon.errors import MessageIllegal

CLUSTER = b"CLUSTER\x01c\x02"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b"KEYS\x01k\x02", (b"KEYS\x01k\x02" + CLUSTER, 0, True)),
        (b"WAIT\x01false\x02KEYS\x01k", (b"KEYS\x01k\x02" + CLUSTER, 0, False)),
        (b"TAGS\x01a\x02WAIT\x01true\x02", (b"TAGS\x01a\x02" + CLUSTER, 97, True)),
        (b"DELAY\x013\x02", None),
        (b"TRAN_MSG\x01true\x02", None),
        (b"KEYS\x01\xff\x02", None),
    ],
)
def test_what_is_stored_of_properties(twin, text: bytes, stored: object):
    assert twin.stored_properties(text, CLUSTER) == stored


def test_a_half_message_names_its_group_and_only_the_unique_key_differs():
    for key in (b"1", b"22"):
        text = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02TAGS\x01a\x02UNIQ_KEY\x01" + key + b"\x02"
        assert half_properties(text, CLUSTER) == (text + CLUSTER, 97, True, "p")
    assert half_properties(b"PGROUP\x01p\x02UNIQ_KEY\x011\x02", CLUSTER) is None, "it is no half message"
    assert half_properties(b"TRAN_MSG\x01true\x02PGROUP\x01p q\x02UNIQ_KEY\x011\x02", CLUSTER) is None, "no name of a group"


def test_separators_in_a_property_are_refused(twin):
    assert twin.encode_properties({"a": "1", "empty": "", "b": "2"}) == b"a\x011\x02b\x012\x02"
    with pytest.raises(MessageIllegal, match="separator"):
        twin.encode_properties({"a": "1\x02"})
