"""Brokers and disks with a fault planted into their transactions. Each breaks one promise, as a real mistake would."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.names import OP_TOPIC
from halfmoon.broker.send.replies import StoredGroup
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.transactions.half import committed, half_message
from halfmoon.hot import ENTRY, Group, Messages, tag_hash
from halfmoon.instant import BEGINNING
from halfmoon.ports import Buffer
from halfmoon.store.layout import OP_PROPERTIES
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended
from halfmoon.store.transactions.state_table import State
from tests.simulation.faulty import faulty_broker
from tests.simulation.planted import FaultyDisk, FaultyFile, SimFile


@faulty_broker
def eager(broker: Any) -> None:
    """A broker that takes a producer's *I do not know* for a commit."""

    def taken(request: Any) -> None:
        fields = request.command.fields
        fields["commitOrRollback"] = {"8": "8", "12": "12"}.get(fields["commitOrRollback"], "8")
        broker.transactions.decisions.take(request)

    broker._gathering[37] = taken


def make_visible(broker: Any, half: Any) -> None:
    """Write the visible record of a half message, whatever was decided about it."""
    message = half_message(whole_record(broker.store.record(half.physical_offset)))
    broker.sends.append(message.topic, message.queue_id, committed([message]), broker.store._date)


def _commit_over(broker: Any, decided: State) -> None:
    """Carry a commit out though the half message has been decided so."""
    decisions = broker.transactions.decisions
    judged = decisions._judged

    def judge(completion: Any, now: int) -> Any:
        half = broker.transactions.index.half(completion.index)
        if half is not None and half.state is decided and completion.committed:
            make_visible(broker, half)
        return judged(completion, now)

    decisions._judged = judge  # type: ignore[method-assign]


@faulty_broker
def repeating(broker: Any) -> None:
    """A broker without a memory of its commits: a repeated one writes a second visible record, as the original does."""
    _commit_over(broker, State.COMMITTED)


@faulty_broker
def turning(broker: Any) -> None:
    """A broker that lets a commit follow a rollback: the message becomes visible after all."""
    _commit_over(broker, State.ROLLED_BACK)


@faulty_broker
def polite(broker: Any) -> None:
    """A broker that agrees to everything, also to what it refuses."""
    decisions = broker.transactions.decisions
    decisions._refuse = lambda asked, refusal: decisions._succeed([asked] if asked else [])  # type: ignore[method-assign]


@faulty_broker
def hasty(broker: Any) -> None:
    """A broker that agrees to a decision, with sync flush, before it is durable."""
    decisions = broker.transactions.decisions

    class AtOnce:
        can_reply = True
        now = BEGINNING

    decisions._pending_replies = AtOnce()  # type: ignore[assignment]


@faulty_broker
def forgetful(broker: Any) -> None:
    """A broker that acknowledges half messages, now and then, and never stores them."""
    sends, gate, chance = broker.sends, broker.gate, Random(1)
    store = gate.store_groups

    def stored(groups: list[Group], now: int) -> None:
        kept = []
        for half in groups:
            _, queue_id, _, messages = half
            if half[2] and chance.random() < 0.03:
                nowhere = Messages.lying_at([10**9 + number for number in range(len(messages))])
                for sender in messages.senders:
                    nowhere.sent(*sender)
                sends.acknowledge([StoredGroup(nowhere, queue_id, 10**6 + chance.randrange(10**6))])
            else:
                kept.append(half)
        if kept:
            store(kept, now)

    gate.store_groups = stored  # type: ignore[method-assign]


@faulty_broker
def incurious(broker: Any) -> None:
    """A broker that never asks a producer anything."""
    broker.transactions.checks._send = lambda *given: None  # type: ignore[method-assign]


class _Everybody(frozenset[int]):
    def __contains__(self, group: object) -> bool:
        return True


@faulty_broker
def lonely(broker: Any) -> None:
    """A broker that counts a check also when there was nobody to send it to, as the original does."""
    checks, index = broker.transactions.checks, broker.transactions.index
    ask, learn = checks._ask_in_turn, checks._learn_live

    def learned(now: Any) -> None:
        learn(now)
        checks._live = _Everybody()

    def asked(half: Any, parts: Any, now: Any) -> Any:
        if not checks._members(parts)[0]:
            index.checked(half.index, now.date // 1000, 0)
        return ask(half, parts, now)

    checks._learn_live, checks._ask_in_turn = learned, asked  # type: ignore[method-assign]


def impatient(settings: BrokerSettings, *arguments: Any) -> Any:
    """A broker that gives up after two checks, whatever it is told."""
    return Broker(replace(settings, transaction_check_max=2), *arguments)


@faulty_broker
def silent(broker: Any) -> None:
    """A broker that gives up without a copy: dropped in silence."""
    checks, expire = broker.transactions.checks, broker.transactions.expiry.expire
    checks._expire = lambda half, parts, reason, now: expire(half, None, reason, now)


@faulty_broker
def hurried(broker: Any) -> None:
    """A broker that takes a half message that is not durable yet for one whose record is lost."""
    checks, store = broker.transactions.checks, broker.store
    checks._store = _NeverWaiting(store)  # type: ignore[assignment]


class _NeverWaiting:
    holds_back = False

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def lazy(settings: BrokerSettings, *arguments: Any) -> Any:
    """A broker that looks at what is pending only every fourth time."""
    return Broker(replace(settings, transaction_check_interval_ms=4 * settings.transaction_check_interval_ms), *arguments)


@faulty_broker
def doubling(broker: Any) -> None:
    """A broker that writes some op records twice."""
    append_all = broker.sends.append_all

    def doubled(groups: Any, now: int, *, in_order: bool = False) -> list[Any]:
        outcomes = append_all(groups, now, in_order=in_order)
        if groups[-1][0] == OP_TOPIC and isinstance(outcomes[-1], Appended):
            index = int(whole_record(broker.store.record(outcomes[-1].physical_offsets[0])).body)
            if index % 5 == 0:
                again = Messages.numbers([index], OP_PROPERTIES, now, broker.context.host, tag_hash(b"d"))
                append_all([(OP_TOPIC, 0, "", again)], now)
        return outcomes

    broker.sends.append_all = doubled  # type: ignore[method-assign]


@faulty_broker
def opless(broker: Any) -> None:
    """A broker that writes no op records for what was committed."""
    append_all = broker.sends.append_all

    def appended(groups: list[Group], now: int, *, in_order: bool = False) -> list[Appended | Exception]:
        if not in_order:
            return append_all(groups, now)
        *visible, (topic, queue_id, _, ops) = groups
        committed = sum(len(messages) for *_, messages in visible)
        left = Messages(ops.drafts[committed:])
        stored = append_all([*visible, *([(topic, queue_id, "", left)] if len(left) else [])], now, in_order=True)
        if all(isinstance(one, Appended) for one in stored):
            last = stored.pop() if len(left) else Appended(0, [], broker.store.end_offset, b"")
            assert isinstance(last, Appended)
            entries = ENTRY.pack(0, 0, 0) * committed + last.entries
            stored.append(Appended(0, [0] * committed + last.physical_offsets, last.end_offset, entries))
        return stored

    broker.sends.append_all = appended  # type: ignore[method-assign]


@faulty_broker
def opfirst(broker: Any) -> None:
    """A broker that writes the op record before the visible one: a crash in between loses the message."""
    append_all = broker.sends.append_all

    def appended(groups: list[Group], now: int, *, in_order: bool = False) -> list[Appended | Exception]:
        if not in_order:
            return append_all(groups, now)
        ops = append_all(groups[-1:], now)
        return append_all(groups[:-1], now, in_order=True) + ops

    broker.sends.append_all = appended  # type: ignore[method-assign]


class WrongGroupsDisk(FaultyDisk):
    """Changes some records of the state table: another producer group."""

    class _File(FaultyFile):
        def write(self, at: int, data: Buffer) -> None:
            changed = bytearray(data)
            if len(data) >= 24 and at % 240 == 0:
                changed[19] ^= 1
            self._file.write(at, changed)

    def faulty(self, file: SimFile) -> Any:
        return self._File(file) if file.path.startswith("transaction/statetable/") else file


class ForgettingUnitsDisk(FaultyDisk):
    """Loses some writes to the redo log."""

    class _File(FaultyFile):
        def write(self, at: int, data: Buffer) -> None:
            if at % 300 != 0:
                self._file.write(at, data)

    def faulty(self, file: SimFile) -> Any:
        return self._File(file) if file.path.startswith("transaction/redolog/") else file
