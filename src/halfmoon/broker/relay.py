"""Requests that the broker passes on to connected clients and whose answers go back to who asked: 307, 309, and 221 for 223.

Keeps what is under way, at most `UNDER_WAY_MAX`, each with a deadline; never waits itself. Follows AdminBrokerProcessor and
Broker2Client (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from halfmoon.broker.consumers.clients import Member
from halfmoon.broker.context import Context
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.errors import BrokerError, CorruptRecord, ResponseCode, SystemBusy, UsageError
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

UNDER_WAY_MAX = 10_000
"""Relayed requests under way, so that clients that never answer cannot fill the memory."""

TIMEOUT_MS = 10_000
"""How long a client may take. Follows AdminBrokerProcessor.callConsumer."""
STATUS_TIMEOUT_MS = 3_000
"""How long the members may take that are asked side by side for their offsets.

Differs: the original asks one after the other, five seconds each, which is as long as who asks waits in all.
"""

Answered = Callable[[Reply], None]


class _UnderWay(msgspec.Struct, eq=False):
    answered: Answered
    peer: int
    asker: int
    timeout_ms: int


class Relay:
    """Requests under way to clients."""

    def __init__(self, context: Context) -> None:
        self._clients, self._peers, self._answer = context.clients, context.peers, context.pending_replies.reply_now
        self._record, self._broker_name = context.store.record, context.settings.name
        self._under_way: dict[int, _UnderWay] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._opaque = 0

    def handlers(self) -> Handlers:
        """Return what answers which request."""
        return {
            GetConsumerRunningInfo: self.running_info,
            ConsumeMessageDirectly: self.consume_directly,
            InvokeBrokerToGetConsumerStatus: self.status,
        }

    # ------------------------------------------------------------ one client

    def running_info(self, request: Request) -> None:
        """Pass 307 on to the client it names; the client's body goes back unchanged."""
        header = request.header(GetConsumerRunningInfo)
        self._ask_named(request, header.consumer_group, header.client_id, header)

    def consume_directly(self, request: Request) -> None:
        """Pass 309 on to the client it names, with the message that it names by the broker's id."""
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
            SystemBusy: too many are under way.
        """
        member = self._clients.member(group, client_id)
        if member is None:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> not online")
        if member.version < VERSION_V3_1_8:
            raise BrokerError(f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it")
        self._check_room(1)
        self._ask(request, member, header, body, TIMEOUT_MS, lambda reply: self._answer(request, reply))

    # ------------------------------------------------------------ all members

    def status(self, request: Request) -> None:
        """Ask the members of a group (221), or the one that 223 names, for their offsets; answer what came in time by client id.

        Who does not answer, or not well, is left out, as in the original. Raises BrokerError when nobody is online.
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
        found: dict[str, dict[MessageQueue, int]] = {}
        if not asked:
            self._answer(request, _status(found))
            return
        self._check_room(len(asked))
        question = GetConsumerStatusFromClient(topic=header.topic, group=header.group, client_addr=header.client_addr)
        left = len(asked)

        def answered(client_id: str, reply: Reply) -> None:
            nonlocal left
            left -= 1
            offsets = _offsets(reply)
            if offsets is not None:
                found[client_id] = offsets
            if not left:
                self._answer(request, _status(found))

        for member in asked:
            name = member.client_id
            self._ask(request, member, question, b"", STATUS_TIMEOUT_MS, lambda reply, name=name: answered(name, reply))  # type: ignore[misc]

    # ------------------------------------------------------------ under way

    def _check_room(self, count: int) -> None:
        if len(self._under_way) + count > UNDER_WAY_MAX:
            raise SystemBusy(f"{UNDER_WAY_MAX} requests to clients are under way")

    def _ask(self, request: Request, member: Member, header: Header, body: bytes, timeout_ms: int, answered: Answered) -> None:
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command = request_command(header, body, opaque=self._opaque)
        command.language = int(Language.JAVA)
        request.command.fields, request.command.body = {}, b""  # what is kept for seconds shall be small
        self._under_way[self._opaque] = _UnderWay(answered, member.peer.number, request.peer.number, timeout_ms)
        heappush(self._deadlines, (request.now + timeout_ms, self._opaque))
        self._peers.answer(member.peer, encode(command))

    def answered(self, peer: int, command: Command) -> None:
        """A client answered: pass it back. An answer that nobody waits for, or of another connection, is ignored."""
        waiting = self._under_way.get(command.opaque)
        if waiting is not None and waiting.peer == peer:
            del self._under_way[command.opaque]
            waiting.answered(Reply(command.code, command.remark, None, command.body))

    def lost(self, peer: int) -> None:
        """A connection is gone: who asked for it hears so at once, what it asked for is forgotten."""
        for opaque, waiting in list(self._under_way.items()):
            if waiting.asker == peer:
                del self._under_way[opaque]
            elif waiting.peer == peer:
                del self._under_way[opaque]
                waiting.answered(Reply(int(ResponseCode.SYSTEM_ERROR), "the client's connection was lost"))

    def due(self) -> int | None:
        """When the first client has taken too long."""
        while self._deadlines and self._deadlines[0][1] not in self._under_way:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def stepped(self, by_ms: int) -> None:
        """The clock was set: clients have as long as before."""
        self._deadlines = [(deadline + by_ms, opaque) for deadline, opaque in self._deadlines]

    def tick(self, now: int) -> None:
        """Give up clients that took too long (207)."""
        while (due := self.due()) is not None and due <= now:
            waiting = self._under_way.pop(heappop(self._deadlines)[1])
            why = f"no answer from the client in {waiting.timeout_ms} ms"
            waiting.answered(Reply(int(ResponseCode.CONSUME_MSG_TIMEOUT), why))


def _offsets(reply: Reply) -> dict[MessageQueue, int] | None:
    if reply.code != 0 or not reply.body:
        return None
    try:
        return dict(from_json(ConsumerStatus, reply.body, bounds=REQUEST).message_queue_table)
    except BadBody:
        return None


def _status(found: dict[str, dict[MessageQueue, int]]) -> Reply:
    return Reply(body=to_json(ConsumerStatus(consumer_table=found)))
