"""`Reader`: the bytes that connections brought, read into `Messages` a queue. Decides nothing: it takes what is open.

A queue is *open* once a send to it passed the gate: the next ones that ask for nothing but storing are read at once. Everything
else is given back as frames, for the general decoder.
"""

from __future__ import annotations

from halfmoon.columns.batch import batch_drafts
from halfmoon.columns.completions import Completions
from halfmoon.columns.frames import Frame, cut
from halfmoon.columns.headers import (
    EndFields,
    SendHeader,
    end_header_json,
    end_header_rocketmq,
    send_header_json,
    send_header_rocketmq,
)
from halfmoon.columns.messages import AT_ONCE, DURABLE, NO_ANSWER, Group, Messages
from halfmoon.columns.properties import half_properties, stored_properties
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, PROPERTIES_BYTES_MAX

_SENDS_JSON = (b'{"code":310,', b'{"code":320,')
_SENDS_ROCKETMQ = (b"\x01\x36", b"\x01\x40")
_END_JSON, _END_ROCKETMQ = b'{"code":37,', b"\0\x25"
_TRANSACTION_MASK, _COMMIT, _ROLLBACK = 0xC, 8, 12
_OPEN_MAX = 65_536
"""Queues that are open at most; beyond them all are closed, and open again as they are used."""


class Reader:
    """The columns of a turn. ``cluster`` is the pair that each stored message gets, ``body_max`` the longest body."""

    def __init__(self, cluster: bytes, body_max: int) -> None:
        self._cluster, self._body_max = cluster, body_max
        self._open: set[tuple[str, int]] = set()
        self._open_halves: dict[tuple[str, int], bytes] = {}
        self._batches: dict[bytes, tuple[bytes, bool]] = {}
        self._groups: dict[tuple[str, int, str], Messages] = {}
        self._completions = Completions()

    def open(self, topic: str, queue_id: int) -> None:
        """Take the ordinary sends to a queue from now on."""
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

    def read(self, peer: int, host: bytes, data: bytes) -> tuple[list[Frame], int, int, str | None]:
        """Read what a connection brought; ``host`` is stored as where the messages were born.

        Returns the frames that are something else, how many bytes all frames take, how many the next one needs in all (8 until
        its length is known), and what is wrong with the next frame, if anything.
        """
        frames, used, wanted, wrong = cut(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        others: list[Frame] = []
        groups, opened, cluster, body_max = self._groups, self._open, self._cluster, self._body_max
        properties_max = PROPERTIES_BYTES_MAX - len(cluster)
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
            if header is None:
                if completion is None or not self._take_completion(peer, serialization, completion):
                    others.append(frame)
                continue
            opaque, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
            if batch or sys_flag & _TRANSACTION_MASK or flag or end - body > body_max:
                if not self._take(peer, host, serialization, header, data[body:end]):
                    others.append(frame)
                continue
            messages = groups.get((topic, queue_id, ""))
            if (messages is None and (topic, queue_id) not in opened) or len(text) > properties_max:
                others.append(frame)
                continue
            prepared = stored_properties(text, cluster)
            if prepared is None:
                others.append(frame)
                continue
            if messages is None:
                messages = groups[topic, queue_id, ""] = Messages()
            properties, code, wait = prepared
            messages.drafts.append((data[body:end], properties, user_flag, sys_flag, born_ms, host, reconsume, 0, code))
            messages.senders.append((peer, opaque, serialization, DURABLE if wait else AT_ONCE, 1))
        return others, used, wanted, wrong

    def _take_completion(self, peer: int, serialization: int, completion: EndFields) -> bool:
        """Take what a producer decided; return whether it decided anything."""
        opaque, flag, group, index, place, decision, key, check = completion
        if flag & 1 or decision not in (_COMMIT, _ROLLBACK):
            return False
        caller = None if flag & 2 else (peer, opaque, serialization)
        self._completions.add(caller, peer, group, index, place, decision == _COMMIT, key, check=check)
        return True

    def _take(self, peer: int, host: bytes, serialization: int, header: SendHeader, body: bytes) -> bool:
        """Take a batch, a half message, or a send that wants no answer; return whether it was an ordinary one."""
        opaque, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
        if flag & 1 or len(body) > self._body_max:
            return False
        if sys_flag & _TRANSACTION_MASK:
            suffix = self._open_halves.get((topic, queue_id))
            if batch or flag & 2 or suffix is None or len(text) + len(suffix) >= PROPERTIES_BYTES_MAX:
                return False
            half = half_properties(text, suffix)
            if half is None:
                return False
            properties, code, wait, group = half
            drafts = [(body, properties, user_flag, sys_flag & ~_TRANSACTION_MASK, born_ms, host, reconsume, 0, code)]
        elif (topic, queue_id) not in self._open:
            return False
        elif batch:
            known, group = self._batches.get(text), ""
            if known is None:
                return False
            suffix, wait = known
            batch_items = batch_drafts(body, suffix, sys_flag, born_ms, host, reconsume, PROPERTIES_BYTES_MAX)
            if batch_items is None:
                return False
            drafts = batch_items
        else:
            prepared, group = stored_properties(text, self._cluster), ""
            if prepared is None or len(prepared[0]) > PROPERTIES_BYTES_MAX:
                return False
            properties, code, wait = prepared
            drafts = [(body, properties, user_flag, sys_flag, born_ms, host, reconsume, 0, code)]
        messages = self._groups.get((topic, queue_id, group))
        if messages is None:
            messages = self._groups[topic, queue_id, group] = Messages()
        messages.drafts += drafts
        how = NO_ANSWER if flag & 2 else DURABLE if wait else AT_ONCE
        messages.senders.append((peer, opaque, serialization, how, len(drafts)))
        return True

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
