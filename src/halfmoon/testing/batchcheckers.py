"""What must hold of batch transactions: every input appears once, whole batches, in order; nothing is left behind. Judges only."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from halfmoon.broker.broker import Broker
from halfmoon.testing.batchdrivers import Query
from halfmoon.testing.ledger import Contents

PROBLEMS_MAX = 10


def check_batches(queries: list[Query], contents: Contents) -> list[str]:
    """Return what is wrong with the topics of a history at whose end every query was done."""
    problems: list[str] = []
    for query in queries:
        problems += [f"digest: {problem}" for problem in query.problems]
        if query.done + 1 < query.target:
            problems.append(f"progress: {query.id} came to batch {query.done} of {query.target}")
            continue
        found: dict[str, list[str]] = {"lost": [], "twice": [], "order": []}
        expected, mine, there = query.expected(), f"{query.id}/".encode(), Counter[bytes]()
        order = {body: number for number, body in enumerate(expected)}
        for place, queue in contents.items():
            bodies = [seen.body for _, seen in sorted(queue.messages.items()) if seen.body.startswith(mine)]
            there.update(bodies)
            found["order"] += [
                f"{place} has {after.decode()} behind {before.decode()}"
                for before, after in pairwise(bodies)
                if order.get(before, 0) > order.get(after, 0)
            ]
        found["lost"] = [f"{body.decode()} is nowhere" for body in order.keys() - there.keys()]
        found["twice"] = [f"{body.decode()} is there {times} times" for body, times in there.items() if times > (body in order)]
        problems += [f"{name}: {problem}" for name, those in found.items() for problem in those[:PROBLEMS_MAX]]
    return problems


def left_behind(name: str, broker: Broker) -> list[str]:
    """Return what a broker still keeps of batches when all of them are decided and applied long since."""
    streams = broker.batches.streams
    found = [f"left: {name} keeps {streams.attempt_count} attempts"] if streams.attempt_count else []
    if streams.piece_count or streams.held_bytes:
        found.append(f"left: {name} counts {streams.piece_count} pieces and {streams.held_bytes} bytes")
    for stream in streams.table.values():
        if stream.applying:
            found.append(f"left: {name} publishes {sorted(stream.applying)} of {stream.name}")
        if any(decision.waiting for decision in stream.decisions.values()):
            found.append(f"left: {name} waits for participants of {stream.name}")
    return found


def sums_agree(broker: Broker) -> list[str]:
    """Return what is wrong with the sums that a broker keeps beside its attempts."""
    streams = broker.batches.streams
    held = [attempt for stream in streams.table.values() for attempt in stream.held()]
    sums = (len(held), sum(len(each.pieces) for each in held), sum(each.size_bytes for each in held))
    kept = (streams.attempt_count, streams.piece_count, streams.held_bytes)
    return [] if sums == kept else [f"sums: {kept} are kept, {sums} are there"]
