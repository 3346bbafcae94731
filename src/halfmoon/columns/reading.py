"""`Reader`: the bytes that connections brought, read into `Messages` a queue. Decides nothing: it takes what is open.

A queue is *open* once a send to it passed the gate: the next ones that ask for nothing but storing are read at once. Everything
else is given back as frames, for the general decoder.
"""

from __future__ import annotations

from halfmoon.columns.batch import Draft, batch_drafts
from halfmoon.columns.completions import Completions
from halfmoon.columns.frames import Frame, split_frames
from halfmoon.columns.headers import (
    EndFields,
    SendHeader,
    end_header_json,
    end_header_rocketmq,
    fields_json,
    fields_rocketmq,
    send_header_json,
    send_header_rocketmq,
)
from halfmoon.columns.messages import AT_ONCE, DURABLE, NO_ANSWER, Group, Messages
from halfmoon.columns.properties import half_properties, stored_properties
from halfmoon.columns.signing import Verifier
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX, PROPERTIES_BYTES_MAX

_SENDS_JSON = (b'{"code":310,', b'{"code":320,')
_SENDS_ROCKETMQ = (b"\x01\x36", b"\x01\x40")
_END_JSON, _END_ROCKETMQ = b'{"code":37,', b"\0\x25"
_TRANSACTION_MASK, _COMMIT, _ROLLBACK = 0xC, 8, 12
_OPEN_MAX = 262_144
"""Queues that are open at most; beyond them all are closed, and open again as they are used."""


class Reader:
    """The columns of a turn. ``suffix`` are the pairs that each stored message gets, ``body_max`` the longest body."""

    def __init__(self, suffix: bytes, body_max: int) -> None:
        self._suffix, self._body_max = suffix, body_max
        self._open: set[tuple[str, int]] = set()
        self._open_halves: dict[tuple[str, int], bytes] = {}
        self._batches: dict[bytes, tuple[bytes, bool]] = {}
        self._groups: dict[tuple[str, int, str], Messages] = {}
        self._completions = Completions()

    def open(self, topic: str, queue_id: int) -> None:
        """Take ordinary sends to a queue from now on."""
        if len(self._open) >= _OPEN_MAX:
            self._open.clear()
        self._open.add((topic, queue_id))

    def open_halves(self, topic: str, queue_id: int, suffix: bytes) -> None:
        """Take the ordinary half messages for a queue from now on; ``suffix`` are whole pairs that say where they belong."""
        if len(self._open_halves) >= _OPEN_MAX:
            self._open_halves.clear()
        self._open_halves[topic, queue_id] = suffix

    def open_batch(self, text: bytes, suffix: bytes, *, wait: bool) -> None:
        """Take batches with these properties: each message gets ``suffix``, and the sender waits for the sync or not."""
        if len(self._batches) >= 256:
            self._batches.clear()
        if len(text) <= 512:
            self._batches[text] = suffix, wait

    def close(self) -> None:
        """Take nothing: topics changed."""
        self._open.clear()
        self._open_halves.clear()

    def __len__(self) -> int:
        """How many queues are open."""
        return len(self._open)

    def read(
        self, peer: int, host: bytes, data: bytes, verifier: Verifier | None = None
    ) -> tuple[list[Frame], int, int, str | None]:  # fmt: skip
        """Read what a connection brought; ``host`` is stored as where the messages were born. What a ``verifier`` does not know
        is something else.

        Returns the frames that are something else, how many bytes all frames take, how many the next one needs in all (8 until
        its length is known), and what is wrong with the next frame, if anything.
        """
        frames, used, wanted, wrong = split_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        others: list[Frame] = []
        for frame in frames:
            serialization, start, body, end = frame
            header = completion = None
            if serialization == 0:
                if data.startswith(_SENDS_JSON, start):
                    header = send_header_json(data[start:body])
                elif data.startswith(_END_JSON, start):
                    completion = end_header_json(data[start:body])
            elif serialization == 1 and body - start > 21:
                if data.startswith(_SENDS_ROCKETMQ, start):
                    header = send_header_rocketmq(data, start, body)
                elif data.startswith(_END_ROCKETMQ, start):
                    completion = end_header_rocketmq(data, start, body)
            if header is not None:
                taken = _passes(verifier, data, frame, header[2]) and self._take_send(
                    peer, host, serialization, header, data[body:end]
                )
            elif completion is not None:
                taken = _passes(verifier, data, frame, "") and self._take_completion(peer, serialization, completion)
            else:
                taken = False
            if not taken:
                others.append(frame)
        return others, used, wanted, wrong

    def _take_completion(self, peer: int, serialization: int, completion: EndFields) -> bool:
        """Take what a producer decided; return whether it decided anything."""
        opaque, flag, group, index, place, decision, key, check = completion
        if flag & 1 or decision not in (_COMMIT, _ROLLBACK):
            return False
        caller = None if flag & 2 else (peer, opaque, serialization)
        self._completions.add(caller, peer, group, index, place, decision == _COMMIT, key, check=check)
        return True

    def _take_send(self, peer: int, host: bytes, serialization: int, header: SendHeader, body: bytes) -> bool:
        """Take a send; return whether it asks for nothing but storing in an open queue."""
        opaque, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
        if batch or flag or sys_flag & _TRANSACTION_MASK or len(body) > self._body_max:
            return self._take_unusual(peer, host, serialization, header, body)
        messages = self._groups.get((topic, queue_id, ""))
        if (messages is None and (topic, queue_id) not in self._open) or len(text) > PROPERTIES_BYTES_MAX - len(self._suffix):
            return False
        prepared = stored_properties(text, self._suffix)
        if prepared is None:
            return False
        if messages is None:
            messages = self._groups[topic, queue_id, ""] = Messages()
        properties, code, wait = prepared
        messages.drafts.append((body, properties, user_flag, sys_flag, born_ms, host, reconsume, 0, code))
        messages.senders.append((peer, opaque, serialization, DURABLE if wait else AT_ONCE, 1))
        return True

    def _take_unusual(self, peer: int, host: bytes, serialization: int, header: SendHeader, body: bytes) -> bool:
        """Take a half message, a batch, or a send that wants no answer; return whether it was taken."""
        opaque, flag, topic, queue_id, sys_flag, *_, batch = header
        if flag & 1 or len(body) > self._body_max:
            return False
        if sys_flag & _TRANSACTION_MASK:
            taken = self._half(host, header, body)
        elif (topic, queue_id) not in self._open:
            return False
        else:
            taken = self._batch(host, header, body) if batch else self._message(host, header, body)
        if taken is None:
            return False
        drafts, wait, group = taken
        messages = self._groups.get((topic, queue_id, group))
        if messages is None:
            messages = self._groups[topic, queue_id, group] = Messages()
        messages.drafts += drafts
        how = NO_ANSWER if flag & 2 else DURABLE if wait else AT_ONCE
        messages.senders.append((peer, opaque, serialization, how, len(drafts)))
        return True

    def _half(self, host: bytes, header: SendHeader, body: bytes) -> tuple[list[Draft], bool, str] | None:
        """Return a half message, whether its sender waits for the sync, and its producer group; None: it is unusual."""
        _, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
        suffix = self._open_halves.get((topic, queue_id))
        if batch or flag & 2 or suffix is None or len(text) + len(suffix) >= PROPERTIES_BYTES_MAX:
            return None
        half = half_properties(text, suffix)
        if half is None:
            return None
        properties, code, wait, group = half
        return [(body, properties, user_flag, sys_flag & ~_TRANSACTION_MASK, born_ms, host, reconsume, 0, code)], wait, group

    def _batch(self, host: bytes, header: SendHeader, body: bytes) -> tuple[list[Draft], bool, str] | None:
        """Return the same of a batch, which has no producer group."""
        _, _, _, _, sys_flag, born_ms, _, text, reconsume, _ = header
        known = self._batches.get(text)
        if known is None:
            return None
        suffix, wait = known
        drafts = batch_drafts(body, suffix, sys_flag, born_ms, host, reconsume, PROPERTIES_BYTES_MAX)
        return None if drafts is None else (drafts, wait, "")

    def _message(self, host: bytes, header: SendHeader, body: bytes) -> tuple[list[Draft], bool, str] | None:
        """Return the same of a single message, which has no producer group."""
        _, _, _, _, sys_flag, born_ms, user_flag, text, reconsume, _ = header
        prepared = stored_properties(text, self._suffix)
        if prepared is None or len(prepared[0]) > PROPERTIES_BYTES_MAX:
            return None
        properties, code, wait = prepared
        return [(body, properties, user_flag, sys_flag, born_ms, host, reconsume, 0, code)], wait, ""

    def take(self) -> list[Group]:
        """Take out what was read since the last call: a `Group` each."""
        groups, self._groups = self._groups, {}
        return [(*key, messages) for key, messages in groups.items()]

    def completions(self) -> Completions | None:
        """Take out what producers decided since the last call; None: nothing."""
        if not self._completions.rows:
            return None
        taken, self._completions = self._completions, Completions()
        return taken


def _passes(verifier: Verifier | None, data: bytes, frame: Frame, topic: str) -> bool:
    """Whether a request may be taken: nothing is verified, or its code, which is the first that it names, its fields and body are
    known to be allowed and signed."""
    if verifier is None:
        return True
    serialization, start, body, end = frame
    if serialization:
        code, fields = int.from_bytes(data[start : start + 2], "big"), fields_rocketmq(data, start, body)
    else:
        code, fields = int(data[start + 8 : data.index(b",", start)]), fields_json(data[start:body])
    return fields is not None and len(fields) <= HEADER_FIELDS_MAX and verifier.passes(code, topic, fields, data[body:end])
