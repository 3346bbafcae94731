"""Requests that the broker relays to connected clients, and whose replies it returns to the caller: 307, 309, and 221 for 223.

Services ask a client by `Relay.ask`. Keeps the requests in progress, at most `IN_PROGRESS_MAX`, each with a deadline; never waits
itself. Follows AdminBrokerProcessor and Broker2Client (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from halfmoon.broker.consumers.clients import GroupMember
from halfmoon.broker.context import Context
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.errors import BrokerError, CorruptRecord, ResponseCode, SystemBusy, UsageError
from halfmoon.instant import Instant, Steady
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import BadBody, ConsumerStatus, from_json, to_json
from halfmoon.wire.codes import VERSION_V3_0_7, VERSION_V3_1_8, Language
from halfmoon.wire.command import Command, encode, request_command
from halfmoon.wire.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    InvokeBrokerToGetConsumerStatus,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.json import REQUEST
from halfmoon.wire.table import Header

IN_PROGRESS_MAX = 10_000
"""Relayed requests in progress, so that clients that never answer cannot fill the memory."""

BYTES_MAX = 64 * 1024 * 1024
"""Bodies and headers of requests that are kept until a client has answered, for the same reason: replies may have megabytes."""

TIMEOUT_MS = 10_000
"""How long a client may take. Follows AdminBrokerProcessor.callConsumer."""
STATUS_TIMEOUT_MS = 3_000
"""How long members may take that are asked for their offsets at the same time.

Differs: the original asks one after the other, five seconds each, which is all the time that the caller waits.
"""

Answered = Callable[[Reply], None]


class _InProgress(msgspec.Struct, eq=False):
    answered: Answered
    peer: int
    asker: int
    timeout_ms: int
    size_bytes: int
    outlives: bool
    """Whether ``answered`` is called also where the connection of who asked is lost."""


class Relay(Service):
    """The service that answers 223, 307 and 309."""

    bytes_max = BYTES_MAX
    in_progress_max = IN_PROGRESS_MAX

    def __init__(self, context: Context) -> None:
        self._clients, self._peers, self._answer = context.clients, context.peers, context.pending_replies.reply_now
        self._record, self._broker_name = context.store.record, context.settings.name
        self._in_progress: dict[int, _InProgress] = {}
        self._deadlines: list[tuple[Steady, int]] = []
        self._opaque = self._bytes = 0

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            GetConsumerRunningInfo: self.running_info,
            ConsumeMessageDirectly: self.consume_directly,
            InvokeBrokerToGetConsumerStatus: self.status,
        }

    # ------------------------------------------------------------ one client

    def running_info(self, request: Request) -> None:
        """Relay 307 to the client it names; the client's body is returned unchanged."""
        header = request.header(GetConsumerRunningInfo)
        self._ask_named(request, header.consumer_group, header.client_id, header)

    def consume_directly(self, request: Request) -> None:
        """Relay 309 to the client it names, with the message of the broker's id in it."""
        header = request.header(ConsumeMessageDirectly)
        try:
            offset = parse_offset_msg_id(header.msg_id or "").physical_offset
            record = self._record(offset) if offset >= 0 else None
        except (UsageError, CorruptRecord) as exc:
            raise BrokerError(f"can not find message by the id {header.msg_id!r}: {exc}") from exc
        if record is None:
            raise BrokerError(f"can not find message by the id {header.msg_id!r}")
        header.broker_name = self._broker_name
        self._ask_named(request, header.consumer_group, header.client_id or "", header, bytes(record))

    def _ask_named(self, request: Request, group: str, client_id: str, header: Header, body: bytes = b"") -> None:
        """Send a request to a member of a group on behalf of ``request``.

        Raises:
            BrokerError: the client is not connected.
            SystemBusy: too many are in progress.
        """
        member = self._clients.member(group, client_id)
        if member is None:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> not online")
        if member.version < VERSION_V3_1_8:
            raise BrokerError(f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it")
        request.command.fields, request.command.body = {}, b""  # it is kept for seconds: free what is not needed any more
        self.ask(request, member, header, body, lambda reply: self._answer(request, reply))

    def ask(
        self, request: Request, member: GroupMember, header: Header, body: bytes, answered: Answered, *, outlives: bool = False
    ) -> None:  # fmt: skip
        """Ask a client for the sake of ``request``; ``answered`` gets its reply, or that it took longer than `TIMEOUT_MS`, or left.

        So it does when the connection of ``request`` is lost first and the request ``outlives`` that; else it is forgotten then.
        Raises SystemBusy when too many are in progress.
        """
        self._check_room(1, _size(request))
        self._ask(request, member, header, body, TIMEOUT_MS, answered, outlives=outlives)

    # ------------------------------------------------------------ all members

    def status(self, request: Request) -> None:
        """Ask the members of a group (221), or the one that 223 names, for their offsets; answer by client id what came in time.

        Members without a valid reply are left out, as in the original. Raises BrokerError when no member is online.
        """
        header = request.header(InvokeBrokerToGetConsumerStatus)
        info = self._clients.group(header.group)
        members = list(info.members.values()) if info is not None else []
        if not members:
            raise BrokerError(f"No Any Consumer online in the consumer group: [{header.group}]")
        for member in members:
            if member.version < VERSION_V3_0_7:
                raise BrokerError(f"the client does not support this feature. version={member.version}")
        wanted = (header.client_addr or "").strip()
        asked = [member for member in members if not wanted or member.client_id == wanted]
        by_client: dict[str, dict[MessageQueue, int]] = {}
        if not asked:
            self._answer(request, _status(by_client))
            return
        self._check_room(len(asked))
        question = GetConsumerStatusFromClient(topic=header.topic, group=header.group, client_addr=header.client_addr)
        left = len(asked)

        def answered(client_id: str, reply: Reply) -> None:
            nonlocal left
            left -= 1
            offsets = _offsets(reply)
            if offsets is not None:
                by_client[client_id] = offsets
            if not left:
                self._answer(request, _status(by_client))

        for member in asked:
            name = member.client_id
            self._ask(request, member, question, b"", STATUS_TIMEOUT_MS, lambda reply, name=name: answered(name, reply))  # type: ignore[misc]

    # ------------------------------------------------------------ in progress

    def _check_room(self, count: int, size_bytes: int = 0) -> None:
        if len(self._in_progress) + count > self.in_progress_max:
            raise SystemBusy(f"{self.in_progress_max} requests to clients are in progress")
        if self._bytes + size_bytes > self.bytes_max:
            raise SystemBusy(f"requests to clients are in progress that have {self._bytes} bytes")

    def _ask(
        self, request: Request, member: GroupMember, header: Header, body: bytes, timeout_ms: int, answered: Answered,
        *, outlives: bool = False,
    ) -> None:  # fmt: skip
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command = request_command(header, body, opaque=self._opaque)
        command.language = int(Language.JAVA)
        size_bytes = _size(request)
        self._bytes += size_bytes
        self._in_progress[self._opaque] = _InProgress(
            answered, member.peer.number, request.peer.number, timeout_ms, size_bytes, outlives
        )
        heappush(self._deadlines, (request.now.steady + timeout_ms, self._opaque))
        self._peers.answer(member.peer, encode(command))

    def answered(self, peer: int, command: Command) -> None:
        """Return a client's reply to the caller. One that nobody waits for, or from another connection, is ignored."""
        waiting = self._in_progress.get(command.opaque)
        if waiting is not None and waiting.peer == peer:
            self._take(command.opaque).answered(Reply(command.code, command.remark, None, command.body))

    def _take(self, opaque: int) -> _InProgress:
        waiting = self._in_progress.pop(opaque)
        self._bytes -= waiting.size_bytes
        return waiting

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Answer the callers of a lost connection and forget its own requests, except those that outlive it."""
        for opaque, waiting in list(self._in_progress.items()):
            if waiting.asker == peer and not waiting.outlives:
                self._take(opaque)
            elif peer in (waiting.asker, waiting.peer):
                self._take(opaque).answered(Reply(int(ResponseCode.SYSTEM_ERROR), "the client's connection was lost"))

    def due(self, now: Instant) -> Steady | None:
        """When the first client has taken too long."""
        while self._deadlines and self._deadlines[0][1] not in self._in_progress:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def tick(self, now: Instant) -> None:
        """Time out clients that took too long (207)."""
        while (due := self.due(now)) is not None and due <= now.steady:
            waiting = self._take(heappop(self._deadlines)[1])
            why = f"no answer from the client in {waiting.timeout_ms} ms"
            waiting.answered(Reply(int(ResponseCode.CONSUME_MSG_TIMEOUT), why))


def _size(request: Request) -> int:
    """Return the bytes that are kept of a request: its body and header, the properties of a reply among the latter."""
    return len(request.command.body) + sum(map(len, request.command.fields.values()))


def _offsets(reply: Reply) -> dict[MessageQueue, int] | None:
    if reply.code != 0 or not reply.body:
        return None
    try:
        return dict(from_json(ConsumerStatus, reply.body, bounds=REQUEST).message_queue_table)
    except BadBody:
        return None


def _status(by_client: dict[str, dict[MessageQueue, int]]) -> Reply:
    return Reply(body=to_json(ConsumerStatus(consumer_table=by_client)))
