"""Ordered consumption: a queue has one owner, its messages go to the listener one call after the other, and a failure holds them.

Follows ConsumeMessageOrderlyService, RebalanceImpl and RebalancePushImpl (RocketMQ 4.9.8): brokers lock a queue for one client of
the group before it is pulled; the client renews its locks every 20 s and takes them for lost after 30 s.

Differs: a lock is lost with the connection to its broker, too, and a queue whose lock is lost is begun anew once it is locked
again. While the listener has a message, its queue stays locked and the next owner waits, ``consume_timeout_ms`` at most; what the
listener says of it still counts.
Differs: a call of the listener takes the place of the original's minute of calls, so that no queue keeps others from the threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from halfmoon.allocation import Strategy
from halfmoon.client.core.ask import ask, tell
from halfmoon.client.core.consume.direct import consume_directly
from halfmoon.client.core.consume.listener import ConsumeContext, Listener, ListenerResult
from halfmoon.client.core.consume.member import HeadFailure, HeldQueue
from halfmoon.client.core.consume.offsets import UNKNOWN, LocalOffsets, RemoteOffsets, same_topic
from halfmoon.client.core.consume.pull_loop import PullLoop
from halfmoon.client.core.consume.push_consumer import RUN_CALLS, RUN_MS, PushConsumerCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import PushSettings
from halfmoon.effects import Op, gather, now, sleep, spawn, steady
from halfmoon.errors import HalfmoonError, NetworkError, ServiceNotAvailable, TopicRecreated
from halfmoon.model import ConsumeStatus, MessageQueue, StoredMessage, one_line
from halfmoon.shown.names import queue_name
from halfmoon.shown.texts import skip_command, span_text, time_text, tries_text
from halfmoon.wire.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, LockBatchReply, LockBatchRequest, from_json, to_json
from halfmoon.wire.headers.client import LockBatchMq, UnlockBatchMq
from halfmoon.wire.ids import UniqueIds

SUSPEND_MS = (10, 30_000)
"""Shortest and longest pause of a queue after a failure. Follows ConsumeMessageOrderlyService.submitConsumeRequestLater."""
RENEW_AGAIN_MS = 1_000
"""After this a renewal is repeated that a broker did not answer."""

log = logging.getLogger("halfmoon.client")


class Lock(NamedTuple):
    """A queue that a broker locked for us: its address, and when it was asked, ms: for how long (steady), and the date."""

    address: str
    asked_ms: int
    date_ms: int


def push_core(
    settings: PushSettings, instance: Instance, offsets: RemoteOffsets | LocalOffsets, ids: UniqueIds,
    allocate: Strategy | None = None,
) -> PushConsumerCore:  # fmt: skip
    """Return the push consumer that the settings ask for."""
    return (OrderlyConsumerCore if settings.orderly else PushConsumerCore)(settings, instance, offsets, ids, allocate)


class OrderlyConsumerCore(PushConsumerCore):
    """A push consumer that keeps the order of each queue."""

    def __init__(
        self, settings: PushSettings, instance: Instance, offsets: RemoteOffsets | LocalOffsets, ids: UniqueIds,
        allocate: Strategy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, instance, offsets, ids, allocate)
        self._locks: dict[MessageQueue, Lock] = {}
        self._losses: dict[str, int] = {}  # by address: how often its connection was lost
        self._came_to: dict[MessageQueue, tuple[int, int, int]] = {}
        """Progress in queues whose lock was lost, when it was asked for (ms, steady), and the birth of the topic."""
        self._ready: deque[HeldQueue] = deque()
        self._scheduled: set[HeldQueue] = set()  # in the deque, at the listener, or suspended
        self._in_hand: dict[MessageQueue, HeldQueue] = {}  # at the listener
        self._leaving: set[HeldQueue] = set()  # at the listener, and not ours any more once that is over
        self._pauses: dict[HeldQueue, int] = {}

    def background_work(self) -> list[Op[None]]:
        """Return the background operations. No message is sent back because the listener takes long."""
        return [*PullLoop.background_work(self), self._keep_locked()]

    def stop(self) -> Op[None]:
        """Stop pulling, wait a while for the listener, store the progress, unlock the queues, leave the group."""
        self._ready.clear()
        yield from super().stop()

    def _leave(self) -> Op[None]:
        """Unlock and leave; a queue whose message the listener still has stays locked until that runs out."""
        yield from self._lock([queue for queue in self._in_hand if queue in self._locks], release_on_close=False)
        yield from self._unlock([queue for queue in self._locks if queue not in self._in_hand])
        yield from super()._leave()

    # ------------------------------------------------------------ locks

    def _secure(self, queues: list[MessageQueue]) -> Op[list[MessageQueue]]:
        """Lock new queues. A queue does not begin while the listener still has a message of it, and none begins while we close."""
        wanted = [queue for queue in queues if queue not in self._in_hand and not self._closing]
        if not self.clustering:
            return wanted
        yield from self._lock(wanted)
        return [queue for queue in wanted if queue in self._locks]

    def _lock(self, queues: Collection[MessageQueue], *, release_on_close: bool = True) -> Op[bool]:
        """Lock or renew queues at their brokers; a queue that is refused is no more in ``_locks``. Whether all brokers answered."""
        by_address = _grouped((self.routes.master(queue.broker_name), queue) for queue in queues)
        unknown = by_address.pop(None, [])
        for queue in unknown[:1]:  # the others are looked for in the next rounds
            yield from self.look_for_master(queue.topic, queue.broker_name)
        requests = [self._lock_at(str(address), group, release_on_close) for address, group in by_address.items()]
        outcomes = yield from gather(requests)
        return all(answered is True for answered in outcomes) and not unknown

    def _lock_at(self, address: str, queues: list[MessageQueue], release_on_close: bool) -> Op[bool]:
        # Before the request leaves: the broker counts from when it came, so that a lock ends here before it ends there.
        asked_ms, date_ms, losses = (yield from steady()), (yield from now()), self._losses.get(address, 0)
        header, body = LockBatchMq(release_on_close=release_on_close), self._lock_body(queues)
        try:
            reply = yield from ask(address, header, body, self.settings.request_timeout_ms)
            granted = set(from_json(LockBatchReply, bytes(reply.body)).lock_ok_mq_set)
        except HalfmoonError as exc:
            log.info("queues not locked: group=%s broker=%s reason=%s", self.group, address, exc)
            if isinstance(exc, NetworkError | ServiceNotAvailable):
                yield from self.look_for_master(queues[0].topic, queues[0].broker_name)
            return False
        # The connection was lost meanwhile, and the broker may have given the granted locks to others.
        if self._losses.get(address, 0) != losses:
            return False
        for queue in queues:
            if queue in granted:
                self._locks[queue] = Lock(address, asked_ms, date_ms)
            else:
                log.info("queue belongs to another client: group=%s queue=%s", self.group, queue_name(queue))
                self._locks.pop(queue, None)
        return True

    def _unlock(self, queues: Collection[MessageQueue]) -> Op[None]:
        """Give queues back, one-way. Failures are logged; the locks run out then."""
        by_address = _grouped((lock.address, queue) for queue in queues if (lock := self._locks.pop(queue, None)) is not None)
        for address, group in by_address.items():
            try:
                yield from tell(str(address), UnlockBatchMq(), self._lock_body(group), self.settings.request_timeout_ms)
            except HalfmoonError as exc:
                log.info("queues not unlocked: group=%s broker=%s reason=%s", self.group, address, exc)

    def _lock_body(self, queues: list[MessageQueue]) -> bytes:
        return to_json(LockBatchRequest(self.instance.client_id, self.group, sorted(queues)))

    def _keep_locked(self) -> Op[None]:
        pause = self.settings.lock_renew_ms
        while self.clustering:
            yield from sleep(pause)
            queues = [queue for queue in {**self.held, **self._in_hand} if queue in self._locks]
            answered = yield from self._lock(queues)
            pause = self.settings.lock_renew_ms if answered else min(RENEW_AGAIN_MS, self.settings.lock_renew_ms)
            self._drop([queue for queue in queues if queue not in self._locks])
            yield from self._let_hung_go()

    def _let_hung_go(self) -> Op[None]:
        """Unlock queues that are not ours any more and whose message the listener holds for too long: other members wait."""
        at = yield from steady()
        timeout_ms = self.settings.consume_timeout_ms
        hung = [held.queue for held in self._leaving if held.window.overdue(at, timeout_ms) is not None]
        late = sorted(queue for queue in hung if queue in self._locks)
        yield from self._unlock(late)
        self._drop(late)

    def disconnected(self, address: str) -> None:
        """Stop consuming the queues of a broker that may have given them to others, and lock them again."""
        self._losses[address] = self._losses.get(address, 0) + 1
        self._drop([queue for queue, lock in self._locks.items() if lock.address == address])

    def _drop(self, queues: list[MessageQueue]) -> None:
        """Forget messages pulled from queues whose locks are lost; results of listeners for them will not count."""
        self._settle()
        for queue in queues:
            log.warning("lock lost: group=%s queue=%s", self.group, queue_name(queue))
            lock = self._locks.pop(queue, None)
            for held in (self.held.pop(queue, None), self._in_hand.get(queue)):
                if held is not None and not held.window.dropped:
                    came_to = max(held.window.commit_offset(), self.offsets.memory(queue))
                    locked_ms = lock.asked_ms if lock is not None else -self.settings.lock_valid_ms
                    self._came_to[queue] = (came_to, locked_ms, self.offsets.birth(queue))
                    self._let_go(held)
                    self._leaving.discard(held)
        if queues and self.running:
            self.group_changed()

    def start_offset(self, queue: MessageQueue) -> Op[int]:
        """Return where to begin a queue: also not before what was consumed here until its lock was lost a moment ago."""
        offset = yield from super().start_offset(queue)
        came_to, locked_ms, birth_ms = self._came_to.pop(queue, (-1, 0, UNKNOWN))
        if not same_topic(birth_ms, self.offsets.birth(queue)):
            return offset
        return max(offset, came_to) if (yield from steady()) - locked_ms < self.settings.lock_valid_ms else offset

    def recreated(self, held: HeldQueue, reason: TopicRecreated) -> None:
        """Also forget what was consumed until a lock was lost."""
        self._came_to.pop(held.queue, None)
        super().recreated(held, reason)

    # ------------------------------------------------------------ rebalancing

    def _take(self, topic: str, queues: Collection[MessageQueue]) -> Op[bool]:
        even = yield from super()._take(topic, queues)
        kept = {*self.held, *self._in_hand, *queues}
        yield from self._unlock([queue for queue in self._locks if queue.topic == topic and queue not in kept])
        return even

    def _remove(self, held: HeldQueue) -> Op[None]:
        """Give a queue up: at once, or when the listener is done with its message."""
        if self._in_hand.get(held.queue) is not held or held.window.dropped:
            yield from super()._remove(held)
            if held.queue not in self._in_hand:
                yield from self._unlock([held.queue])
            return
        self._settle()
        self._leaving.add(held)
        if held.handle is not None:
            held.handle.cancel()
        if self.held.get(held.queue) is held:
            del self.held[held.queue]
        yield from self.offsets.persist_one(held.queue)

    def _hand_over(self, held: HeldQueue) -> Op[None]:
        """Hand over a queue that was revoked while the listener had it, and is done now."""
        self._leaving.discard(held)
        offset = held.window.commit_offset()
        if offset >= 0 and not held.window.dropped:
            self.offsets.update(held.queue, offset)
        yield from super()._remove(held)
        yield from self._unlock([held.queue])
        self.group_changed()

    def reset(self, topic: str, offsets: dict[MessageQueue, int]) -> Op[None]:
        """Also what is not held now forgets its progress: queues that wait for a lock, or for the listener to be given up."""
        for queue in [queue for queue in offsets if queue.topic == topic]:
            self._came_to.pop(queue, None)
        for held in self._leaving:
            if held.queue in offsets and held.queue.topic == topic:
                held.window.dropped = True
                self.offsets.forget(held.queue)
        yield from super().reset(topic, offsets)

    # ------------------------------------------------------------ consuming

    def _full(self, held: HeldQueue) -> bool:
        return self._crowded(held)

    def _submit(self, held: HeldQueue, messages: list[StoredMessage]) -> Op[None]:
        """Messages came: the queue takes its turn, unless it has one already."""
        if held not in self._scheduled and not self._closing:
            self._scheduled.add(held)
            yield from self._line_up(held)

    def _line_up(self, held: HeldQueue) -> Op[None]:
        self._ready.append(held)
        if self._busy < self.settings.threads:
            yield from self._hire()

    def _work(self) -> Op[None]:
        try:
            while self._ready and self.running:
                yield from self._turn(self._ready.popleft())
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.fire()

    def _turn(self, held: HeldQueue) -> Op[None]:
        """Give the listener the next messages of a queue; then the queue goes to the end of the line, or rests."""
        queue, owned = held.queue, (yield from self._owned(held))
        messages = held.window.first(self.settings.consume_batch_max * RUN_CALLS)
        # In hand: the listener still has a message from before the queue was restarted; then `_done_elsewhere` goes on.
        if not owned or not messages or queue in self._in_hand:
            self._scheduled.discard(held)
            return
        self._in_hand[queue] = held
        try:
            last = yield from self._run_of_calls(lambda listener: self._calls_of(held, messages, listener))
            if last is not None:
                yield from self._finish(held, *last)
        finally:
            del self._in_hand[queue]
        pause_ms = self._pauses.pop(held, None)
        if held in self._leaving or held.window.dropped:
            self._scheduled.discard(held)
            yield from self._done_elsewhere(held)
        elif pause_ms is not None:
            yield from spawn(self._rest(held, pause_ms), f"suspend {queue.topic} {queue.queue_id}")
        elif not self._closing:
            self._ready.append(held)

    def _done_elsewhere(self, held: HeldQueue) -> Op[None]:
        """End a listener's call for a queue that is not ours any more, or was restarted meanwhile."""
        if held in self._leaving:
            yield from self._hand_over(held)
        elif (successor := self.held.get(held.queue)) is not None:
            yield from self._submit(successor, [])
        else:
            self.group_changed()

    def _rest(self, held: HeldQueue, pause_ms: int) -> Op[None]:
        yield from sleep(pause_ms)
        if held.window.dropped or self._closing:
            self._scheduled.discard(held)
        else:
            yield from self._line_up(held)

    def _calls_of(
        self, held: HeldQueue, messages: list[StoredMessage], listener: Listener
    ) -> Op[tuple[list[StoredMessage], ListenerResult] | None]:
        """Call the listener with messages of one queue, one call after the other, for as long as the queue is ours for sure.

        Ends with a call of which something failed or is not committed yet, and returns it.
        """
        size, begin = self.settings.consume_batch_max, (yield from steady())
        ahead, over = (yield from now()) - begin, begin
        for at in range(0, len(messages), size):
            if held.window.dropped or held in self._leaving or self._closing or self.listener is not listener:
                break
            batch = messages[at : at + size]
            result = yield from self._call(held, batch, listener, over, ahead)
            over = result.over
            if result.good < len(batch) or not result.context.auto_commit:
                return batch, result
            self._over.append((held, batch, over - result.start))
            lock = self._locks.get(held.queue)
            if self.clustering and (lock is None or over - lock.asked_ms >= self.settings.lock_valid_ms):
                break
            if over - begin >= RUN_MS:
                break
        return None

    def _owned(self, held: HeldQueue) -> Op[bool]:
        """Whether we may consume a queue now; one whose lock was not renewed in time is dropped."""
        if held.window.dropped:
            return False
        if not self.clustering:
            return True
        lock = self._locks.get(held.queue)
        if lock is not None and (yield from steady()) - lock.asked_ms < self.settings.lock_valid_ms:
            return not held.window.dropped
        self._drop([held.queue])
        return False

    def _meant(self, status: Any, context: ConsumeContext) -> ConsumeStatus:
        """With auto commit COMMIT and ROLLBACK are success. Follows ConsumeMessageOrderlyService.processConsumeResult."""
        if status is not ConsumeStatus.COMMIT and status is not ConsumeStatus.ROLLBACK:
            return super()._meant(status, context)
        if not context.auto_commit:
            return status
        log.warning("listener returned %s with auto commit on, which counts as success: group=%s", status.name, self.group)
        return ConsumeStatus.CONSUME_SUCCESS

    def _report(
        self, held: HeldQueue, messages: list[StoredMessage], context: ConsumeContext, error: Exception, level: int = logging.ERROR
    ) -> None:
        """Log what the listener raised; what it raised for the same message before only at DEBUG, and `_hold` counts it."""
        anew = held.raises_anew(messages[0].queue_offset, error)
        super()._report(held, messages, context, error, level if anew else logging.DEBUG)

    def _redeliveries(self) -> int:
        return self.settings.reconsume_max

    def _next_try(self, message: StoredMessage, context: ConsumeContext) -> str:
        if 0 <= self._redeliveries() <= message.reconsume_times:
            return "it goes to the dead letters of the group" if self.clustering else "it is dropped (broadcasting)"
        return f"tried again in {span_text(self._pause_ms(context))}, and its queue waits"

    def _consumed(self, held: HeldQueue, done: list[StoredMessage]) -> None:
        self._unblock(held)
        self._advance(held, [*held.window.kept_back(), *done])

    def _finish(self, held: HeldQueue, messages: list[StoredMessage], result: ListenerResult) -> Op[None]:
        """Count what was consumed; what failed stays at the head of its queue, or goes to the dead letters at its bound."""
        done, failed, context = messages[: result.good], messages[result.good :], result.context
        rolled_back = result.status is ConsumeStatus.ROLLBACK
        self.rates_of(held.queue.topic).called(result.over - result.start, len(done), 0 if rolled_back else len(failed))
        if held.window.dropped:
            return  # whoever has the queue now gets them again
        if rolled_back:
            held.window.take_up_again()
            yield from self._hold(held, messages[0], result)
            return
        self.consumed_count += len(done)
        self.failed_count += len(failed)
        kept = []
        for message in failed:
            if 0 <= self.settings.reconsume_max <= message.reconsume_times and (yield from self._given_up(message, result.reason)):
                done.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        if not kept:
            self._unblock(held)
        held.window.keep_back(done)
        if context.auto_commit or result.status is ConsumeStatus.COMMIT:
            self._advance(held, held.window.kept_back())
        elif self._full(held) and not held.window.first(1):
            log.warning(
                "nothing more is pulled before a COMMIT or ROLLBACK: group=%s queue=%s kept=%d",
                self.group,
                queue_name(held.queue),
                len(held.window),
            )
        if kept:
            yield from self._hold(held, kept[0], result)

    def _hold(self, held: HeldQueue, message: StoredMessage, result: ListenerResult) -> Op[None]:
        """Let a queue rest whose first message is handed over again, and note why, for operators."""
        reason, at = one_line(result.reason) or f"the listener returned {result.status.name}", (yield from steady())
        self._pauses[held] = self._pause_ms(result.context)
        failure = held.failure
        if failure is None or failure.offset != message.queue_offset:
            self._unblock(held)
            failure = held.failure = HeadFailure(message.queue_offset, (yield from now()), at)
        if failure.again(reason, at):
            skip = skip_command(self.group, held.queue, failure.offset, self.settings.nameserver)
            log.warning(
                "group %s: queue %s of %s is blocked at offset %d: %s, %s since %s; repair the listener%s", self.group,
                queue_name(held.queue, held.queue.topic), held.queue.topic, failure.offset, reason, tries_text(failure.tries),
                time_text(failure.since_ms), f", or skip the message: {skip}" if self.clustering else "",
            )  # fmt: skip

    def _unblock(self, held: HeldQueue) -> None:
        """Forget the message that held a queue: it is consumed, or given up."""
        failure, held.failure = held.failure, None
        if failure is not None and failure.reminded:
            log.warning(
                "group %s: queue %s of %s is not blocked any more: it is past offset %d after %s", self.group,
                queue_name(held.queue, held.queue.topic), held.queue.topic, failure.offset, tries_text(failure.tries),
            )  # fmt: skip

    def _pause_ms(self, context: ConsumeContext) -> int:
        wanted = self.settings.suspend_queue_ms if context.suspend_ms is None else context.suspend_ms
        return min(max(wanted, SUSPEND_MS[0]), SUSPEND_MS[1])

    def _given_up(self, message: StoredMessage, reason: str) -> Op[bool]:
        """Publish a message that failed too often to the group's retry topic; its broker puts it to the dead letters.

        Differs: broadcasting consumers drop it, as they do without order.
        """
        if not self.clustering:
            log.warning("message dropped after its last failure (broadcasting): %s", self._named(message))
            return True
        try:
            yield from self._republish(message, self.settings.reconsume_max, 0, one_line(reason))
            return True
        except HalfmoonError as exc:
            log.warning("message not sent to the dead-letter topic: %s reason=%s", self._named(message), exc)
            return False

    def consume_directly(self, record: bytes, broker_name: str) -> Op[ConsumeDirectlyResult | None]:
        """Hand one message to the listener because an operator asked for it (309), beside what it has in order."""
        return (yield from consume_directly(record, broker_name, self._hand, group=self.group, orderly=True))

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's state, for operators."""
        described = super().running_info()
        described.properties["PROP_CONSUMEORDERLY"] = "true"
        for queue, info in described.mq_table.items():
            lock = self._locks.get(queue)
            info.locked, info.last_lock_timestamp = lock is not None, lock.date_ms if lock is not None else 0
            if (failure := self.held[queue].failure) is not None:
                info.failed_offset, info.failed_tries = failure.offset, failure.tries
                info.failed_since_ms, info.failed_reason = failure.since_ms, failure.reason
        return described


def _grouped(pairs: Iterable[tuple[str | None, MessageQueue]]) -> dict[str | None, list[MessageQueue]]:
    groups: dict[str | None, list[MessageQueue]] = {}
    for address, queue in pairs:
        groups.setdefault(address, []).append(queue)
    return groups
