"""Both twins on the same bytes, valid, damaged and random: the same columns, the same bytes of the log, the same answers, the same
refusals. `--hypothesis-profile fuzz` looks for long.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from halfmoon.columns.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from halfmoon.errors import MessageIllegal
from halfmoon.hot import ENTRY
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.wire.codes import JSON, ROCKETMQ
from tests.columns.conftest import PYTHON, joined, native

CLUSTER = b"CLUSTER\x01C\x02"
BROKER_PAIRS = CLUSTER + b"MSG_REGION\x01R\x02TRACE_ON\x01true\x02"
HALF_SUFFIX = BROKER_PAIRS + b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02"
BODY_MAX = 300
ME = "me", "secret", ""
HOSTS = [b"\x7f\0\0\1\0\0\x2a\x9f", bytes(15) + b"\1\0\0\x10\0", b"", b"odd"]

# ---------------------------------------------------------------- properties

PIECES = [
    b"\x01", b"\x02", b"\x02\x02", b"WAIT\x01true", b"WAIT\x01false", b"WAIT\x01", b"WAIT\x01tRUE\x02", b"TAGS\x01a", b"TAGS\x01",
    b"TAGS\x01\xc3\xa9\xf0\x9f\x98\x80\x02", b"KEYS\x01k", b"DELAY\x011", b"DELAY", b"TIMER_DELAY_MS\x011", b"CLUSTER\x01x",
    b"MSG_REGION\x01x", b"MSG_TYPE\x01x\x02", b"TRACE_ON\x01false", b"TRACE",
    b"INNER_REPEAT\x011", b"TRAN_MSG\x01true\x02", b"TRAN_MSG\x01TRUE\x02", b"PGROUP\x01g\x02", b"PGROUP\x01g|%\x02",
    b"PGROUP\x01\x02", b"PGROUP\x01g h\x02", b"UNIQ_KEY\x01K1", b"UNIQ_KEY\x01\x02", b"MY_UNIQ_KEY\x01K\x02",
    b"UNIQ_KEY\x01DELAY\x02", b"REAL_TOPIC\x01x", b"CHECK_IMMUNITY_TIME_IN_SECONDS\x011", b"x", b"\xc3\xa9", b"\xff", b"",
]  # fmt: skip
HALF = b"KEYS\x01k\x02TRAN_MSG\x01true\x02UNIQ_KEY\x010A0B\x02PGROUP\x01pg\x02WAIT\x01true\x02TAGS\x01t\x02"
properties = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=7).map(b"".join),
    st.lists(st.sampled_from(PIECES), max_size=3).map(lambda pieces: HALF + b"".join(pieces)),
    st.tuples(st.integers(0, len(HALF)), st.sampled_from(PIECES)).map(lambda cut: HALF[: cut[0]] + cut[1] + HALF[cut[0] :]),
    st.sampled_from([b"WAIT\x01true", b"UNIQ_KEY\x01K1\x02", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02", HALF]),
    st.binary(max_size=30),
)


def outcome(function, *arguments):
    """Return what a function gives, or which error it raises."""
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:  # in words of its own
        return "UnicodeDecodeError", error.start
    except UnicodeEncodeError:
        return "UnicodeEncodeError"
    except (ValueError, MessageIllegal) as error:
        return type(error).__name__, str(error)


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(min_codepoint=0, max_codepoint=0x7F), max_size=20),
    st.sampled_from(["", "\x01", "a\x02", "\ud800", "\ud800\x01", '\x7f"\\\x1f/é', "\U0001f600"]),
)


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_properties_are_encoded_alike(twins, found):
    python, native = twins

    assert outcome(native.encode_properties, found) == outcome(python.encode_properties, found)


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=30), st.integers(-(2**31) - 1, 2**31))),
    st.sampled_from([0, 0, 0, 0, PROPERTIES_BYTES_MAX, PROPERTIES_BYTES_MAX + 1]),
)
def test_batches_are_encoded_alike(twins, items, longest):
    python, native = twins
    items = [*items, (b"x", bytes(longest), 7)]

    assert outcome(native.encode_batch, items) == outcome(python.encode_batch, items)


NUMBERS = st.integers(-(2**31), 2**31 - 1)
SIGNING = {ACCESS_KEY, SECURITY_TOKEN, SIGNATURE}
"""No request of ours has such a field before it is signed."""


@example(fields={"\ud800": None}, code=0, flag=0, opaque=0, body=b"", serialization=JSON, remark=None, who=None)
@given(
    st.dictionaries(TEXTS.filter(lambda name: name not in SIGNING), TEXTS | NUMBERS | st.booleans() | st.none(), max_size=6),
    NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=20), st.sampled_from([JSON, ROCKETMQ]), st.none() | TEXTS,
    st.none() | st.tuples(TEXTS, TEXTS | st.text(min_size=60, max_size=70), TEXTS),
)  # fmt: skip
def test_requests_become_the_same_frames(twins, fields, code, flag, opaque, body, serialization, remark, who):
    def framed(twin):
        signer = () if who is None else (twin.Signer(*who),)
        return twin.request_frame(
            code, flag, opaque, 409, tuple(fields), tuple(fields.values()), body, serialization, remark, *signer
        )

    python, native = twins
    assert outcome(framed, native) == outcome(framed, python)


@given(properties, st.sampled_from([b"", CLUSTER, BROKER_PAIRS, HALF_SUFFIX]))
def test_properties_are_prepared_alike(twins, text, suffix):
    python, native = twins

    assert native.stored_properties(text, suffix) == python.stored_properties(text, suffix)
    assert outcome(native.tag_hash, text) == outcome(python.tag_hash, text)


# ---------------------------------------------------------------- batches


def item(body, text, flag, lie=0):
    head = (22 + len(body) + len(text) + lie).to_bytes(4, "big", signed=True) + bytes(8) + flag.to_bytes(4, "big", signed=True)
    return head + len(body).to_bytes(4, "big") + body + len(text).to_bytes(2, "big") + text


items = st.builds(
    item, st.binary(max_size=12), properties, st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 0, 0, 0, 0, -1, 1, 2**30])
)
batches = st.one_of(st.lists(items, max_size=5).map(b"".join), st.binary(max_size=60))


def damaged(data, draw):
    """Return bytes with some of them changed, cut out or cut off."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 4]))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        what = draw(st.sampled_from(["change", "change", "bit", "remove", "cut", "insert"]))
        if what == "change":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif what == "bit":
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        elif what == "remove":
            data = data[:at] + data[at + draw(st.integers(1, 8)) :]
        elif what == "cut":
            data = data[:at]
        else:
            data = data[:at] + draw(st.sampled_from([b"\\u0001", b"\0\1g\0\0\0", b"{", b'"', b"1", *PIECES])) + data[at:]
    return data


@given(st.data(), st.sampled_from([7, 40, PROPERTIES_BYTES_MAX]))
def test_batch_bodies_are_split_alike(twins, data, longest):
    python, native = twins
    body = damaged(data.draw(batches), data.draw)

    assert outcome(native.batch_items, body) == outcome(python.batch_items, body)
    arguments = (body, CLUSTER, 5, 7, HOSTS[0], 2, longest)
    assert native.batch_drafts(*arguments) == python.batch_drafts(*arguments)


# ---------------------------------------------------------------- frames

integers = st.one_of(st.sampled_from([0, 0, 1, 4, 8, 12, 2, 16, -1]), st.integers(-(2**31), 2**31 - 1))
texts_of_numbers = st.sampled_from(["", "-0", "00", "007", "+1", " 1", "1 ", "1_0", "2147483648", "9223372036854775808", "x"])
JSON_VALUES = [
    "null", "true", "false", '"TRUE"', '"0"', "1", '"-1"', "-0", "01", '"\\u0031"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"',
    '"\\x"', '"\x01"', "[]", "[1,]", '[{"a":[true,null,-1.5e+3]}]', "{}", '""', '"\\/\\b\\f\\n\\r\\t\\"\\\\"', " 1 ", "nul", "-",
    "1.", '"9223372036854775807"', "9223372036854775808", '"a\xe9"',
]  # fmt: skip


def escaped(text):
    return "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in text)


@st.composite
def fields(draw):
    """The fields of a send, mostly usual ones, in their order, as texts."""
    text = draw(properties).decode("utf-8", "replace")
    found = {
        "a": "P", "b": draw(st.sampled_from(["T", "T", "T", "U", "\xe9"])), "c": "TBW102", "d": "4",
        "e": str(draw(st.sampled_from([1, 1, 1, 2, -1]))), "f": str(draw(st.sampled_from([0, 0, 0, 4, 8, 16, -1]))),
        "g": str(draw(st.sampled_from([1_700_000_000_000, 1_700_000_000_001, 5]))), "h": str(draw(integers)), "i": text,
        "j": str(draw(st.sampled_from([0, 0, 3]))), "k": "false", "l": "0",
        "m": draw(st.sampled_from(["false", "false", "true", "TRUE", "x", ""])),
    }  # fmt: skip
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        name = draw(st.sampled_from("abdefghijm"))
        change = draw(st.sampled_from(["drop", "number", "last"]))
        value = found.pop(name, "")
        if change == "number":
            found[name] = draw(texts_of_numbers)
        elif change == "last":
            found[name] = value
    return found


@st.composite
def ending_fields(draw):
    """The fields of the end of a transaction, as texts."""
    found = {
        "producerGroup": draw(st.sampled_from(["g", "g", "\xe9", ""])), "tranStateTableOffset": str(draw(integers)),
        "commitLogOffset": str(draw(integers)), "commitOrRollback": draw(st.sampled_from(["8", "8", "12", "0", "-8"])),
        "msgId": draw(st.sampled_from(["u", "u", ""])), "transactionId": "t",
        "fromTransactionCheck": draw(st.sampled_from(["false", "true", "TRUE", ""])),
        "stillOpen": draw(st.sampled_from(["false", "false", "true", "x"])),
    }  # fmt: skip
    for name in draw(st.lists(st.sampled_from(list(found)), max_size=2)):
        if draw(st.booleans()):
            found.pop(name, None)
        else:
            found[name] = draw(texts_of_numbers)
    return found


@st.composite
def headers(draw, code, body):
    """A header of either kind, perhaps signed: its serialisation and bytes."""
    opaque, flag = draw(st.integers(0, 2**31 - 1)), draw(st.sampled_from([0, 0, 0, 0, 1, 2, 4]))
    given = draw(ending_fields() if code == 37 else fields())
    if (who := draw(st.sampled_from([None, *[ME] * 5, ("me", "another", "")]))) is not None:
        given |= PYTHON.Signer(*who).sign(given, body)
    if draw(st.booleans()):
        ext = b"".join(
            len(name).to_bytes(2, "big") + name.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
            for name, value in given.items()
        )
        head = code.to_bytes(2, "big") + b"\0\1\x99" + b"".join(n.to_bytes(4, "big") for n in (opaque, flag, 0, len(ext)))
        return ROCKETMQ, head + ext
    members = [f'"{name}":"{escaped(value)}"' for name, value in given.items()]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        name, value = draw(st.sampled_from([*"abefghijmz", "\\u0065", *given])), draw(st.sampled_from(JSON_VALUES))
        members.insert(draw(st.integers(0, len(members))), f'"{name}":{value}')
    outer = [f'"extFields":{{{",".join(members)}}}', f'"flag":{flag}', f'"opaque":{opaque}']
    if not draw(st.integers(0, 5)):
        extra = f'"{draw(st.sampled_from(["flag", "opaque", "remark", "extFields"]))}":{draw(st.sampled_from(JSON_VALUES))}'
        outer.insert(draw(st.integers(0, 3)), extra)
    return JSON, f'{{"code":{code},{",".join(outer)}}}'.encode()


@st.composite
def frames(draw):
    """The bytes of some frames, perhaps damaged."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        code = draw(st.sampled_from([310, 310, 310, 320, 11, 37, 37]))
        body = draw(batches) if code == 320 else draw(st.one_of(st.binary(max_size=20), st.just(bytes(BODY_MAX + 1))))
        serialization, header = draw(headers(code, body))
        header = damaged(header, draw)
        size = (4 + len(header) + len(body)).to_bytes(4, "big")
        found.append(size + (serialization << 24 | len(header)).to_bytes(4, "big") + header + body)
    return damaged(b"".join(found), draw)


def drafts_of(groups):
    return [(topic, queue, group, messages.drafts, messages.senders) for topic, queue, group, messages in groups]


def rows_of(completions):
    return ([], []) if completions is None else ([completions.at(number) for number in range(len(completions))], completions.checks)


# ---------------------------------------------------------------- transactions

small = st.integers(-1, 6)


@given(st.data())
def test_half_messages_are_kept_and_decided_alike(twins, data):
    bounds = data.draw(st.tuples(small.map(abs), st.integers(-1, 300)))
    kept, index = [twin.HalfMessageCache(*bounds) for twin in twins], -1
    for _ in range(data.draw(st.integers(0, 4))):
        entries = b"".join([ENTRY.pack(100 * data.draw(small), data.draw(st.integers(-5, 90)), 7) for _ in range(data.draw(small))])
        made = [(b"%d" % number, b"", 0, 4, 1, HOSTS[0], 0, 0, 0) for number in range(data.draw(st.integers(0, 5)))]
        topic, queue, group = data.draw(st.tuples(st.sampled_from(["T", ""]), small, st.sampled_from(["g", "\xe9"])))
        for twin, recent in zip(twins, kept):
            recent.add(index, entries, topic, queue, group, twin.Messages(made))
        index += min(len(made), len(entries) // ENTRY.size) + data.draw(st.integers(0, 2))  # queue offsets rise
        gone = data.draw(st.lists(small, max_size=2))
        for recent in kept:
            recent.drop(gone)
        here = [[None if (one := recent.get(at)) is None else one.drafts for at in range(-1, 15)] for recent in kept]
        assert (len(kept[1]), here[1]) == (len(kept[0]), here[0])
    caller = st.none() | st.tuples(small, small, st.sampled_from([0, 1]))
    completion = st.tuples(
        caller, small, st.sampled_from(["g", "\xe9"]), small, small.map(lambda at: 100 * at), st.booleans(), st.text()
    )
    rows = data.draw(st.lists(st.tuples(completion, st.booleans()), max_size=9))
    completions = [twin.Completions() for twin in twins]
    for one in completions:
        for row, check in rows:
            one.add(*row, check=check)
    assert rows_of(completions[1]) == rows_of(completions[0])
    chosen = data.draw(st.none() | st.lists(st.sampled_from(range(len(rows))), max_size=9) if rows else st.none())
    found = [recent.decide(one, chosen) for recent, one in zip(kept, completions)]
    assert found[1][1:] == found[0][1:]
    assert drafts_of(found[1][0]) == drafts_of(found[0][0])
    told = [one.tally([number for numbers in found[0][1] for number in numbers], found[0][2]) for one in completions]
    assert told[1] == told[0]


@given(
    st.lists(st.tuples(integers, integers), min_size=1, max_size=4), st.binary(max_size=1), st.integers(-1, 2**32),
    integers | st.sampled_from([2**31, -(2**31) - 1]),
)  # fmt: skip
def test_states_and_units_of_half_messages_are_alike(twins, rows, rest, store_s, group_hash):
    entries = b"".join([ENTRY.pack(*row, 7) for row in rows]) + rest
    found = [outcome(twin.prepared_rows, entries, store_s, group_hash) for twin in twins]

    assert found[1] == found[0]


@given(st.data())
def test_decisions_become_the_same_states_and_units(twins, data):
    indexes = data.draw(st.lists(st.integers(0, 20) | st.integers(0, 400), max_size=8))
    lengths = data.draw(st.sampled_from([(1000, 4096), (100, 30), (30, 100), (7, 7)]))
    runs, again = (twin.runs_of(indexes, *lengths) for twin in twins)
    assert again == runs
    count = sum(end - first for first, end, _ in runs)
    states = data.draw(st.sampled_from([4, 4, 4, 8])).to_bytes(24, "big") * count
    states = damaged(states, data.draw)
    entries = b"".join([ENTRY.pack(number, 90, 0) for number in range(len(indexes) + data.draw(st.sampled_from([0, 0, 0, 1])))])
    asked = data.draw(st.permutations(indexes)), entries, data.draw(st.integers(0, 9))
    found = [outcome(twin.decided_rows, states, runs, *asked) for twin in twins]

    assert found[1] == found[0]


# ---------------------------------------------------------------- the log and the answers

offsets = st.one_of(st.integers(0, 5000), st.sampled_from([2**31, 2**40, 2**62]))


def stored_alike(draw, topic, queue, ours, theirs):
    """Encode what two twins hold into the same rooms, and compare records, entries, answers and what is left."""
    host = draw(st.sampled_from(HOSTS[:2]))
    assert theirs.sizes(topic, host) == ours.sizes(topic, host)
    sizes = ours.sizes(topic, host)
    assert theirs.together(sizes) == ours.together(sizes)
    queue_offset, at = draw(offsets), draw(offsets)
    for _ in range(3):
        room = draw(st.one_of(st.integers(-10, 3000), st.sampled_from([sum(sizes), sum(sizes) - 1, sum(sizes[:1]), 2**40])))
        size_max = draw(st.sampled_from([2**20, 2**20, 200, 0]))
        place = (topic, queue, queue_offset, at, room, size_max, 1_700_000_000_001, host)
        found = outcome(ours.encode, *place)
        assert outcome(theirs.encode, *place) == found
        assert (theirs.places, theirs.left) == (ours.places, ours.left)
        at += 100_000
        queue_offset += 7
    alone = [[(one.drafts, one.senders, one.places) for one in messages.apart()] for messages in (ours, theirs)]
    assert alone[0] == alone[1]
    for how in range(4):
        assert theirs.answered(how) == ours.answered(how)
    if not ours.left:
        for which in (1, 2, 3):
            where = which, "R%s", "7F00000100002A9F", 409
            answers = PYTHON.send_answers([(ours, queue, queue_offset)] * 2, *where, trace_on=which > 1)
            assert native().send_answers([(theirs, queue, queue_offset)] * 2, *where, trace_on=which > 1) == joined(answers)


wide = st.one_of(integers, st.sampled_from([2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1]))
drafts = st.tuples(
    st.binary(max_size=30),
    properties,
    integers,
    integers,
    integers,
    st.sampled_from([*HOSTS[:2], *HOSTS]),
    integers,
    integers,
    integers,
)
wide_drafts = st.tuples(st.binary(max_size=3), properties, wide, wide, wide, st.sampled_from(HOSTS), wide, wide, wide)


@given(st.data(), st.lists(drafts, max_size=6), st.sampled_from(["T", "", "t" * 127, "t" * 128, "\xe9"]))
def test_messages_that_the_broker_makes_become_the_same_log_and_the_same_answers(twins, data, made, topic):
    both = [twin.Messages(made) for twin in twins]
    left = len(made)
    while left and data.draw(st.booleans()):
        count = data.draw(st.integers(1, left))
        left -= count
        sender = tuple(data.draw(st.integers(0, 3)) for _ in range(4))
        for messages in both:
            messages.sent(*sender, count)
    assert both[1].drafts == both[0].drafts
    assert both[1].senders == both[0].senders
    assert len(both[1]) == len(both[0])
    stored_alike(data.draw, topic, data.draw(integers), *both)


@given(st.data(), st.lists(drafts, max_size=6), integers)
def test_what_commits_store_is_the_same(twins, data, made, place):
    both = [twin.Messages(made) for twin in twins]
    kept = [messages.kept() for messages in both]
    assert [one.drafts for one in kept[1]] == [one.drafts for one in kept[0]] == [[draft] for draft in both[0].drafts]
    places = [place + number for number in range(len(made))]
    committed = [twin.Messages.committed(list(zip(halves, places))) for twin, halves in zip(twins, kept)]

    assert committed[1].drafts == committed[0].drafts
    assert [draft[3] & 0xC for draft in committed[0].drafts] == [8] * len(made)
    assert [draft[7] for draft in committed[0].drafts] == places
    stored_alike(data.draw, "T", 1, *committed)


@given(st.data(), st.lists(st.integers(0, 2**63 - 1), max_size=6), properties, integers, st.sampled_from(HOSTS[:2]))
def test_messages_of_numbers_are_the_same(twins, data, numbers, text, code, host):
    both = [twin.Messages.numbers(numbers, text, 5, host, code) for twin in twins]

    assert both[1].drafts == both[0].drafts == [(b"%d" % number, text, 0, 0, 5, host, 0, 0, code) for number in numbers]
    stored_alike(data.draw, "T", 1, *both)


@given(wide_drafts)
def test_numbers_without_a_place_in_a_record_are_refused_alike(twins, made):
    place = ("T", 1, 0, 0, 2**30, 2**20, 5, HOSTS[0])
    found = [outcome(twin.Messages([made]).encode, *place) for twin in twins]

    assert found[1] == found[0]


@given(st.data(), st.one_of(frames(), st.binary(max_size=200)), st.sampled_from([100, 2**24]), st.sampled_from([10, 2**20]))
def test_frames_are_cut_alike(twins, data, received, frame_max, header_max):
    python, native = twins
    received = damaged(received, data.draw)

    assert native.split_frames(received, frame_max, header_max) == python.split_frames(received, frame_max, header_max)
