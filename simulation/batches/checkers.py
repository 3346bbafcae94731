"""Checkers of batch transactions: every input appears once, whole batches, in order; nothing is left behind.

A message that asks to come later is parked once and comes once, not before its time; order is asked only of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

from halfmoon.broker.broker import Broker
from halfmoon.model import StoredMessage
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK
from halfmoon.wire.record import decode_record
from simulation.batches.queries import LEVELS_MS, Query, QueryRow
from simulation.ledger import Contents, Place

Parked = dict[str, list[int]]
"""Name of a message → when one broker parked it for a batch, by its clock."""


class Copy(NamedTuple):
    """A record of a real topic that carries a message of a query."""

    place: Place
    message: StoredMessage


class BatchEnd(NamedTuple):
    """State at the end of a history.

    ``copies`` by the names of messages, in each queue in its order; messages that each broker ``parked``; and how often each lost
    its power.
    """

    copies: dict[str, list[Copy]]
    parked: dict[str, Parked]
    powers: Counter[str]


def copies(contents: Contents) -> dict[str, list[Copy]]:
    """Return the records of all queues by the names that their messages have as a key."""
    records: dict[str, list[Copy]] = {}
    for place, queue in contents.items():
        for _, seen in sorted(queue.messages.items()):
            message = decode_record(memoryview(seen.record))
            records.setdefault(message.properties.get("KEYS", ""), []).append(Copy(place, message))
    return records


def parked(broker: Broker) -> Parked:
    """Return what a broker parked for batches, delivered or not."""
    times: Parked = {}
    for record in broker.delays.parked_behind(-1):
        message = decode_record(record)
        if message.prepared_transaction_offset:  # else it was not parked for a batch, or stored anew by the timer
            times.setdefault(message.properties.get("KEYS", ""), []).append(message.store_ms)
    return times


def check_batches(queries: list[Query], end: BatchEnd) -> dict[str, list[str]]:
    """Return what is wrong, by checker, with the topics of a history at whose end every query was done."""
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for query in queries:
        problems["told"] += query.problems
        if query.done + 1 < query.target:
            problems["progress"].append(f"{query.id} came to batch {query.done} of {query.target}")
        else:
            for checker, those in _check_query(query, end).items():
                problems[checker] += those
    strangers = [name for name in end.copies if not any(name.startswith(f"{query.id}/") for query in queries)]
    problems["body"] += [f"{name!r} is the key of no message" for name in strangers]
    return problems


def _check_query(query: Query, end: BatchEnd) -> dict[str, list[str]]:
    """Return what is wrong with the messages of a query that is done, by checker."""
    rows = query.expected()
    there = {name: those for name, those in end.copies.items() if name.startswith(f"{query.id}/")}
    stored = [(row, copy) for row in rows for copy in there.get(row.name, [])]
    twice = [problem for row in rows for problem in _twice(row, there.get(row.name, []), end)]
    return {
        "lost": [f"{row.name} is nowhere" for row in rows if row.name not in there],
        "twice": twice + [f"{name} is of no batch" for name in there.keys() - {row.name for row in rows}],
        "order": _order(rows, there),
        "place": [f"{row.name} is at {copy.place}" for row, copy in stored if copy.place not in query.places(row)],
        "early": [problem for row, copy in stored for problem in _early(query, row, copy, end)],
        "body": [problem for row, copy in stored for problem in _changed(row, copy.message)],
    }


def _twice(row: QueryRow, there: list[Copy], end: BatchEnd) -> list[str]:
    """Check that a message is published once: stored, or parked and delivered once, or again after a loss of power."""
    waited = {broker: len(those[row.name]) for broker, those in end.parked.items() if row.name in those}
    stored = sum(copy.message.prepared_transaction_offset != 0 for copy in there)
    again = sum(end.powers[broker] for broker in waited)
    problems = [f"{row.name} is there {len(there)} times"] if len(there) > 1 + again else []
    if stored + sum(waited.values()) > 1:
        problems.append(f"{row.name} is published {stored} times and parked at {waited}")
    return problems


def _order(rows: list[QueryRow], there: dict[str, list[Copy]]) -> list[str]:
    """Check that messages which do not wait lie in each queue in the order of the query."""
    problems = []
    queues: dict[Place, list[tuple[int, int, str]]] = {}
    for number, row in enumerate(rows):
        for copy in there.get(row.name, []) if not row.waits else ():
            queues.setdefault(copy.place, []).append((copy.message.queue_offset, number, row.name))
    for place, queue in queues.items():
        pairs = pairwise(sorted(queue))
        problems += [f"{place} has {after[2]} behind {before[2]}" for before, after in pairs if before[1] > after[1]]
    return problems


def _early(query: Query, row: QueryRow, copy: Copy, end: BatchEnd) -> list[str]:
    """Check that a level counts from publication: not before anybody asked for a decision, nor before the message was parked."""
    broker, stored_ms = copy.place.broker, copy.message.store_ms
    due_ms = row.deliver_ms
    if row.level:
        times = end.parked[broker].get(row.name, [])
        if not times:
            return [f"{row.name} of level {row.level} came at once"]
        asked_ms = query.asked_ms.get(row.batch, {}).get(broker, 0)
        due_ms = max(asked_ms, min(times)) + LEVELS_MS[row.level - 1]
    return [f"{row.name} came {due_ms - stored_ms} ms early: {row}"] if stored_ms < due_ms else []


def _changed(row: QueryRow, message: StoredMessage) -> list[str]:
    """Check that a message has its body, compressed if it was, and the flag that says so."""
    flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
    problems = [f"{row.name} has the flag {flag:#x}, not {row.sys_flag:#x}"] if flag != row.sys_flag else []
    return problems + ([f"{row.name} has the body {message.body!r}"] if message.body != row.body else [])


def left_behind(name: str, broker: Broker) -> list[str]:
    """Return what a broker still keeps of batches when all of them are decided and applied long since."""
    streams = broker.batches.streams
    problems = [f"{name} keeps {streams.attempt_count} attempts"] if streams.attempt_count else []
    if streams.piece_count or streams.held_bytes:
        problems.append(f"{name} counts {streams.piece_count} pieces and {streams.held_bytes} bytes")
    for stream in streams.table.values():
        if stream.applying:
            problems.append(f"{name} publishes {sorted(stream.applying)} of {stream.name}")
        if any(decision.waiting for decision in stream.decisions.values()):
            problems.append(f"{name} waits for participants of {stream.name}")
    return problems


def out_of_place(name: str, broker: Broker) -> list[str]:
    """Return which ids a broker has decided batches of that another one coordinates."""
    return [
        f"{name} has decided batch {stream.last} of {stream.name}, which {stream.coordinator or 'nobody'} coordinates"
        for stream in broker.batches.streams.table.values()
        if stream.last >= 0 and stream.coordinator != name
    ]


def sums_agree(name: str, broker: Broker) -> list[str]:
    """Return what is wrong with the sums that a broker keeps beside its attempts."""
    streams = broker.batches.streams
    held = [attempt for stream in streams.table.values() for attempt in stream.held()]
    sums = (len(held), sum(len(attempt.pieces) for attempt in held), sum(attempt.size_bytes for attempt in held))
    kept = (streams.attempt_count, streams.piece_count, streams.held_bytes)
    return [] if sums == kept else [f"{name}: {kept} are kept, {sums} are there"]
