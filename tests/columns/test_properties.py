"""Properties as they are stored, with both twins: what goes out, what comes in, and what the general decoder must look at."""

from __future__ import annotations

import pytest

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


def test_separators_in_a_property_are_refused(twin):
    assert twin.encode_properties({"a": "1", "empty": "", "b": "2"}) == b"a\x011\x02b\x012\x02"
    with pytest.raises(MessageIllegal, match="separator"):
        twin.encode_properties({"a": "1\x02"})
