"""The pull loop that push and pull consumers share: one pull at a time for each queue, pauses between, flow control.

Holds no finished messages and hands out none: `client.core.consume.push_consumer` and `client.core.consume.pull_consumer` say what
becomes of what a pull brought.
"""

from __future__ import annotations

from halfmoon.allocation import Strategy
from halfmoon.client.core.consume.member import GroupMember, HeldQueue
from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.pull import pull
from halfmoon.client.core.consume.rates import SAMPLE_MS, ConsumeRates
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import PullSettings, PushSettings
from halfmoon.effects import Op, now, sleep, steady
from halfmoon.errors import BrokerError, ConnectFailed, HalfmoonError, NetworkError, PeerError, TopicRecreated
from halfmoon.model import MessageQueue, PullResult, Subscription
from halfmoon.wire.codes import UNLIKE
from halfmoon.wire.headers.pull import PullMessage

FULL_PAUSE_MS = 50
"""Pause while too much is held in memory. Follows PULL_TIME_DELAY_MILLS_WHEN_FLOW_CONTROL."""

PAUSED_MS = 1_000

THROTTLED_PAUSE_MS = 20
"""Pause after the broker's code 215."""

IDLE_PAUSE_MS = 100
"""Pause after an empty reply that was not held, so that a broker is not asked in a busy loop."""


class PullLoop(GroupMember):
    """A member that pulls the queues it holds. ``skipped_count`` are records that do not decode and were left out.

    ``pull_max`` are the messages that one pull asks for.
    """

    settings: PushSettings | PullSettings

    def __init__(
        self, settings: PushSettings | PullSettings, instance: Instance, offsets: RemoteOffsets | LocalOffsets,
        allocate: Strategy | None,
    ) -> None:  # fmt: skip
        super().__init__(settings, instance, offsets, allocate)
        self.pull_max = settings.batch_max
        self.skipped_count = 0
        self.rates: dict[str, ConsumeRates] = {}

    def background_work(self) -> list[Op[None]]:
        """Return the operations that run in the background until they are cancelled."""
        return [*super().background_work(), self._keep_counting()]

    def _keep_counting(self) -> Op[None]:
        while True:
            yield from sleep(SAMPLE_MS)
            at, topics = (yield from steady()), set(self.topics())
            self.rates = {topic: rates for topic, rates in self.rates.items() if topic in topics}
            for rates in self.rates.values():
                rates.sample(at)

    def rates_of(self, topic: str) -> ConsumeRates:
        """Return the rates of a topic, by its name on the wire."""
        rates = self.rates.get(topic)
        if rates is None:
            rates = self.rates[topic] = ConsumeRates(self.begun_steady)
        return rates

    def keep_pulling(self, held: HeldQueue) -> Op[None]:
        """Pull a queue while it is ours and there is room; the broker holds a pull that finds nothing."""
        while not held.window.dropped:
            wanted = self._wanted(held.queue)
            if wanted is None:
                yield from sleep(PAUSED_MS)
            elif self._full(held):
                yield from sleep(FULL_PAUSE_MS)
            else:
                yield from self._pull_once(held, wanted)

    def _wanted(self, queue: MessageQueue) -> Subscription | None:
        """Return the subscription of a queue, None while pulling it is paused."""
        raise NotImplementedError

    def _full(self, held: HeldQueue) -> bool:
        window = held.window
        return self._crowded(held) or (len(window) > 0 and window.span() > self.settings.span_max)

    def _crowded(self, held: HeldQueue) -> bool:
        """Whether a queue has as much in memory as it may have."""
        return len(held.window) > self.settings.cached_max or held.window.size_bytes > self.settings.cached_bytes_max

    def _pull_once(self, held: HeldQueue, wanted: Subscription) -> Op[None]:
        """Pull a queue once and process the result, pauses included."""
        raise NotImplementedError

    def _pull(
        self, held: HeldQueue, wanted: Subscription, sys_flag: int, *, send_expression: bool, commit_offset: int = 0
    ) -> Op[PullResult | None]:
        """Pull a queue once; None when it failed, after the pause for that, or when the queue was revoked meanwhile."""
        settings, window = self.settings, held.window
        window.last_pull_ms, window.pulled_at = (yield from now()), (yield from steady())
        known = self.routes.brokers.get(held.queue.broker_name)
        try:
            request = PullMessage(
                consumer_group=self.group,
                topic=held.queue.topic,
                queue_id=held.queue.queue_id,
                queue_offset=held.next_offset,
                max_msg_nums=self.pull_max,
                sys_flag=sys_flag,
                commit_offset=commit_offset,
                suspend_timeout_millis=settings.suspend_ms,
                sub_version=wanted.version,
                subscription=wanted.expression if send_expression else None,
                expression_type=wanted.expression_type,
                broker_name=held.queue.broker_name,
                topic_birth_ms=self.offsets.birth(held.queue),
            )
            result = yield from pull(self.routes, request, wanted, broker_id=held.broker_id, timeout_ms=settings.pull_timeout_ms)
        except TopicRecreated as exc:
            self.recreated(held, exc)
            return None
        except (NetworkError, BrokerError, PeerError) as exc:
            if isinstance(exc, ConnectFailed) and (yield from self._moved(held.queue, known)):
                return None
            yield from self._pull_failed(held, exc)
            return None
        if window.dropped:
            return None
        self.offsets.learn_birth(held.queue, result.topic_birth_ms)
        if result.messages:
            self.rates_of(held.queue.topic).pulled(len(result.messages), (yield from steady()) - window.pulled_at)
        self.instance.troubles.recovered(self._pulled_from(held))
        self.skipped_count += len(result.skipped)
        held.broker_id = result.suggested_broker_id
        return result

    def _pull_failed(self, held: HeldQueue, exc: HalfmoonError) -> Op[None]:
        code = exc.code if isinstance(exc, BrokerError) else 0
        # It does not know the group, or not its present subscription: a heartbeat tells both.
        if code in (24, 25, 26):
            self.instance.beat_soon()
        if code != 215:  # the heartbeats of unlike members take turns, so that pulls work again and again: one line for the group
            what = f"group {self.group} loses messages" if UNLIKE in str(exc) else self._pulled_from(held)
            self.instance.troubles.failed(what, exc, (yield from steady()))
        # A slave may be what failed: the master is next.
        held.broker_id = 0
        yield from sleep(THROTTLED_PAUSE_MS if code == 215 else self.settings.pull_pause_ms)

    def _moved(self, queue: MessageQueue, known: dict[int, str] | None) -> Op[bool]:
        """Whether a broker that took no connection has other addresses by now than were known before the pull."""
        if self.routes.brokers.get(queue.broker_name) == known:
            yield from self.routes.look_for(queue.topic, queue.broker_name)
        return self.routes.brokers.get(queue.broker_name) not in (None, known)

    def _pulled_from(self, held: HeldQueue) -> str:
        return f"topic {held.queue.topic} cannot be pulled from broker {held.queue.broker_name} by group {self.group}"

    def _breathe(self, held: HeldQueue, moved: bool) -> Op[None]:
        """Pause after a reply that came at once and brought nothing."""
        if not moved and (yield from steady()) - held.window.pulled_at < IDLE_PAUSE_MS:
            yield from sleep(IDLE_PAUSE_MS)
