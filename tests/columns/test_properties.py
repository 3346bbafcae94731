"""Properties as they are stored, with both twins: what goes out, what comes in, and what the general decoder must look at."""

from __future__ import annotations

import pytest

from halfmoon.columns.properties import half_properties
from halfmoon.errors import MessageIllegal

SUFFIX = b"CLUSTER\x01c\x02MSG_REGION\x01r\x02TRACE_ON\x01true\x02"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b"KEYS\x01k\x02", (b"KEYS\x01k\x02" + SUFFIX, 0, True)),
        (b"WAIT\x01false\x02KEYS\x01k", (b"KEYS\x01k\x02" + SUFFIX, 0, False)),
        (b"TAGS\x01a\x02WAIT\x01true\x02", (b"TAGS\x01a\x02" + SUFFIX, 97, True)),
        (b"DELAY\x013\x02", None),
        (b"MSG_REGION\x01mine\x02", None),
        (b"KEYS\x01k\x02TRACE_ON\x01false", None),
        (b"MSG_TYPE\x01reply\x02", (b"MSG_TYPE\x01reply\x02" + SUFFIX, 0, True)),
        (b"TRAN_MSG\x01true\x02", None),
        (b"KEYS\x01\xff\x02", None),
    ],
)
def test_what_is_stored_of_properties(twin, text: bytes, stored: object):
    assert twin.stored_properties(text, SUFFIX) == stored


def test_a_half_message_names_its_group_and_only_the_unique_key_differs():
    for key in (b"1", b"22"):
        text = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02TAGS\x01a\x02UNIQ_KEY\x01" + key + b"\x02"
        assert half_properties(text, SUFFIX) == (text + SUFFIX, 97, True, "p")
    assert half_properties(b"PGROUP\x01p\x02UNIQ_KEY\x011\x02", SUFFIX) is None, "it is no half message"
    assert half_properties(b"TRAN_MSG\x01true\x02PGROUP\x01p q\x02UNIQ_KEY\x011\x02", SUFFIX) is None, "no name of a group"
    for name in (b"MSG_REGION", b"TRACE_ON"):
        text = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x011\x02" + name + b"\x01mine\x02"
        assert half_properties(text, SUFFIX) is None, "it is not the sender's to give"


def test_separators_in_a_property_are_refused(twin):
    assert twin.encode_properties({"a": "1", "empty": "", "b": "2"}) == b"a\x011\x02b\x012\x02"
    with pytest.raises(MessageIllegal, match="separator"):
        twin.encode_properties({"a": "1\x02"})
