"""Decider of half messages: asks the database whether the token row of an event is there, and tells the broker.

The row is the only evidence. What a provider sees of a transaction (a commit, a rollback, an error, a session that went away) is a
reason to ask now; where it sees nothing, the row is asked for after `FIRST_S`. This is the question that answers a broker's check
(`halfmoon.events.checks.tokens`), asked sooner: row present, commit; row absent and the transaction over, tombstone and rollback;
otherwise ask again.

Two threads of the publisher do it, with connections of the provider's own, so that no commit waits for it: one looks for rows,
many with one query; the other writes tombstones, which may wait for a transaction that is still open. A transport that reads like
a test (`MemoryBus`) calls `Decider.settle` instead, and a database that only its own connection reaches is asked in the thread
that ended the transaction.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import inf

from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import LOOK_WAIT_MS, Busy, Provider, SchemaRows
from halfmoon.events.event import Event
from halfmoon.events.publishing.transport import Half, Transport
from halfmoon.events.tracing import span, step
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import LocalTransactionState

FIRST_S, EVERY_S, LATER_S, LATER_AFTER_S = 1.0, 1.0, 5.0, 60.0
"""When a transaction of which nothing was seen is asked about: first, then each so often, and after a minute less often."""

AGAIN_S = 0.01
"""How soon a question whose transaction seemed over is asked again; twice as long each time, up to `EVERY_S`."""

ROWS_MAX = 127
"""Asked for by one query, with the row that tells the table from others."""

PACE_S = 0.008
"""Between two queries: where many transactions end, several share one, and none waits longer than this for the next."""

PENDING_MAX = 100_000
"""Undecided half messages of one publisher; those above it are left to the broker's check."""

TOMBSTONE_WAIT_MS = 20
"""How long a tombstone waits for the transaction that may have written the row."""

log = logging.getLogger("halfmoon.events")


class Question:
    """One half message whose transaction is undecided. ``ticket`` is its latest place in a queue; 0: decided."""

    __slots__ = ("event", "half", "home", "over", "ticket", "trace", "tries", "watched_s")

    def __init__(self, event: Event, half: Half, trace: Mapping[str, str] | None, home: tokens.Home) -> None:
        self.event, self.half, self.trace, self.home = event, half, trace, home
        self.watched_s = time.monotonic()
        self.over = False
        """Whether something was seen that may have ended its transaction."""
        self.tries = self.ticket = 0


class Decider:
    """The undecided half messages of one publisher in this process. Safe to use from many threads."""

    def __init__(self, provider: Provider, transport: Transport) -> None:
        self._provider, self._transport = provider, transport
        self._by_reader = transport.settled_by(self.settle)
        self._forget()

    def _forget(self) -> None:
        """Begin empty: also in a child after a fork, for what is open is the parent's."""
        self._pending: dict[Question, None] = {}
        self._lock = threading.Lock()
        self._homes: set[tokens.Home] = set()
        """Where rows were said to lie: the first two places."""
        self._turn = threading.Lock()
        """Held while rows are asked for and decisions sent, so that they keep the order of the commits."""
        self._numbers = count(1)
        self._closed = False
        self._said = ""
        self._looks = _Queue("halfmoon-decider", self._look_taken, self._lock, PACE_S)
        self._tombstones = _Queue("halfmoon-tombstones", self._settle_taken, self._lock)

    forked = _forget

    # ------------------------------------------------------------ from publishers

    def watch(self, event: Event, half: Half, trace: Mapping[str, str] | None, home: tokens.Home = tokens.NOWHERE) -> Question:
        """Decide a half message whose token row was written. Returns what `ask` takes."""
        question = Question(event, half, trace, home)
        if len(self._homes) < 2:
            self._homes.add(home)
        with self._lock:
            if self._closed or len(self._pending) >= PENDING_MAX:
                self._transport.leave(half)
                return question
            self._pending[question] = None
            self._put(self._looks, question, FIRST_S)
        return question

    def ask(self, question: Question, transaction: LocalTransaction | None = None) -> None:
        """Ask about a half message now: its transaction may have ended. Returns at once, and raises nothing."""
        with self._lock:
            if question not in self._pending:
                return
            question.over, question.tries = True, 0
            self._put(self._looks, question, 0.0)
        if transaction is not None and (rows := self._provider.standing_in(transaction)) is not None:
            there = question.event.id in tokens.states_in(SchemaRows(rows, question.home.schema), [question.event.id])
            self._decide(question, LocalTransactionState.COMMIT if there else LocalTransactionState.ROLLBACK)
        elif self._provider.inline:
            self._pass([question])

    def discard(self, question: Question) -> None:
        """Roll a half message back whose row is proved not to be there."""
        self._decide(question, LocalTransactionState.ROLLBACK)

    def settle(self) -> None:
        """Ask about every half message once, in this thread, in the order in which their transactions seemed over."""
        with self._lock:
            questions = sorted(self._pending, key=lambda question: question.ticket)
        self._pass(questions)

    def close(self, flush_ms: int) -> None:
        """Decide what can be decided in so many ms, and leave the rest to the broker's check."""
        end_s = time.monotonic() + flush_ms / 1000
        with self._lock:
            self._closed = True
            self._looks.end()
            self._tombstones.end()
            questions = list(self._pending)
        for begin in range(0, len(questions), ROWS_MAX):
            self._look(questions[begin : begin + ROWS_MAX])
        wait_s = AGAIN_S
        while True:
            with self._lock:
                over = [question for question in self._pending if question.over]
            self._pass(over, end_s)
            if not any(question.ticket for question in over) or time.monotonic() + wait_s >= end_s:
                break
            time.sleep(wait_s)
            wait_s = min(EVERY_S, wait_s * 2)
        with self._lock:
            questions = list(self._pending)
        for question in questions:
            self._leave(question, "the publisher is closed")

    # ------------------------------------------------------------ asking

    def _put(self, queue: _Queue, question: Question, wait_s: float) -> None:
        """Queue a question; under the lock. An earlier place in a queue counts no more."""
        question.ticket = next(self._numbers)
        if not self._by_reader and not self._closed:
            queue.put(question, wait_s)

    def _pass(self, questions: Sequence[Question], end_s: float = inf) -> None:
        """Ask about questions in this thread; write no tombstone after ``end_s``, a steady time, and do not wait longer."""
        for begin in range(0, len(questions), ROWS_MAX):
            if not self._turn.acquire(timeout=-1 if end_s == inf else max(0.0, end_s - time.monotonic())):
                return  # the other thread waits for the database
            try:
                for question in self._look(questions[begin : begin + ROWS_MAX]):
                    if time.monotonic() < end_s:
                        self._settle(question)
            finally:
                self._turn.release()

    def _look_taken(self, questions: list[Question]) -> None:
        with self._turn:
            # Whoever locks the table of one tenant keeps no other waiting.
            absent = self._look(questions, lock_wait_ms=None if len(self._homes) < 2 else LOOK_WAIT_MS)
        with self._lock:
            for question in absent:
                if question in self._pending:
                    self._put(self._tombstones, question, 0.0)

    def _settle_taken(self, questions: list[Question]) -> None:
        for question in questions:
            self._settle(question)

    def _look(self, questions: Sequence[Question], *, lock_wait_ms: int | None = LOOK_WAIT_MS) -> list[Question]:
        """Decide those whose rows are there, and return those whose rows are not. ``lock_wait_ms`` is that of `Database.fresh`."""
        by_home: dict[tokens.Home, list[Question]] = {}
        for question in questions:
            if question.ticket:
                by_home.setdefault(self._home(question), []).append(question)
        return [question for home, asked in by_home.items() for question in self._look_at(home, asked, lock_wait_ms)]

    def _home(self, question: Question) -> tokens.Home:
        return tokens.of_writer(question.home, self._provider.dialect)

    def _look_at(self, home: tokens.Home, asked: Sequence[Question], lock_wait_ms: int | None) -> list[Question]:
        """As `_look`, for those whose rows lie in one table."""
        tickets = [question.ticket for question in asked]
        try:
            states = tokens.states(self._provider, [question.event.id for question in asked], home, lock_wait_ms=lock_wait_ms)
        except Exception as exc:
            self._failed(exc)
            for question, ticket in zip(asked, tickets, strict=True):
                self._failed_for(question, ticket, exc)
            return []
        self._said = ""
        absent = []
        for question in asked:
            state = states.get(question.event.id)
            if state is None:
                absent.append(question)
            else:
                self._decide(question, state)
        return absent

    def _settle(self, question: Question) -> None:
        """Write the tombstone of one whose row is absent, and decide; ask again later where its transaction is open."""
        ticket, event = question.ticket, question.event
        if not ticket:
            return
        try:
            now_ms = time.time_ns() // 1_000_000
            state = tokens.settle(
                self._provider,
                event.id,
                event.published_ms,
                now_ms,
                self._home(question),
                lock_wait_ms=TOMBSTONE_WAIT_MS,
            )
        except Exception as exc:
            self._failed(exc)
            self._failed_for(question, ticket, exc)
            return
        if state in (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK):
            self._decide(question, state)
        elif state is LocalTransactionState.UNKNOWN:
            self._leave(question, "it is too old for a missing row to prove anything")
        else:
            self._again(question, ticket)

    def _failed_for(self, question: Question, ticket: int, error: Exception) -> None:
        """Ask again later, but for a row that this process cannot find ever: the broker asks others."""
        if isinstance(error, tokens.AnotherDatabase):
            self._leave(question, str(error))
        else:
            self._again(question, ticket)

    def _again(self, question: Question, ticket: int) -> None:
        """Ask again later, unless somebody asked meanwhile."""
        age_s = time.monotonic() - question.watched_s
        regular_s = EVERY_S if age_s < LATER_AFTER_S else LATER_S
        with self._lock:
            if question.ticket == ticket:
                question.tries += 1
                wait_s = min(regular_s, AGAIN_S * 2.0 ** min(question.tries, 20)) if question.over else regular_s
                self._put(self._looks, question, wait_s)

    def _take(self, question: Question) -> bool:
        """Whether this call is the one that ends a question."""
        with self._lock:
            question.ticket = 0
            return self._pending.pop(question, self) is None

    def _decide(self, question: Question, state: LocalTransactionState) -> None:
        if not self._take(question):
            return
        event, commit = question.event, state is LocalTransactionState.COMMIT
        with span("decide", event, group=event.group, carrier=question.trace):
            self._transport.decide(question.half, commit=commit)
            decision, level = ("commit", logging.INFO) if commit else ("rollback", logging.WARNING)
            step("decided", event, message_id=question.half.message_id, decision=decision, level=level)

    def _leave(self, question: Question, why: str) -> None:
        if self._take(question):
            self._transport.leave(question.half)
            step("left to the check", question.event, message_id=question.half.message_id, decision=why, level=logging.WARNING)

    def _failed(self, error: Exception) -> None:
        """Report once what keeps the database from being asked; a lock that is held is no failure."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        if not isinstance(error, Busy) and text != self._said:
            self._said = text
            log.warning("token rows cannot be read, events stay undecided and are asked about again: error=%s", text)


class _Queue:
    """Questions by the time at which they are due, and the thread that takes them; it begins with the first."""

    def __init__(self, name: str, work: Callable[[list[Question]], None], lock: threading.Lock, pace_s: float = 0.0) -> None:
        self._name, self._work, self._pace_s = name, work, pace_s
        self._next_s = 0.0
        self._changed = threading.Condition(lock)
        self._heap: list[tuple[float, int, Question]] = []
        self._thread: threading.Thread | None = None
        self._ended = False

    def put(self, question: Question, wait_s: float) -> None:
        """Queue a question with its ticket; under the lock."""
        entry = (time.monotonic() + wait_s, question.ticket, question)
        heapq.heappush(self._heap, entry)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        elif self._heap[0] is entry:
            self._changed.notify()

    def end(self) -> None:
        """Take no more; under the lock."""
        self._ended = True
        self._heap.clear()
        self._changed.notify()

    def _run(self) -> None:
        while (questions := self._taken()) is not None:
            try:
                self._work(questions)
            except Exception:
                log.exception("events stay undecided until the broker asks: count=%d", len(questions))

    def _taken(self) -> list[Question] | None:
        """Wait for what is due and return it, the earliest first; None at the end. What has another ticket by now is left out."""
        with self._changed:
            while not self._ended:
                now_s = time.monotonic()
                if (early_s := self._next_s - now_s) > 0:
                    self._changed.wait(early_s)
                    continue
                taken: list[Question] = []
                while self._heap and self._heap[0][0] <= now_s and len(taken) < ROWS_MAX:
                    _, ticket, question = heapq.heappop(self._heap)
                    if question.ticket == ticket:
                        taken.append(question)
                if taken:
                    self._next_s = now_s + self._pace_s
                    return taken
                self._changed.wait(self._heap[0][0] - now_s if self._heap else None)
        return None
