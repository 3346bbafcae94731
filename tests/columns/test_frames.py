"""What the compiled twin reads of a header at a glance equals what the decoder finds, or is nothing."""

from __future__ import annotations

import json

from hypothesis import event, given
from hypothesis import strategies as st

from halfmoon.errors import BadHeader
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, JsonReply, decode, encode_header, reply_command
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.table import NoFields
from tests.columns.test_twins import damaged

texts = st.sampled_from(["", "1", "-7", "true", 'x"\\\u00e9\U0001f600', "opaque", "1.0", "1e3", " 1", str(2**31), "null"])
names = st.sampled_from(["msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON", "nextBeginOffset", "minOffset", "opaque"])
values = st.one_of(texts, texts, texts, st.integers(-9, 2**33), st.booleans(), st.none(), st.just({"opaque": 5}), st.floats(-2, 2))
needed = {
    "code": st.sampled_from([0] * 20 + [1, -1, 2**31, "0", 1.0]),
    "flag": st.sampled_from([1] * 20 + [0, 3, None]),
    "opaque": st.integers(-2, 2**31 - 1),
    "language": st.sampled_from(["JAVA", "PYTHON", "ELSE"] * 7 + [1]),
    "version": st.sampled_from([0, 409] * 9 + [2**40]),
}
plain = st.dictionaries(names, texts, max_size=4)
fields = st.one_of(plain, plain, plain, plain, st.dictionaries(names, values, max_size=3), st.none())
more = {"extFields": fields, "remark": st.one_of(texts, st.none()), "more": st.one_of(texts, values)}


def outcome(command, kind):
    try:
        return command.header(kind)
    except BadHeader as error:
        return str(error)


@given(st.data(), st.fixed_dictionaries(needed, optional=more))
def test_a_header_at_a_glance_says_what_its_decoding_says(twins, data, header):
    python, native = twins
    text = json.dumps(header, ensure_ascii=data.draw(st.booleans())).encode()
    if data.draw(st.booleans()):
        text = damaged(text, data.draw)

    found = native.head_json(text, 3)

    assert python.head_json(text, 3) is None
    event("taken" if found else "left to the general decoder")
    if found is not None:
        command, reply = decode(text, b"body", JSON), JsonReply(found, text, b"body")
        assert found == (command.code, command.flag, command.opaque)
        assert len(command.fields) <= 3
        for name in ("code", "flag", "opaque", "language", "version", "remark", "fields", "body", "serialization", "is_oneway"):
            assert getattr(reply, name) == getattr(command, name)
        for kind in (SendMessageReply, PullMessageReply, NoFields):
            assert outcome(reply, kind) == outcome(command, kind)


def test_an_ordinary_answer_is_read_at_a_glance(twins):
    header = SendMessageReply(msg_id="id", queue_id=1, queue_offset=2, trace_on=True)
    text = encode_header(reply_command(Command(10, opaque=7), 0, None, header))

    assert twins[1].head_json(text, 4) == (0, 1, 7)
    assert twins[1].head_json(text, 3) is None
    assert JsonReply((0, 1, 7), text, b"").header(SendMessageReply) == header
