"""A member of a consumer group: its subscriptions, its queues, where it begins them and how far it got.

Holds no messages: `client.core.consume.push_consumer` and `client.core.consume.pull_consumer` say what is done with a queue that
was gained.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from halfmoon import sql92
from halfmoon.allocation import Strategy, strategy
from halfmoon.client.core.ask import ask, call
from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.pull import max_offset, offset_at
from halfmoon.client.core.consume.window import Window
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import RETRY_PREFIX, check_topic, unwrap, wrap
from halfmoon.client.core.trouble_log import LastingFailure
from halfmoon.client.settings import ConsumerSettings
from halfmoon.effects import Op, Signal, now, sleep, spawn, steady, wait
from halfmoon.errors import ConnectFailed, HalfmoonError, NetworkError, NoRoute, TopicRecreated, UsageError
from halfmoon.logs import log_failure
from halfmoon.model import ConsumeFrom, ConsumeType, MessageModel, MessageQueue, Subscription, subscription
from halfmoon.shown.names import queue_name
from halfmoon.wire.bodies import (
    CheckClientBody,
    ConsumeDirectlyResult,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumerRunningInfo,
    SubscriptionData,
    from_json,
    to_json,
)
from halfmoon.wire.headers.client import CheckClientConfig, GetConsumerListByGroup

BLOCKED_MS = 10_000
"""After this the log says that a message blocks its ordered queue, and again with longer and longer pauses."""

RAISED_MAX = 16
"""Errors of one message that are told apart by their class and place; further ones are taken for known."""

AGAIN_MS = 250
"""A round that did not come out even (no route, no offset) is repeated after this, then after twice as long, and so on.

Differs: the original waits one second, or twenty; a topic that is being made is there much sooner.
"""

AWAY_MS_MAX = 2_000
"""Longest pause between two such rounds while the master of a broker is away: another member of the broker may take over."""

log = logging.getLogger("halfmoon.client")


class _NotHeard(HalfmoonError):
    """The broker has not received a heartbeat of ours yet, as after any start."""


class HeadFailure:
    """Failure of the message that holds an ordered queue: its offset, calls of the listener, date of the first, reason of the last.

    Calls are counted by this member, since it has the queue. ``reminded``: the log says that the queue is blocked.
    """

    def __init__(self, offset: int, since_ms: int, at: int) -> None:
        self.offset, self.since_ms, self.reason = offset, since_ms, ""
        self.reminded = False
        self._lasting = LastingFailure(at, BLOCKED_MS)

    @property
    def tries(self) -> int:
        """How often the listener did not consume it."""
        return self._lasting.count

    def again(self, reason: str, at: int) -> bool:
        """Note that the listener did not consume it, and return whether the log is to say that it blocks the queue."""
        self.reason = reason
        due = self._lasting.is_due(at)
        self.reminded |= due
        return due


class HeldQueue:
    """A queue that is assigned to us. ``handle`` stops its pulling; ``next_offset`` is where the next pull begins.

    Of a pull consumer: ``handed`` is the offset behind what its application was given, ``consumed`` the one behind what that has
    confirmed since, which is all that may be committed; -1 for nothing yet.
    """

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.window = Window(queue)
        self.next_offset = next_offset
        self.broker_id = 0
        self.handed = self.consumed = -1
        self.handle: Any = None
        self.failure: HeadFailure | None = None
        self._raised_at, self._raised = -1, set[object]()

    def raises_anew(self, offset: int, error: Exception) -> bool:
        """Note what the listener raised for the message at an offset; return whether it has not raised that there for it before."""
        if offset != self._raised_at:
            self._raised_at, self._raised = offset, set()
        link = error.__traceback__
        while link is not None and link.tb_next is not None:
            link = link.tb_next
        place = None if link is None else (link.tb_frame.f_code, link.tb_lineno)
        known = len(self._raised)
        if known < RAISED_MAX:
            self._raised.add((type(error), place))
        return len(self._raised) > known


class GroupMember:
    """Base of push and pull consumers. Topics and groups have their names on the wire here."""

    consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        settings: ConsumerSettings,
        instance: Instance,
        offsets: RemoteOffsets | LocalOffsets,
        allocate: Strategy | None = None,
    ) -> None:
        self.settings = settings
        self.instance = instance
        self.routes = instance.routes
        self.offsets = offsets
        self.group = wrap(settings.group, settings.namespace)
        self.subscriptions: dict[str, Subscription] = {}
        self.held: dict[MessageQueue, HeldQueue] = {}
        self.allocate = allocate or strategy(settings.allocation)
        self.begun_ms = 0
        self.begun_steady = 0
        self.running = False
        self._recreated: dict[tuple[str, str], int] = {}  # by topic and broker: the birth of the old topic, once it was logged
        self.missing_topics: set[str] = set()
        """Subscribed topics that do not exist, as name servers say."""
        self._is_master_away = False  # as the last round found
        self._rebalance = Signal()
        instance.member = self

    @property
    def clustering(self) -> bool:
        """Whether the members share the messages."""
        return self.settings.model is MessageModel.CLUSTERING

    # ------------------------------------------------------------ subscriptions

    def subscribe(
        self, topic: str, expression: str | None = "*", expression_type: str = "TAG", *, sql: str | None = None, version: int = 0
    ) -> None:
        """Subscribe to a topic (the user's name). Takes effect at the next rebalance, which `group_changed` starts at once."""
        check_topic(topic)
        name = wrap(topic, self.settings.namespace)
        wanted = subscription(name, expression, expression_type, sql=sql, version=version)
        warn_of_constants(wanted)
        if name not in self.subscriptions:
            self.routes.register(name)
        self.subscriptions[name] = wanted
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        name = wrap(topic, self.settings.namespace)
        self.missing_topics.discard(name)
        if self.subscriptions.pop(name, None) is not None:
            self.routes.unregister(name)
            self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        if self.running:
            self.instance.beat_soon()
            self.group_changed()

    # ------------------------------------------------------------ life

    def start(self) -> Op[None]:
        """Load offsets, find routes, register with the brokers: all before the first pull, or they refuse it.

        Raises BrokerError when a broker cannot filter as a subscription asks (a broken SQL92 expression, or SQL92 switched off).
        """
        self.begun_ms, self.begun_steady = (yield from now()), (yield from steady())
        for name, wanted in self.subscriptions.items():
            self.subscriptions[name] = _versioned(wanted, self.begun_ms)
        yield from self.offsets.load()
        for topic in self.topics():
            try:
                yield from self.routes.read_queues(topic)
            except NoRoute as exc:
                yield from self._no_route(topic, exc)
        yield from self._check_filters()
        yield from self.instance.beat()
        self.running = True

    def is_registered(self) -> bool:
        """Whether each broker of our topics knows us as a member of the group. Topics that do not exist yet have none."""
        topics = [topic for topic in self.topics() if not topic.startswith(RETRY_PREFIX) and topic not in self.missing_topics]
        return all(self.routes.known(topic) is not None for topic in topics) and self.instance.is_registered()

    def filters(self) -> list[Subscription]:
        """Return the subscription of each topic."""
        return list(self.subscriptions.values())

    def _check_filters(self) -> Op[None]:
        for wanted in self.filters():
            if wanted.expression_type != "TAG":
                yield from self._check_filter(wanted)

    def _check_filter(self, wanted: Subscription) -> Op[None]:
        """Ask a broker of the topic to check an expression. Follows MQClientInstance.checkClientInBroker (RocketMQ 4.9.8)."""
        address = self.routes.any_broker(wanted.topic)
        if address is None:
            return
        body = CheckClientBody(self.instance.client_id, self.group, SubscriptionData.of(wanted))
        try:
            yield from ask(address, CheckClientConfig(), to_json(body), self.settings.request_timeout_ms)
        except NetworkError as exc:
            log.info("expression not checked: topic=%s reason=%s", wanted.topic, exc)

    def background_work(self) -> list[Op[None]]:
        """Return the operations that run beside the work until they are cancelled."""
        return [*self.instance.background_work(), self._keep_sharing(), self._keep_storing()]

    def stop(self) -> Op[None]:
        """Stop pulling, store the progress, leave the group."""
        self.running = False
        for held in list(self.held.values()):
            self._let_go(held)
        yield from self.offsets.persist(list(self.held))
        self.held.clear()
        yield from self._leave()

    def _leave(self) -> Op[None]:
        yield from self.instance.leave()

    def _keep_storing(self) -> Op[None]:
        while True:
            yield from sleep(self.settings.persist_offsets_ms)
            yield from self.offsets.persist(list(self.held))

    def _keep_sharing(self) -> Op[None]:
        retry_ms = AGAIN_MS
        while True:
            even = yield from self.rebalance()
            longest_ms = min(self.settings.rebalance_ms, AWAY_MS_MAX) if self._is_master_away else self.settings.rebalance_ms
            pause = self.settings.rebalance_ms if even else min(retry_ms, longest_ms)
            retry_ms = AGAIN_MS if even else min(retry_ms * 2, longest_ms)
            yield from wait(self._rebalance, pause)

    # ------------------------------------------------------------ rebalancing

    def group_changed(self) -> None:
        """Rebalance at once."""
        self._rebalance.fire()

    def disconnected(self, address: str) -> None:
        """Handle the loss of the connection to a broker: nothing to do unless queues are locked."""

    def rebalance(self) -> Op[bool]:
        """Take our queues of every subscribed topic; return whether all went well. Follows RebalanceImpl (RocketMQ 5.3.3)."""
        even, self._is_master_away = True, False
        for topic in self.topics():
            try:
                queues = yield from self._share(topic)
                self.missing_topics.discard(topic)
                even = (yield from self._take(topic, queues)) and even
                self.instance.troubles.recovered(self._trouble(topic))
            except NoRoute as exc:
                yield from self._no_route(topic, exc)
                even = False
            except _NotHeard as exc:
                log.info("queues not allocated yet: topic=%s group=%s reason=%s", topic, self.group, exc)
                even = False
            except HalfmoonError as exc:
                self.instance.troubles.failed(self._trouble(topic), exc, (yield from steady()))
                if isinstance(exc, ConnectFailed):
                    yield from self.look_for_master(topic, self.routes.broker_at(exc.address))
                even = False
        topics = self.topics()
        for held in [held for held in self.held.values() if held.queue.topic not in topics]:
            yield from self._remove(held)
        return even

    def look_for_master(self, topic: str, broker_name: str) -> Op[None]:
        """Look where the master of a broker is now; until it answers, one round follows soon after the other."""
        self._is_master_away = True
        yield from self.routes.look_for(topic, broker_name)

    def _trouble(self, topic: str) -> str:
        return f"{self.group} cannot consume {topic}"

    def _no_route(self, topic: str, error: NoRoute) -> Op[None]:
        """Say that a topic is not there, with topics that are spelt alike, or that nobody could be asked."""
        if topic.startswith(RETRY_PREFIX):
            log.info("no route yet: topic=%s reason=%s", topic, error)  # a broker makes it at our first heartbeat
            return
        what = self._trouble(topic)
        if error.reason is None:
            self.missing_topics.add(topic)
        if error.reason is None and not error.near and not self.instance.troubles.is_failing(what):
            try:
                error = NoRoute(topic, near=(yield from self.routes.near(topic)))
            except HalfmoonError as exc:
                log.info("no topics to compare with: topic=%s reason=%s", topic, exc)
        self.instance.troubles.failed(what, error.reason or error, (yield from steady()))

    def topics(self) -> list[str]:
        """Return the topics whose queues may be assigned to us."""
        return list(self.subscriptions)

    def _share(self, topic: str) -> Op[list[MessageQueue]]:
        queues = sorted((yield from self.routes.read_queues(topic)))
        if not self.clustering:
            return queues
        address = self.routes.any_broker(topic)
        if address is None:
            raise NoRoute(topic)
        reply = yield from call(address, GetConsumerListByGroup(consumer_group=self.group), b"", self.settings.request_timeout_ms)
        members = sorted(from_json(ConsumerIdList, bytes(reply.body)).consumer_id_list) if reply.code == 0 and reply.body else []
        if self.instance.client_id not in members:
            self.instance.beat_soon()
        if not members:
            error = HalfmoonError if self.instance.heard_by(address) else _NotHeard
            raise error(f"no member is known of the group: {reply.remark}")
        try:
            return self.allocate(self.instance.client_id, queues, members)
        except Exception as exc:
            if not self.instance.troubles.is_failing(self._trouble(topic)):
                log_failure(log, "allocate failed", exc, {"group": self.group, "topic": topic}, "queues stay as they are")
            raise HalfmoonError(f"allocate raised {type(exc).__name__}: {exc}") from exc

    def _take(self, topic: str, queues: Collection[MessageQueue]) -> Op[bool]:
        mine = set(queues)
        for held in [held for held in self.held.values() if held.queue.topic == topic and held.queue not in mine]:
            yield from self._remove(held)
        wanted = sorted(mine - self.held.keys())
        free = yield from self._secure(wanted)
        even = len(free) == len(wanted)
        for queue in free:
            try:
                # What is known here is old: others may have consumed the queue since it was ours.
                if self.clustering:
                    self.offsets.forget(queue)
                offset = yield from self.start_offset(queue)
            except HalfmoonError as exc:
                log.info("queue skipped: group=%s queue=%s reason=%s", self.group, queue_name(queue), exc)
                even = False
                continue
            if queue not in self.held and self._may_begin(queue):
                yield from self.gain(queue, offset)
        return even

    def _may_begin(self, queue: MessageQueue) -> bool:
        """Whether a queue is wanted still, now that its offset is known: not by a member that is leaving."""
        return self.running and queue.topic in self.topics()

    def _secure(self, queues: list[MessageQueue]) -> Op[list[MessageQueue]]:
        """Return those of the new queues that may begin now."""
        yield from ()
        return queues

    def gain(self, queue: MessageQueue, offset: int, *, sought: bool = False) -> Op[None]:
        """Take over a queue and begin at an offset. ``sought``: by the application, for which everything before it is done."""
        held = self.held[queue] = HeldQueue(queue, offset)
        if sought:
            held.handed = held.consumed = offset
        log.info("queue assigned: group=%s queue=%s offset=%s", self.group, queue_name(queue), offset)
        held.handle = yield from spawn(self.keep_pulling(held), f"pull {queue.topic} {queue.broker_name} {queue.queue_id}")

    def restart(self, queue: MessageQueue, offset: int, *, by_itself: bool = False) -> Op[None]:
        """Begin a queue anew at an offset, whatever was held of it; the new progress is stored at once.

        ``by_itself``: the pulling of that queue asks for this, and ends on its own.
        """
        old = self.held.get(queue)
        if old is None:
            return
        old.window.dropped = True
        old.window.clear()
        old.next_offset = offset  # who asks again before the progress is stored has the last word
        self.offsets.update(queue, offset, only_forward=False)
        yield from self.offsets.persist_one(queue)
        if self.held.get(queue) is old:
            yield from self.gain(queue, old.next_offset)
        if not by_itself:
            self._let_go(old)

    def recreated(self, held: HeldQueue, reason: TopicRecreated) -> None:
        """Begin a queue anew whose topic was deleted and made again, by the rule for groups without progress.

        Nothing that is known of the queue counts. The pulling of that queue calls this, and ends on its own.
        """
        if held.window.dropped:
            return
        queue, born_ms = held.queue, self.offsets.birth(held.queue)
        if self._recreated.get((queue.topic, queue.broker_name)) != born_ms:
            self._recreated[queue.topic, queue.broker_name] = born_ms
            log.warning(
                "topic %s was deleted and made again at broker %s: group %s begins its queues there anew: %s",
                queue.topic, queue.broker_name, self.group, reason,
            )  # fmt: skip
        held.handle = None
        self._let_go(held)
        held.window.clear()
        if self.held.get(queue) is held:
            del self.held[queue]
        self.offsets.forget(queue)
        self.group_changed()

    def _remove(self, held: HeldQueue) -> Op[None]:
        log.info("queue revoked: group=%s queue=%s", self.group, queue_name(held.queue))
        self._let_go(held)
        if self.held.get(held.queue) is held:
            del self.held[held.queue]
        if self.clustering:
            yield from self.offsets.persist_one(held.queue)
            self.offsets.forget(held.queue)

    def _let_go(self, held: HeldQueue) -> None:
        held.window.dropped = True
        if held.handle is not None:
            held.handle.cancel()

    def keep_pulling(self, held: HeldQueue) -> Op[None]:
        """Pull a queue for as long as it is ours."""
        raise NotImplementedError

    def start_offset(self, queue: MessageQueue) -> Op[int]:
        """Return where to begin a queue: at the stored progress, else as the settings say. Raises NetworkError, BrokerError.

        A begin that another start would find elsewhere is stored at once: what comes from now on is the group's, also when whoever
        was given it closes, dies or loses the queue before it has confirmed anything.

        Follows RebalancePushImpl.computePullFromWhere (RocketMQ 4.9.8).
        Differs: the original stores nothing before something is consumed; the next member then begins behind what the first was
        given. A stored 0 may be the broker's answer for a queue whose first message is in memory still, and is stored likewise.
        """
        stored = yield from self.offsets.fetch(queue)
        retry, where = queue.topic.startswith(RETRY_PREFIX), self.settings.consume_from
        if stored > 0:
            return stored
        if where is ConsumeFrom.FIRST_OFFSET or (retry and where is ConsumeFrom.LAST_OFFSET):
            return 0
        if stored == 0:
            begin = 0
        elif where is ConsumeFrom.LAST_OFFSET or retry:
            begin = yield from max_offset(self.routes, queue)
        else:
            begin = yield from offset_at(self.routes, queue, self.settings.consume_timestamp_ms or self.begun_ms - 1_800_000)
        self.offsets.update(queue, begin)
        yield from self.offsets.persist_one(queue)
        return begin

    # ------------------------------------------------------------ requests of brokers

    def heartbeat_data(self) -> ConsumerData:
        """Return this consumer's part of heartbeats."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.settings.model,
            consume_from_where=ConsumeFromWhere(int(self.settings.consume_from)),
            subscription_data_set=[SubscriptionData.of(wanted) for wanted in self.subscriptions.values()],
        )

    def reset(self, topic: str, offsets: dict[MessageQueue, int]) -> Op[None]:
        """Restart queues at other offsets, as an operator asked.

        Differs: the original waits ten seconds first; here what is still being consumed cannot move the new progress.
        """
        for queue, offset in offsets.items():
            if queue.topic == topic and queue in self.held:
                yield from self.restart(queue, offset)

    def progress(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of a topic's assigned queues."""
        return {queue: self.offsets.memory(queue) for queue in sorted(self.held) if queue.topic == topic}

    def consume_directly(self, record: bytes, broker_name: str) -> Op[ConsumeDirectlyResult | None]:
        """Consume one message now, progress untouched; None: there is no listener that could."""
        yield from ()
        return None

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's state, for operators."""
        raise NotImplementedError

    def user_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the user's topic name."""
        return MessageQueue(unwrap(queue.topic, self.settings.namespace), queue.broker_name, queue.queue_id)

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the topic's name on the wire. Raises UsageError for what is no queue."""
        if not isinstance(queue, MessageQueue):
            raise UsageError(
                f"{queue!r:.60} ({type(queue).__name__}) is no queue: give a MessageQueue, as queues(topic) returns them"
            )
        return MessageQueue(wrap(queue.topic, self.settings.namespace), queue.broker_name, queue.queue_id)


def _versioned(wanted: Subscription, version: int) -> Subscription:
    return Subscription(wanted.topic, wanted.expression, wanted.expression_type, wanted.tags, wanted.codes, version)


def warn_of_constants(wanted: Subscription) -> None:
    """Log the conditions of an SQL92 expression that say the same of every message; brokers refuse what does not parse."""
    if wanted.expression_type != "SQL92":
        return
    try:
        constants = sql92.compile(wanted.expression).constants()
    except sql92.ExpressionRefused:
        return
    if constants:
        log.warning("filter %r of topic %s: %s", wanted.expression[:200], wanted.topic, "; ".join(constants))
