"""What touches each message, with both twins, against the general decoder: same fields, same frames, and nothing taken wherever
something is unusual.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon import hot
from halfmoon.broker.request import Reply, reply_to
from halfmoon.errors import BadHeader
from halfmoon.hot import AT_ONCE, DURABLE, NO_ANSWER
from halfmoon.model import java_hash
from halfmoon.wire.codes import JSON, ROCKETMQ, VERSION
from halfmoon.wire.command import decode, encode, request_command
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from tests.columns.conftest import joined

FRAME_MAX, HEADER_MAX = 1 << 24, 1 << 20
names = st.text("abcXYZ019_-%|", min_size=1, max_size=12)
UNUSUAL = ("DELAY", "TIMER_", "REAL_", "CLUSTER", "INNER_", "CHECK_", "TRAN_", "TRANSACTION_", "__STARTD", "MSG_REGION", "TRACE_ON")
texts = st.text(min_size=0, max_size=12).filter(lambda t: "\x01" not in t and "\x02" not in t and not t.startswith(UNUSUAL))


def send(**changed):
    fields = {
        "producer_group": "pg1",
        "topic": "TopicTest",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 1,
        "sys_flag": 0,
        "born_timestamp": 1700000000000,
        "flag": 0,
        "properties": "KEYS\x01k1\x02UNIQ_KEY\x010A0B\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
    }
    return SendMessageV2(**{**fields, **changed})


END = EndTransaction(
    producer_group="pg1", tran_state_table_offset=1, commit_log_offset=2, commit_or_rollback=8, msg_id="0A0B",
    from_transaction_check=False,
)  # fmt: skip


def taken(twin, frame, topic="TopicTest", queue_id=1):
    """Return what a twin takes of one send: its draft and its sender; None where it leaves it to the general decoder."""
    reader = twin.Reader(b"C\x01c\x02", 1 << 22)
    reader.open(topic, queue_id)
    others, used, _, wrong = reader.read(7, b"h" * 8, frame)
    assert (used, wrong) == (len(frame), None)
    groups = reader.take()
    assert len(groups) + len(others) == 1
    if others:
        return None
    [(found_topic, found_queue, group, messages)] = groups
    assert (found_topic, found_queue, group, len(messages)) == (topic, queue_id, "", 1)
    return messages.drafts[0], messages.senders[0]


@given(
    topic=names, queue_id=st.integers(-1, 2**31 - 1), flag=st.integers(-(2**31), 2**31 - 1), opaque=st.integers(0, 2**31 - 1),
    born=st.integers(10**12, 10**13 - 1), properties=texts, again=st.integers(0, 16),
    serialization=st.sampled_from([JSON, ROCKETMQ]),
)  # fmt: skip
def test_a_send_is_taken_as_it_was_sent(compiled, topic, queue_id, flag, opaque, born, properties, again, serialization):
    header = send(topic=topic, queue_id=queue_id, flag=flag, born_timestamp=born, properties=properties, reconsume_times=again)
    frame = encode(request_command(header, b"x", opaque=opaque, serialization=serialization))

    stored = properties.encode() + (b"\x02" if properties else b"") + b"C\x01c\x02"
    draft = (b"x", stored, flag, 0, born, b"h" * 8, again, 0, 0)
    assert taken(compiled, frame, topic, queue_id) == (draft, (7, opaque, serialization, DURABLE, 1))


DECLARED = [(send(), name) for name in SendMessageV2.__struct_encode_fields__]
DECLARED += [(END, name) for name in EndTransaction.__struct_encode_fields__]
"""Every field of the two requests that the compiled reader reads, as the protocol table has it."""

VALUES = ("", "x", "0", "1", "8", "-1", "+1", " 1", "1.5", str(2**31), str(-(2**31)), str(2**63), "1" * 13, "true", "True", "false")


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(("header", "name"), DECLARED, ids=lambda each: each if isinstance(each, str) else type(each).__name__)
def test_the_compiled_reader_takes_no_value_that_the_declared_field_refuses(compiled, header, name, serialization):
    command, took = request_command(header, serialization=serialization), 0
    for value in VALUES:
        command.fields[name] = value
        reader = compiled.Reader(b"", 100)
        for topic in ("TopicTest", *VALUES):
            for queue_id in (-1, 0, 1, 8, -(2**31)):
                reader.open(topic, queue_id)
        frame = encode(command)
        others, *_ = reader.read(7, b"h" * 8, frame)
        if not others:
            took += 1
            decode(frame[8:], b"", serialization).header(type(header))  # raises BadHeader for what the table refuses

    assert took, "a value that is right is taken"


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("field", "befgh")
def test_a_send_header_without_a_field_that_it_needs_is_left_to_the_general_decoder(compiled, field, serialization):
    command = request_command(send(), b"x", serialization=serialization)
    del command.fields[field]

    assert taken(compiled, encode(command)) is None


def test_a_rocketmq_header_whose_fields_come_twice_is_left_to_the_general_decoder(compiled):
    frame = encode(request_command(send(), serialization=ROCKETMQ))
    fields = frame[8 + 21 :]
    header = bytearray(frame[8 : 8 + 21]) + fields + fields
    header[17:21] = (2 * len(fields)).to_bytes(4, "big")
    head = (4 + len(header)).to_bytes(4, "big") + (1 << 24 | len(header)).to_bytes(4, "big")

    assert taken(compiled, head + bytes(header)) is None


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(("name", "value"), [("d", "4x"), ("d", "5000000000"), ("k", "fflse"), ("l", "-"), ("m", "ja")])
def test_what_the_general_decoder_refuses_is_left_to_it_though_nobody_uses_it(compiled, serialization, name, value):
    command = request_command(send(max_reconsume_times=3), serialization=serialization)
    assert taken(compiled, encode(command)) is not None
    command.fields[name] = value
    with pytest.raises(BadHeader):
        command.header(SendMessageV2)

    assert taken(compiled, encode(command)) is None


@given(st.data())
def test_a_damaged_header_never_reads_as_other_fields_than_the_general_decoder_reads(compiled, data):
    serialization = data.draw(st.sampled_from([JSON, ROCKETMQ]))
    frame = bytearray(encode(request_command(send(), b"", serialization=serialization)))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))

    found = taken(compiled, bytes(frame))

    if found is not None:
        try:
            plain = decode(bytes(frame[8:]), b"", serialization)
            header = plain.header(SendMessageV2)
        except BadHeader:  # what a send does not use may be damaged; what it uses must be what the general decoder says
            return
        (_, properties, flag, sys_flag, born, _, again, _, code), (_, opaque, _, how, _) = found
        assert (plain.opaque, header.topic, header.queue_id) == (opaque, "TopicTest", 1)
        numbers = header.flag, header.sys_flag, header.born_timestamp, header.reconsume_times
        assert [number or 0 for number in numbers] == [flag, sys_flag, born, again]
        text, tag, wait = compiled.stored_properties((header.properties or "").encode(), b"C\x01c\x02")
        assert (text, tag, how) == (properties, code, NO_ANSWER if plain.flag & 2 else DURABLE if wait else AT_ONCE)


def test_the_pull_header_equals_the_plain_one():
    header = PullMessage(
        consumer_group="cg", topic="T", queue_id=3, queue_offset=77, max_msg_nums=32, sys_flag=6, commit_offset=5,
        suspend_timeout_millis=15000, sub_version=0, subscription="A || B", expression_type="TAG",
    )  # fmt: skip
    frame = encode(request_command(header, opaque=9))

    opaque, flag, found = hot.pull_header_json(frame[8:])

    assert (opaque, flag) == (9, 0)
    assert (found.consumerGroup, found.topic, found.queueId, found.queueOffset, found.maxMsgNums) == ("cg", "T", 3, 77, 32)
    assert (found.sysFlag, found.commitOffset, found.suspendTimeoutMillis, found.subscription) == (6, 5, 15000, "A || B")


def answered(twin, places, serialization, queue_offset, opaque, region, trace_on):
    """Return the frame that answers one request whose messages lie at these places."""
    messages = twin.Messages.lying_at(places)
    messages.sent(7, opaque, serialization, AT_ONCE, len(places))
    group, host_hex = (messages, 3, queue_offset), "7F00000100002A9F"
    [(peer, frame)] = twin.send_answers([group], AT_ONCE, region, host_hex, 409, trace_on=trace_on)
    assert peer == 7
    return frame


@pytest.mark.parametrize("region", ["DefaultRegion", "a%b%s|c"])
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@given(
    places=st.lists(st.integers(0, 2**62), min_size=1, max_size=4),
    queue_offset=st.integers(0, 2**62),
    opaque=st.integers(0, 2**31 - 1),
    trace_on=st.booleans(),
)
def test_an_answer_says_what_the_plain_reply_says(twin, serialization, region, places, queue_offset, opaque, trace_on):
    frame = answered(twin, places, serialization, queue_offset, opaque, region, trace_on)

    size = int.from_bytes(frame[4:8], "big") & 0xFFFFFF
    command = decode(frame[8 : 8 + size], frame[8 + size :], frame[4])
    assert len(frame) == int.from_bytes(frame[:4], "big") + 4
    assert (command.code, command.flag, command.opaque, command.serialization) == (0, 1, opaque, serialization)
    assert command.header(SendMessageReply) == SendMessageReply(
        msg_id=",".join(f"7F00000100002A9F{place:016X}" for place in places), queue_id=3, queue_offset=queue_offset,
        region_id=region, trace_on=trace_on,
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1), st.sampled_from([JSON, ROCKETMQ])), max_size=6))
def test_what_says_that_it_is_done_says_what_the_plain_reply_says(twin, senders):
    found = twin.done_answers(senders, VERSION)

    expected = [(peer, encode(reply_to(opaque, serialization, Reply()))) for peer, opaque, serialization in senders]
    assert joined(found) == joined(expected)


I64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(-(2**31), 2**31 - 1), st.sampled_from([JSON, ROCKETMQ]), st.sampled_from([0, 19, 20, 21]), st.tuples(I64, I64, I64),
    st.none() | I64, st.integers(0, 99),
)  # fmt: skip
def test_the_answer_to_a_pull_says_what_the_plain_reply_says(twin, opaque, serialization, code, offsets, birth_ms, size):
    head = twin.pull_head(opaque, serialization, code, "FOUND", offsets, birth_ms, size, VERSION)

    told = PullMessageReply(
        suggest_which_broker_id=0,
        next_begin_offset=offsets[0],
        min_offset=offsets[1],
        max_offset=offsets[2],
        topic_birth_ms=birth_ms,
    )
    assert head + bytes(size) == encode(reply_to(opaque, serialization, Reply(code, "FOUND", told, bytes(size))))


def test_wait_goes_out_and_the_cluster_comes_in(twin):
    text = b"KEYS\x01k\x02WAIT\x01true\x02TAGS\x01TagA"

    assert twin.stored_properties(text, b"CLUSTER\x01C\x02") == (b"KEYS\x01k\x02TAGS\x01TagA\x02CLUSTER\x01C\x02", 2598919, True)


def test_a_sender_who_does_not_wait_is_noticed(twin):
    assert twin.stored_properties(b"WAIT\x01false\x02", b"")[2] is False


def test_a_property_that_only_ends_like_wait_or_tags_is_kept_as_it_is(twin):
    assert twin.stored_properties(b"MYWAIT\x01false\x02MYTAGS\x01x\x02", b"C\x01c\x02") == (
        b"MYWAIT\x01false\x02MYTAGS\x01x\x02C\x01c\x02", 0, True
    )  # fmt: skip


def test_a_word_inside_a_value_asks_for_nothing(twin):
    assert twin.stored_properties(b"KEYS\x01DELAY TRAN_MSG\x02", b"C\x01c\x02") == (
        b"KEYS\x01DELAY TRAN_MSG\x02C\x01c\x02",
        0,
        True,
    )


@pytest.mark.parametrize("name", [b"DELAY\x013", b"TRAN_MSG\x01true", b"TIMER_DELIVER_MS\x015"])
def test_properties_that_ask_for_more_than_storing_are_left_to_the_general_decoder(twin, name):
    assert twin.stored_properties(name + b"\x02", b"") is None


@given(st.text(min_size=1, max_size=20))
def test_the_tag_code_is_javas_hash_of_the_text(twin, tag):
    try:
        data = tag.encode()
    except UnicodeEncodeError:
        return
    assert twin.tag_hash(data) == java_hash(tag)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_a_stream_cut_anywhere_gives_the_same_frames(twin, bodies, data):
    stream = b"".join(encode(request_command(send(), body, opaque=k)) for k, body in enumerate(bodies))
    at = data.draw(st.integers(0, len(stream)))

    first, used, wanted, wrong = twin.split_frames(stream[:at], FRAME_MAX, HEADER_MAX)
    rest = stream[used:]
    second, used_too, _, wrong_too = twin.split_frames(rest, FRAME_MAX, HEADER_MAX)

    assert wrong is wrong_too is None
    assert used + used_too == len(stream)
    found = [stream[f[2] : f[3]] for f in first] + [rest[f[2] : f[3]] for f in second]
    assert found == bodies
    assert at - used < wanted


@pytest.mark.parametrize("start", ["00000000", "00000003616263", "ffffffff", "7fffffff", "0000001000ffffff"])
def test_impossible_lengths_are_said_to_be_wrong(twin, start):
    assert twin.split_frames(bytes.fromhex(start) + bytes(64), FRAME_MAX, HEADER_MAX)[3] is not None


def test_a_batch_is_split_into_its_messages(twin):
    body = bytes.fromhex(
        "0000001f0000000000000000000000000000000 26d30000754414753014102".replace(" ", "")
        + "0000001f000000000000000000000000000000026d31000754414753014202"
    )
    assert twin.batch_items(body) == [(b"m0", b"TAGS\x01A\x02", 0), (b"m1", b"TAGS\x01B\x02", 0)]


@given(st.binary(min_size=1, max_size=80))
def test_a_batch_of_any_bytes_is_split_or_refused(twin, body):
    try:
        items = twin.batch_items(body)
    except ValueError:
        return
    assert sum(22 + len(b) + len(p) for b, p, _ in items) == len(body)


@pytest.mark.parametrize("field", ["e", "f", "h", "j"])
@pytest.mark.parametrize("text", ["1_0", " 1", "2147483648", "-2147483649", "--1", "x"])
def test_a_number_that_the_general_decoder_refuses_is_left_to_it(compiled, field, text):
    for serialization in (JSON, ROCKETMQ):
        command = request_command(send(), b"x", serialization=serialization)
        command.fields[field] = text

        assert taken(compiled, encode(command)) is None


def hot_batch(*properties):
    return b"".join((23 + len(p)).to_bytes(4, "big") + bytes(12) + b"\0\0\0\1x" + len(p).to_bytes(2, "big") + p for p in properties)


@given(st.lists(st.tuples(st.binary(max_size=20), texts, st.integers(-(2**31), 2**31 - 1)), max_size=5), st.data())
def test_the_drafts_of_a_batch_are_what_the_general_decoder_makes_of_its_items(twin, messages, data):
    body = b"".join(
        (22 + len(b) + len(p.encode())).to_bytes(4, "big") + bytes(8) + f.to_bytes(4, "big", signed=True)
        + len(b).to_bytes(4, "big") + b + len(p.encode()).to_bytes(2, "big") + p.encode()
        for b, p, f in messages
    )  # fmt: skip
    if body and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]

    drafts = twin.batch_drafts(body, b"C\x01c\x02", 0, 5, b"h" * 8, 0, 32767)

    if drafts is not None:
        plain = [(b, *twin.stored_properties(p, b"C\x01c\x02"), f) for b, p, f in twin.batch_items(body)]
        assert [(d[0], d[1], d[8], d[2]) for d in drafts] == [(b, text, code, f) for b, text, code, _, f in plain]
        assert all(d[3:8] == (0, 5, b"h" * 8, 0, 0) for d in drafts)


def test_a_batch_of_messages_with_only_a_unique_key_is_taken_as_it_stands(twin):
    body = hot_batch(b"UNIQ_KEY\x01AB\x02", b"UNIQ_KEY\x01CD\x02TAGS\x01TagA\x02")

    drafts = twin.batch_drafts(body, b"C\x01c\x02", 0, 5, b"h" * 8, 0, 32767)

    assert [(d[1], d[8]) for d in drafts] == [
        (b"UNIQ_KEY\x01AB\x02C\x01c\x02", 0), (b"UNIQ_KEY\x01CD\x02TAGS\x01TagA\x02C\x01c\x02", 2598919)
    ]  # fmt: skip
