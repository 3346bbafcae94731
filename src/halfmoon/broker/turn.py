"""The hot road: all sends and pulls of one turn of the loop, sorted by topic and queue, decided once a group.

A frame that is not an ordinary send or pull, and a group that may not be stored just so, is left to the plain road
(`halfmoon.broker.send`), which is also the reference: both give the same records and the same answers.
"""

from __future__ import annotations

import logging

from halfmoon.broker.acks import Sender, Stored
from halfmoon.broker.half import Halves
from halfmoon.broker.names import DEAD_PREFIX, FORBIDDEN_TO_SEND, HALF_TOPIC, OP_TOPIC, RETRY_PREFIX
from halfmoon.broker.request import refusal_of
from halfmoon.broker.send import MULTI_TAG, Sends
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.topics import Topics
from halfmoon.errors import BrokerError, MessageRefused
from halfmoon.hot import SendHeader, send_header_json, send_header_rocketmq, stored_properties
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.store import Draft, Drafts
from halfmoon.wire.flags import BORN_HOST_V6, TRANSACTION_MASK
from halfmoon.wire.peer import Frame, Peer

log = logging.getLogger("halfmoon.broker")

SENDS_JSON = (b'{"code":310,', b'{"code":320,')
SENDS_ROCKETMQ = (b"\x01\x36", b"\x01\x40")

_I32_MAX = 2**31
_TARGETS_MAX = 65_536


class Group:
    """The sends of one turn to one queue: drafts and, for those who want an answer, senders at the same places."""

    __slots__ = ("drafts", "impatient", "senders")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.senders: list[Sender | None] = []
        self.impatient: set[int] = set()  # places of those who do not wait for the sync, or for any answer


class Turn:
    """Collects the hot sends of a turn and stores them."""

    def __init__(self, settings: BrokerSettings, topics: Topics, sends: Sends, halves: Halves) -> None:
        self._settings, self._topics, self._sends, self._halves = settings, topics, sends, halves
        self._groups: dict[tuple[str, int], Group] = {}
        self._halves_ready = False
        self._batches: list[tuple[str, int, Drafts, Sender | None, bool]] = []
        self._targets: set[tuple[str, int]] = set()
        """Queues that are known to take ordinary sends, until topics change."""
        self._epoch = -1
        self._cluster_pair = sends.cluster_pair
        self._body_max = sends.message_bytes_max

    def take(self, peer: Peer, data: bytes, frames: list[Frame]) -> list[Frame]:
        """Collect the frames of one connection that are ordinary single sends to queues that take them; return the others."""
        others: list[Frame] = []
        groups, pair, body_max, host = self._groups, self._cluster_pair, self._body_max, peer.host
        v6 = BORN_HOST_V6 if len(host) > 8 else 0
        for frame in frames:
            serialization, start, body, end = frame
            header = None
            if serialization == 0:
                if data.startswith(SENDS_JSON, start):
                    header = send_header_json(data[start:body])
            elif serialization == 1 and data.startswith(SENDS_ROCKETMQ, start) and body - start > 21:
                header = send_header_rocketmq(data, start, body)
            if header is None:
                others.append(frame)
                continue
            opaque, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
            if flag & 1 or end - body > body_max or not -_I32_MAX <= opaque < _I32_MAX:
                others.append(frame)
                continue
            if sys_flag & TRANSACTION_MASK:
                if not self._take_half(peer, serialization, header, data[body:end]):
                    others.append(frame)
                continue
            if batch:
                if not self._take_batch(peer, serialization, header, data[body:end]):
                    others.append(frame)
                continue
            group = groups.get((topic, queue_id)) or self._group((topic, queue_id))
            prepared = stored_properties(text, pair)
            if group is None or prepared is None or len(text) > PROPERTIES_BYTES_MAX - len(pair):
                others.append(frame)
                continue
            properties, code, wait = prepared
            group.drafts.append((data[body:end], properties, user_flag, sys_flag | v6, born_ms, host, reconsume, 0, code))
            if flag & 2:
                group.impatient.add(len(group.senders))
                group.senders.append(None)
            else:
                if not wait:
                    group.impatient.add(len(group.senders))
                group.senders.append((peer, opaque, serialization))
        return others

    def _take_half(self, peer: Peer, serialization: int, header: SendHeader, body: bytes) -> bool:
        """Collect an ordinary half message; return whether it was one."""
        opaque, flag, topic, queue_id, sys_flag, born_ms, user_flag, text, reconsume, batch = header
        if batch or flag & 2 or self._settings.reject_transactions or not self._takes((topic, queue_id)):
            return False
        if not self._halves_ready:  # once made, these queues stay
            self._halves_ready = self._sends.ready(HALF_TOPIC, 0) and self._sends.ready(OP_TOPIC, 0)
            if not self._halves_ready:
                return False
        sender = (peer, opaque, serialization)
        return self._halves.take(sender, topic, queue_id, text, body, user_flag, sys_flag, born_ms, reconsume)

    def _take_batch(self, peer: Peer, serialization: int, header: SendHeader, body: bytes) -> bool:
        """Collect a batch that an ordinary queue takes as it is; return whether it was one."""
        opaque, flag, topic, queue_id, sys_flag, born_ms, _, text, reconsume, _ = header
        if not text.isascii() or not self._takes((topic, queue_id)):
            return False
        v6 = BORN_HOST_V6 if len(peer.host) > 8 else 0
        messages, wait = self._sends.batch(text, body, sys_flag | v6, born_ms, peer.host, reconsume)
        if messages is None:
            return False
        self._batches.append((topic, queue_id, messages, None if flag & 2 else (peer, opaque, serialization), wait))
        return True

    def _group(self, key: tuple[str, int]) -> Group | None:
        """Return a new group for a queue that takes ordinary sends, None for any other."""
        if not self._takes(key):
            return None
        group = self._groups[key] = Group()
        return group

    def _takes(self, key: tuple[str, int]) -> bool:
        if self._epoch != self._topics.epoch or len(self._targets) > _TARGETS_MAX:
            self._targets.clear()
            self._epoch = self._topics.epoch
        if key in self._targets:
            return True
        if not self._may_store(*key):  # not remembered: names that are no topics can be long, and there is no end of them
            return False
        self._targets.add(key)
        return True

    def _may_store(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        return (
            config is not None
            and 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)
            and topic not in FORBIDDEN_TO_SEND
            and not topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
            and config.topic_filter_type != MULTI_TAG
            and not (config.order and not self._settings.permission & 2)
            and self._sends.ready(topic, queue_id)
        )

    # ------------------------------------------------------------ storing

    def store(self, now: int) -> int:
        """Append everything collected, a group at a time, and have it answered; return how many messages there were."""
        if self._batches:
            batches, self._batches = self._batches, []
            return self._store_groups(now) + sum(self._store_batch(*batch, now) for batch in batches)
        return self._store_groups(now) if self._groups else 0

    def _store_groups(self, now: int) -> int:
        groups, self._groups = self._groups, {}
        count = 0
        for (topic, queue_id), group in groups.items():
            if group.drafts:
                count += len(group.drafts)
                try:
                    self._store(topic, queue_id, group, now)
                except Exception as exc:  # these sends fail, those of other queues do not feel it
                    self._sends.refuse(group.senders, refusal_of(exc, f"{len(group.drafts)} sends to queue {queue_id} of {topic}"))
        return count

    def _store_batch(self, topic: str, queue_id: int, messages: Drafts, sender: Sender | None, wait: bool, now: int) -> int:
        try:
            self._sends.check_open(now)
            appended = self._sends.append(topic, queue_id, messages, now, whole=True)
        except Exception as exc:  # the others do not feel it
            self._sends.refuse([sender], refusal_of(exc, f"a batch to queue {queue_id} of {topic}"))
        else:
            if sender is not None:
                stored = Stored(
                    [sender], queue_id, appended.queue_offset, appended.physical_offsets, appended.end_offset, batch=True
                )
                self._sends.acknowledge(stored, now, wait=wait)
        return len(messages)

    def _store(self, topic: str, queue_id: int, group: Group, now: int) -> None:
        try:
            self._sends.check_open(now)
            appended = self._sends.append(topic, queue_id, group.drafts, now)
        except MessageRefused as exc:  # one of them cannot be stored, and so none was: find out which
            if len(group.drafts) > 1:
                self._one_by_one(topic, queue_id, group, now)
            else:
                self._sends.refuse(group.senders, exc)
            return
        except BrokerError as exc:
            self._sends.refuse(group.senders, exc)
            return
        places = appended.physical_offsets
        if not group.impatient:
            stored = Stored(group.senders, queue_id, appended.queue_offset, places, appended.end_offset)  # type: ignore[arg-type]
            self._sends.acknowledge(stored, now, wait=True)
            return
        for index, sender in enumerate(group.senders):
            if sender is not None:
                one = Stored([sender], queue_id, appended.queue_offset + index, places[index : index + 1], appended.end_offset)
                self._sends.acknowledge(one, now, wait=index not in group.impatient)

    def _one_by_one(self, topic: str, queue_id: int, group: Group, now: int) -> None:
        for index, (sender, draft) in enumerate(zip(group.senders, group.drafts)):
            one = Group()
            one.drafts, one.senders = [draft], [sender]
            one.impatient = {0} if index in group.impatient else set()
            self._store(topic, queue_id, one, now)
