"""Tests of the envelope: worked examples in both serialisations, what peers write differently, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.columns.signing import Signer
from halfmoon.errors import BadHeader
from halfmoon.limits import HEADER_FIELDS_MAX
from halfmoon.wire.codes import JSON, ROCKETMQ, Language
from halfmoon.wire.command import Command, decode, decode_ext, encode, reply_command, request_bytes, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.client import NotifyConsumerIdsChanged
from halfmoon.wire.headers.pull import PullMessageReply, QueryMessage
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.signature import Credentials, verify

EXAMPLE_A = bytes.fromhex(
    "000001580000014f7b22636f6465223a3331302c226578744669656c6473223a7b2261223a22706731222c2262223a22546f70696354657374222c22"
    "63223a22544257313032222c2264223a2234222c2265223a2231222c2266223a2230222c2267223a2231373030303030303030303030222c2268223a"
    "2230222c2269223a224b4559535c75303030316b315c7530303032554e49515f4b45595c753030303130413042304330443034443231384234414143"
    "323044354133453143303030305c7530303032574149545c7530303031747275655c7530303032544147535c7530303031546167415c753030303222"
    "2c226a223a2230222c226b223a2266616c7365222c226d223a2266616c7365222c226e223a2262726f6b65722d61227d2c22666c6167223a302c226c"
    "616e6775616765223a22505954484f4e222c226f7061717565223a312c2276657273696f6e223a3430397d68656c6c6f"
)
EXAMPLE_B = bytes.fromhex(
    "000000f5010000ec0136030199000000010000000000000000000000d70001610000000370673100016200000009546f706963546573740001630000"
    "00065442573130320001640000000134000165000000013100016600000001300001670000000d313730303030303030303030300001680000000130"
    "000169000000464b455953016b3102554e49515f4b455901304130423043304430344432313842344141433230443541334531433030303002574149"
    "540174727565025441475301546167410200016a000000013000016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b"
    "65722d6168656c6c6f"
)
PROPERTIES = "KEYS\x01k1\x02UNIQ_KEY\x010A0B0C0D04D218B4AAC20D5A3E1C0000\x02WAIT\x01true\x02TAGS\x01TagA\x02"
SEND = SendMessageV2(
    producer_group="pg1",
    topic="TopicTest",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=1,
    sys_flag=0,
    born_timestamp=1700000000000,
    flag=0,
    properties=PROPERTIES,
    reconsume_times=0,
    unit_mode=False,
    batch=False,
    broker_name="broker-a",
)


def received(data: bytes) -> Command:
    """Return the one command of the bytes of a frame."""
    inbox = Inbox()
    inbox.feed(data)
    [frame] = inbox.frames()
    return decode(frame.header, frame.body, frame.serialization)


def json_command(text: str) -> Command:
    """Return the command of a JSON header."""
    return decode(text.encode(), b"", JSON)


def rocketmq_header(*fields: tuple[bytes, bytes], remark: bytes = b"", code: int = 11) -> bytes:
    """Return a binary header with these fields."""
    ext = b"".join(len(n).to_bytes(2, "big") + n + len(v).to_bytes(4, "big") + v for n, v in fields)
    front = code.to_bytes(2, "big", signed=True) + bytes((0, 1, 0x99)) + bytes(4) + bytes(4)
    return front + len(remark).to_bytes(4, "big") + remark + len(ext).to_bytes(4, "big") + ext


# ---------------------------------------------------------------- worked examples


@pytest.mark.parametrize(("data", "serialization"), [(EXAMPLE_A, JSON), (EXAMPLE_B, ROCKETMQ)])
def test_the_worked_send_requests_are_read(data, serialization):
    command = received(data)

    assert (command.code, command.opaque, command.flag, command.version) == (310, 1, 0, 409)
    assert command.language == Language.PYTHON
    assert command.serialization == serialization
    assert command.body == b"hello"
    assert command.header(SendMessageV2) == SEND


def test_the_binary_worked_send_request_is_written_byte_for_byte():
    assert encode(request_command(SEND, b"hello", opaque=1, serialization=ROCKETMQ)) == EXAMPLE_B


def test_the_json_worked_send_request_is_written_with_the_same_content():
    ours = encode(request_command(SEND, b"hello", opaque=1))
    size = int.from_bytes(EXAMPLE_A[4:8], "big")

    head = json.loads(ours[8 : 8 + int.from_bytes(ours[4:8], "big")])

    assert head.pop("serializeTypeCurrentRPC") == "JSON"
    assert head == json.loads(EXAMPLE_A[8 : 8 + size])
    assert ours.endswith(b"hello")


def test_the_worked_send_reply_of_a_broker_is_read():
    text = (
        '{"code":0,"extFields":{"queueId":"1","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F000000'
        '0000001000","queueOffset":"0"},"flag":1,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    )

    command = received(bytes.fromhex("000000eb000000e7") + text.encode())

    assert command.is_response
    assert command.header(SendMessageReply) == SendMessageReply(
        msg_id="7F00000100002A9F0000000000001000", queue_id=1, queue_offset=0, region_id="DefaultRegion", trace_on=True
    )


def test_the_worked_notice_of_a_broker_is_written_byte_for_byte():
    text = (
        '{"code":40,"extFields":{"consumerGroup":"cg1"},"flag":2,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",'
        '"version":409}'
    )
    notice = request_command(NotifyConsumerIdsChanged(consumer_group="cg1"), opaque=7, oneway=True)
    notice.language = int(Language.JAVA)

    assert encode(notice) == bytes.fromhex("0000008800000084") + text.encode()
    assert received(encode(notice)).is_oneway


# ---------------------------------------------------------------- both ways

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
COMMANDS = st.builds(
    Command,
    code=st.integers(0, 32767),
    flag=st.integers(0, 3),
    opaque=st.integers(-(2**31), 2**31 - 1),
    language=st.sampled_from([int(member) for member in Language]),
    version=st.integers(0, 32767),
    remark=st.none() | TEXT,
    fields=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=50),
    serialization=st.sampled_from([JSON, ROCKETMQ]),
)


@given(COMMANDS)
def test_a_command_survives_both_serialisations(command):
    assert received(encode(command)) == command


@given(st.binary(max_size=200), st.sampled_from([JSON, ROCKETMQ, 7]))
def test_any_bytes_as_a_header_are_a_command_or_refused(header, serialization):
    try:
        command = decode(header, b"", serialization)
    except BadHeader:
        return

    assert isinstance(command, Command)


@given(st.data())
def test_a_damaged_header_is_a_command_or_refused(data):
    example = data.draw(st.sampled_from([EXAMPLE_A, EXAMPLE_B]))
    at = data.draw(st.integers(8, len(example) - 6))
    damaged = example[:at] + bytes((data.draw(st.integers(0, 255)),)) + example[at + 1 :]

    try:
        received(damaged).header(SendMessageV2)
    except BadHeader:
        pass


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reply_goes_back_in_the_serialisation_asked(serialization):
    request = received(encode(request_command(SEND, b"x", opaque=77, serialization=serialization)))
    header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=5, min_offset=0, max_offset=9)

    reply = received(encode(reply_command(request, 19, "OFFSET_OVERFLOW_ONE", header)))

    assert (reply.serialization, reply.opaque, reply.code, reply.remark) == (serialization, 77, 19, "OFFSET_OVERFLOW_ONE")
    assert reply.is_response
    assert reply.language == Language.JAVA
    assert reply.header(PullMessageReply) == header


def test_every_field_of_a_json_header_is_written_as_text():
    frame = encode(request_command(SEND, b""))
    head = json.loads(frame[8:])

    assert all(isinstance(value, str) for value in head["extFields"].values())
    assert head["extFields"]["m"] == "false"


# ---------------------------------------------------------------- what other peers write


def test_numbers_and_booleans_as_fields_are_read_as_text():
    command = json_command('{"code":310,"extFields":{"e":1,"g":1700000000000,"m":true,"k":false,"i":null}}')

    assert command.fields == {"e": "1", "g": "1700000000000", "m": "true", "k": "false"}


@pytest.mark.parametrize("tail", ["\n", " ", "\r\n"])
def test_blanks_after_the_json_header_are_read_over(tail):
    assert json_command('{"code":11}' + tail).code == 11


def test_missing_and_unknown_keys_of_a_json_header_are_no_error():
    command = json_command('{"code":34,"somethingNew":{"a":[1]},"remark":"","extFields":{}}')

    assert (command.code, command.opaque, command.flag, command.remark, command.fields) == (34, 0, 0, None, {})


@pytest.mark.parametrize(
    ("text", "language"),
    [('"PYTHON"', Language.PYTHON), ("9", Language.GO), ('"KLINGON"', Language.OTHER), ("null", Language.OTHER)],
)
def test_a_language_is_read_by_name_or_number_and_an_unknown_one_is_no_error(text, language):
    assert json_command(f'{{"code":1,"language":{text}}}').language == language


def test_names_without_quotes_are_read():
    assert json_command('{code:11,extFields:{topic:"t"}}').fields == {"topic": "t"}


def test_a_binary_field_given_twice_counts_as_the_last_one():
    header = rocketmq_header((b"msgId", b"old"), (b"queueId", b"1"), (b"msgId", b"new"))

    assert decode(header, b"", ROCKETMQ).fields == {"msgId": "new", "queueId": "1"}


def test_an_empty_binary_field_counts_as_missing():
    assert decode(rocketmq_header((b"topic", b""), (b"a", b"b")), b"", ROCKETMQ).fields == {"a": "b"}


def test_a_field_whose_text_is_null_stays_that_text():
    command = json_command('{"code":12,"extFields":{"topic":"null"}}')

    assert command.fields == {"topic": "null"}


def test_a_code_that_does_not_fit_a_binary_header_is_truncated_as_in_the_original():
    frame = encode(Command(200050, serialization=ROCKETMQ))

    assert received(frame).code == 3442


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"code":"many"}',
        '{"code":99999999999}',
        '{"opaque":-2147483649}',
        '{"extFields":[1]}',
        '{"extFields":{"a":{"b":1}}}',
        '{"a":' * 50_000,
        "[" * 50_000,
        '{"extFields":{' + ",".join(f'"f{i}":"v"' for i in range(HEADER_FIELDS_MAX + 1)) + "}}",
        "{a" * 400_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_bad_json_header_is_refused(text):
    with pytest.raises(BadHeader):
        json_command(text)


def test_a_json_header_that_is_not_utf_8_is_refused():
    with pytest.raises(BadHeader):
        decode(b'{"remark":"\xff"}', b"", JSON)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(20),
        rocketmq_header(remark=b"\xff"),
        rocketmq_header((b"\xff", b"v")),
        rocketmq_header((b"n", b"v"))[:-1],
        bytes(13) + b"\x7f\xff\xff\xff" + bytes(4),
        bytes(13) + b"\xff\xff\xff\xff" + bytes(4),
        bytes(17) + b"\x00\x00\x00\x09",
        bytes(17) + b"\x00\x00\x00\x02\xff\xff",
        rocketmq_header(*[(b"f%d" % i, b"v") for i in range(HEADER_FIELDS_MAX + 1)]),
    ],
    ids=range(10),
)
def test_a_bad_binary_header_is_refused(header):
    with pytest.raises(BadHeader):
        decode(header, b"", ROCKETMQ)


def test_an_unknown_serialisation_is_refused():
    with pytest.raises(BadHeader, match="unknown serialisation 2"):
        decode(b"{}", b"", 2)


ME = Credentials("account1", "secret-1", "a token")


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_signed_request_verifies_as_it_arrives(serialization):
    command = received(request_bytes(SEND, b"hello", 7, serialization, credentials=ME))

    assert {**command.fields} == {**request_command(SEND).fields, **Signer(*ME).sign(command.fields, b"hello")}
    assert verify(b"secret-1", command.fields, command.body)
    assert not verify(b"secret-1", command.fields, b"hellO")
    assert command.version == 409


def test_a_query_by_unique_key_says_an_old_version_so_that_servers_of_5_x_leave_out_what_is_not_signed():
    query = QueryMessage(topic="t", key="k", max_num=1, begin_timestamp=0, end_timestamp=1, unique_key_query=True)

    signed, unsigned = (received(request_bytes(query, b"", 7, JSON, credentials=who)) for who in (ME, None))

    assert (signed.version, unsigned.version) == (399, 409)
    assert signed.fields["_UNIQUE_KEY_QUERY"] == "true"
    assert verify(b"secret-1", {name: value for name, value in signed.fields.items() if name != "_UNIQUE_KEY_QUERY"}, b"")


def test_a_last_field_without_name_and_value_is_passed_over():
    pair, short = b"\0\x01a\0\0\0\x01x", b"\0\x01a\0\0\0"
    assert decode_ext(pair + bytes(6), 0, 14) == {"a": "x"}
    with pytest.raises(BadHeader):
        decode_ext(short, 0, len(short))
