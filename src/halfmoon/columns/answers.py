"""Answers that most requests get: whole frames, those to sends from a form a queue in which only the places and the opaque change.

Keeps a bounded cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from halfmoon.columns.frames import header_rocketmq, texts_of

if TYPE_CHECKING:
    from halfmoon.columns.messages import Messages

_FRAME = Struct(">iI")  # | total i32 | serialisation u8, header length u24 |
_I16 = Struct(">h")
_I32 = Struct(">i")
_ROCKETMQ = Struct(">hbhiiii")  # | code | language | version | opaque | flag | remark length | ext length |

Form = str | tuple[bytes, bytes]


@lru_cache(1024)
def answer_form(region: str, version: int, queue_id: int, serialization: int, *, trace_on: bool) -> Form:
    """Return what `send_answer` fills in for one queue: everything of a SEND reply that does not change from message to message."""
    traced = "true" if trace_on else "false"
    if serialization == 0:
        region = region.replace("%", "%%")  # the form is filled in by %
        return (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}","TRACE_ON":"{traced}","MSG_REGION":"{region}","msgId":"%s",'
            f'"queueOffset":"%d"}},"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        )
    fields = ((b"queueId", b"%d" % queue_id), (b"TRACE_ON", traced.encode()), (b"MSG_REGION", region.encode()))
    constant = b"".join(_I16.pack(len(name)) + name + _I32.pack(len(value)) + value for name, value in fields)
    return constant + b"\0\5msgId", b"\0\x0bqueueOffset"


def send_answer(form: Form, ids: str, queue_offset: int, opaque: int, version: int) -> bytes:
    """Return the whole frame that answers one stored message, or a batch by the ids of all its messages."""
    if isinstance(form, str):
        head = (form % (ids, queue_offset, opaque)).encode()
        return _FRAME.pack(4 + len(head), len(head)) + head
    before, name = form
    text, offset = ids.encode(), b"%d" % queue_offset
    ext = len(before) + 4 + len(text) + len(name) + 4 + len(offset)
    return b"%b%b%b%b%b%b%b%b" % (
        _FRAME.pack(25 + ext, 1 << 24 | 21 + ext), _ROCKETMQ.pack(0, 0, version, opaque, 1, 0, ext), before,
        _I32.pack(len(text)), text, name, _I32.pack(len(offset)), offset,
    )  # fmt: skip


def pull_head(
    opaque: int, serialization: int, code: int, remark: str, offsets: tuple[int, int, int], birth_ms: int | None, size_bytes: int,
    version: int,
) -> bytes:  # fmt: skip
    """Return the frame that answers a pull up to its body, of which ``size_bytes`` follow.

    ``offsets`` are where the next pull begins, and the least and the greatest of the queue; ``birth_ms`` is of its topic, for those
    who want to know.
    """
    following, low, high = offsets
    if serialization == 0:
        birth = "" if birth_ms is None else f',"topicBirthMs":"{birth_ms}"'
        head = (
            f'{{"code":{code},"extFields":{{"suggestWhichBrokerId":"0","nextBeginOffset":"{following}",'
            f'"minOffset":"{low}","maxOffset":"{high}"{birth}}},"flag":1,"language":"JAVA",'
            f'"opaque":{opaque},"remark":"{remark}","serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()
        return _FRAME.pack(4 + len(head) + size_bytes, len(head)) + head
    names, values = ["suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"], [0, following, low, high]
    if birth_ms is not None:
        names.append("topicBirthMs")
        values.append(birth_ms)
    head = header_rocketmq(code, 0, version, opaque, 1, remark, texts_of(names, values))
    return _FRAME.pack(4 + len(head) + size_bytes, 1 << 24 | len(head)) + head


def send_answers(
    groups: Iterable[tuple[Messages, int, int]], which: int, region: str, host_hex: str, version: int, *, trace_on: bool
) -> list[tuple[int, bytes]]:
    """Return (connection, frame) for each sender of stored messages that is answered as ``which`` says.

    A group is messages of one queue, its id, and the queue offset of the first. ``trace_on``: clients with tracing on are to
    report these sends.

    A group is messages of one queue, its id, and the queue offset of the first. ``trace_on``: clients with tracing on are to report
    these sends. The compiled twin joins what a connection is told.
    """
    answers: list[tuple[int, bytes]] = []
    for messages, queue_id, queue_offset in groups:
        places, at = messages.places, 0
        for peer, opaque, serialization, how, count in messages.senders:
            if how & which:
                form = answer_form(region, version, queue_id, serialization, trace_on=trace_on)
                ids = f"{host_hex}{places[at]:016X}" if count == 1 else ids_of(host_hex, places[at : at + count])
                answers.append((peer, send_answer(form, ids, queue_offset + at, opaque, version)))
            at += count
    return answers


def done_answers(senders: Iterable[tuple[int, int, int]], version: int) -> list[tuple[int, bytes]]:
    """Return (connection, frame) for each (connection, opaque, serialisation): that it is done, and nothing else.

    The compiled twin joins what neighbours of one connection are told.
    """
    answers = []
    for peer, opaque, serialization in senders:
        if serialization == 0:
            head = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
                opaque,
                version,
            )
            answers.append((peer, _FRAME.pack(4 + len(head), len(head)) + head))
        else:
            answers.append((peer, _FRAME.pack(25, 1 << 24 | 21) + _ROCKETMQ.pack(0, 0, version, opaque, 1, 0, 0)))
    return answers


def ids_of(host_hex: str, places: Sequence[int]) -> str:
    """Return the ids of messages that lie at these physical offsets, joined by commas."""
    return host_hex + Struct(f">{len(places)}q").pack(*places).hex(",", 8).upper().replace(",", "," + host_hex)
