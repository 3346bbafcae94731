"""Assignment of queues by the broker, for consumers of 5.x with ``clientRebalance=false``; and how a group reads a topic.

The queues of a topic lie at several brokers, so its route is asked of a name server, and kept for `ROUTE_MS`. Modes are saved as
``config/messageRequestMode.json``.
Follows QueryAssignmentProcessor, TopicRouteInfoManager and MessageRequestModeManager (RocketMQ 5.3.3).
Differs: the strategy CONSISTENT_HASH is there too; the mode POP is refused, as no broker of ours serves it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from halfmoon.allocation import STRATEGIES
from halfmoon.broker.consumers.groups import PATH as GROUPS
from halfmoon.broker.context import Context
from halfmoon.broker.names import RETRY_PREFIX
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.service import Service
from halfmoon.effects import Call, Op
from halfmoon.errors import (
    BrokerError,
    GroupNotFound,
    HalfmoonError,
    NoPermission,
    RequestNotSupported,
    SystemBusy,
    TopicNotFound,
    code_text,
)
from halfmoon.instant import Steady
from halfmoon.model import MessageModel, MessageQueue
from halfmoon.wire.bodies import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MessageRequestMode,
    QueueAssignment,
    RequestModeTable,
    TopicRouteData,
    from_json,
    to_json,
)
from halfmoon.wire.codes import Perm
from halfmoon.wire.headers.client import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode
from halfmoon.wire.headers.route import GetRouteinfoByTopic

log = logging.getLogger("halfmoon.broker")

PATH = "config/messageRequestMode.json"

MODES_MAX = 10_000
"""Modes of groups in topics, so that requests cannot fill the memory."""
ROUTE_MS = 30_000
"""How long a topic's route is used. Follows loadBalancePollNameServerInterval."""
ROUTE_TIMEOUT_MS = 3_000
ROUTES_MAX = 1_000
"""Topics whose routes are kept; the oldest goes."""
WAITING_MAX = 10_000
"""Requests that wait for a route."""


class Assignment(Service):
    """The service that answers 400, 401 and 402."""

    modes_max = MODES_MAX
    routes_max = ROUTES_MAX
    waiting_max = WAITING_MAX

    def __init__(self, context: Context, name_servers: Iterable[str], start: Callable[[Op[None], str], None]) -> None:
        """``start(operation, name)`` runs an operation beside the broker."""
        self._settings, self._topics, self._groups, self._clients = (
            context.settings,
            context.topics,
            context.groups,
            context.clients,
        )
        self._answer, self._name_servers, self._start = context.pending_replies.reply_now, list(name_servers), start
        self._routes: dict[str, tuple[Steady, list[MessageQueue]]] = {}
        """When a route was asked for, and its readable queues."""
        self._waiting: dict[str, list[tuple[Request, AssignmentQuery]]] = {}
        saved = context.tables.load(PATH, lambda data: from_json(RequestModeTable, data, bounds=None))
        self._modes = {topic: dict(groups) for topic, groups in (saved or RequestModeTable()).message_request_mode_map.items()}
        self._changed = context.tables.add(PATH, lambda: to_json(self._table()))

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            QueryAssignment: self.query,
            SetMessageRequestMode: self.set_mode,
            GetAllMessageRequestMode: self.modes,
        }

    # ------------------------------------------------------------ modes

    def _table(self) -> RequestModeTable:
        return RequestModeTable(message_request_mode_map=self._modes)

    def modes(self, _request: Request) -> Reply:
        """Return all modes that were set (402)."""
        return Reply(body=to_json(self._table()))

    @saves(GROUPS, PATH)
    def set_mode(self, request: Request) -> Reply:
        """Set how a group reads a topic (401); the group is created where the broker creates groups by itself.

        Raises NoPermission for a retry topic, TopicNotFound, GroupNotFound.
        """
        wanted = request.body(GroupRequestMode)
        topic, group = wanted.topic, wanted.consumer_group
        if topic.startswith(RETRY_PREFIX):
            raise NoPermission("retry topic is not allowed to set mode")
        if self._topics.get(topic) is None:
            raise TopicNotFound(f"topic[{topic}] not exist")
        if wanted.mode is not MessageRequestMode.PULL:
            raise RequestNotSupported("the mode is PULL: consumers pull, nobody pops")
        groups = self._modes.get(topic, {})
        if group not in groups and sum(map(len, self._modes.values())) >= self.modes_max:
            raise SystemBusy(f"the broker keeps {self.modes_max} modes of groups, its bound")
        try:
            self._groups.existing(group, request.now.date)
        except GroupNotFound:
            raise GroupNotFound("subscription group does not exist") from None
        self._modes[topic] = {**groups, group: wanted}
        self._changed()
        return Reply()

    def topic_deleted(self, topic: str) -> None:
        """Forget the modes of a topic that was deleted."""
        self._forget(topic=topic)

    def group_deleted(self, group: str) -> None:
        """Forget the modes of a group that was deleted."""
        self._forget(group=group)

    def _forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        left = {
            name: {member: mode for member, mode in groups.items() if member != group}
            for name, groups in self._modes.items()
            if name != topic
        }
        left = {name: groups for name, groups in left.items() if groups}
        if left != self._modes:
            self._modes = left
            self._changed()

    # ------------------------------------------------------------ assignment

    def query(self, request: Request) -> Reply | None:
        """Return which queues of a topic a member of a group is to read (400), now or once the topic's route is known.

        An empty list: none. No list at all: it keeps what it has, for the topic, the group or the strategy is not known.
        """
        query = request.body(AssignmentQuery)
        if query.message_model is None:
            raise BrokerError("messageModel is CLUSTERING or BROADCASTING")
        if not self._name_servers:
            return self._reply(query, self._own_queues(query.topic))
        known = self._routes.get(query.topic)
        if known is not None and known[0] + ROUTE_MS > request.now.steady:
            return self._reply(query, known[1])
        if sum(map(len, self._waiting.values())) >= self.waiting_max:
            raise SystemBusy(f"{self.waiting_max} requests wait for routes")
        request.command.fields, request.command.body = {}, b""  # it is kept for seconds: free what is not needed any more
        waiting = self._waiting.setdefault(query.topic, [])
        waiting.append((request, query))
        if len(waiting) == 1:
            self._start(self._look_up(query.topic, request.now.steady), "route for an assignment")
        return None

    def _look_up(self, topic: str, now: Steady) -> Op[None]:
        """Ask for a topic's route and answer the requests that wait for it. If no name server answers, an older route will do."""
        known = self._routes.pop(topic, None)
        queues = known[1] if known is not None else None
        try:
            queues = yield from self._route(topic)
        except HalfmoonError as exc:
            log.warning("no route for an assignment: topic=%s error=%s", topic, exc)
        if queues is not None:
            self._routes[topic] = now, queues
        if len(self._routes) > self.routes_max:
            del self._routes[next(iter(self._routes))]
        for request, query in self._waiting.pop(topic):
            self._answer(request, self._reply(query, queues))

    def _route(self, topic: str) -> Op[list[MessageQueue] | None]:
        """Return the queues that can be read, from the first name server that answers; None: there is no such topic."""
        error: HalfmoonError | None = None
        for address in self._name_servers:
            try:
                reply = yield Call(address, GetRouteinfoByTopic(topic=topic, accept_standard_json_only=True), b"", ROUTE_TIMEOUT_MS)
                if reply.code == TopicNotFound.code:
                    return None
                if reply.code == 0:
                    return _readable(topic, from_json(TopicRouteData, reply.body))
                error = BrokerError(reply.remark or f"code {code_text(reply.code)}")
            except HalfmoonError as exc:
                error = exc
        assert error is not None, "there is a name server"
        raise error

    def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.get(topic)
        if config is None or not config.perm & Perm.READ:
            return None
        return [MessageQueue(topic, self._settings.name, queue_id) for queue_id in range(config.read_queue_nums)]

    def _reply(self, query: AssignmentQuery, queues: list[MessageQueue] | None) -> Reply:
        assigned = self._allocate(query, queues) if queues is not None else None
        if assigned is None:
            return Reply(body=to_json(Assignments()))
        rows = [QueueAssignment(message_queue=queue, mode=MessageRequestMode.PULL) for queue in assigned]
        return Reply(body=to_json(Assignments(message_queue_assignments=rows)))

    def _allocate(self, query: AssignmentQuery, queues: list[MessageQueue]) -> list[MessageQueue] | None:
        if query.message_model is MessageModel.BROADCASTING:
            return queues
        info, strategy = self._clients.group(query.consumer_group), STRATEGIES.get(query.strategy_name or "")
        if info is None or strategy is None:
            return None
        return strategy(query.client_id, queues, info.client_ids())


def _readable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues of a route that can be read, sorted as strategies want them."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & Perm.READ
        for queue_id in range(data.read_queue_nums)
    )
