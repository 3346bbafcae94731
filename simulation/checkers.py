"""Checkers of messages: functions from facts to the list of what is wrong (empty: all is well). They do nothing else.

The promises: a broker with ``sync`` flush loses nothing that it acknowledged, whatever happens to its machine; with ``async``
flush a killed process loses nothing, and a loss of power loses only what was acknowledged shortly before it. In both, a queue
offset names one message for ever. `simulation.damage.rebuild` adds the comparison of the indexes with the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from simulation.ledger import Acked, Commit, Contents, Ledger, Place, Seen

WAIT_OFF_MS = 50
"""Tolerance of the answer to a pull that found nothing: the way there and back."""


def check(ledger: Ledger, contents: Contents, offsets: dict[tuple[str, Place], int]) -> dict[str, list[str]]:
    """Return what is wrong with a history of messages, by checker.

    ``contents`` is what the queues hold at the end, ``offsets`` the stored offset of each group and queue at the end.
    """
    return {
        "lost": lost(ledger, contents),
        "foreign": foreign(ledger, contents),
        "offsets": offsets_unique_and_dense(ledger, contents),
        "reads": reads_stable(ledger, contents),
        "order": order_kept(ledger),
        "consumer offsets": consumer_offsets(ledger, contents, offsets),
        "waits": waits_kept(ledger),
    }


def waits_kept(ledger: Ledger) -> list[str]:
    """Check that a pull that finds nothing waits its time, whatever clocks show; only a broker that leaves answers before."""
    problems = []
    for waited in ledger.waits:
        begun_ms = waited.at_ms - waited.took_ms
        leaving = any(begun_ms <= fault.at_ms <= waited.at_ms for fault in ledger.faults_of(waited.place.broker, "stop"))
        off_ms = waited.took_ms - waited.wait_ms
        if (off_ms < -WAIT_OFF_MS and not leaving) or off_ms > WAIT_OFF_MS + ledger.network_ms:
            problems.append(
                f"a pull of {waited.place} at {begun_ms} waited {waited.took_ms} ms for a message instead of {waited.wait_ms} ms"
            )
    return problems


def lost(ledger: Ledger, contents: Contents) -> list[str]:
    """Check that every acknowledged message is in its queue, at the offset that was answered, with its body."""
    problems = []
    for ack in ledger.acked:
        queue = contents.get(ack.place)
        message = queue.messages.get(ack.queue_offset) if queue is not None else None
        if message is not None and message.body == ack.body:
            continue
        if (ack.place, ack.queue_offset) in ledger.spoilt:
            continue
        if message is None and may_be_gone(ledger, ack.place.broker, ack.at_ms):
            continue
        what = f"holds {message.body[:40]!r}" if message is not None else "holds nothing"
        problems.append(f"{_name(ack.place, ack.queue_offset)} {what}; acknowledged there at {ack.at_ms}: {ack.body[:40]!r}")
    return problems


def foreign(ledger: Ledger, contents: Contents) -> list[str]:
    """Check that every message in a queue was sent to it."""
    return [
        f"{_name(place, offset)} holds {message.body[:40]!r}, which nobody sent there"
        for place, queue in contents.items()
        for offset, message in queue.messages.items()
        if place not in ledger.attempted.get(message.body, ()) and (place, offset) not in ledger.spoilt
    ]


def offsets_unique_and_dense(ledger: Ledger, contents: Contents) -> list[str]:
    """Check that an offset is given to one message only, and that a queue has no holes, but where `_may_have_holes`."""
    problems = []
    owners: dict[tuple[Place, int], Acked] = {}
    for ack in ledger.acked:
        first = owners.setdefault((ack.place, ack.queue_offset), ack)
        if first.body != ack.body:
            problems.append(f"{_name(ack.place, ack.queue_offset)} was given to {first.body[:40]!r} and to {ack.body[:40]!r}")
    for place, queue in contents.items():
        present = sorted(queue.messages)
        expected = range(queue.min_offset, queue.max_offset)
        if present and not (present[0] >= expected.start and present[-1] < expected.stop):
            problems.append(f"{place} holds offsets {present[0]} to {present[-1]} outside [{expected.start}, {expected.stop})")
        holes = [offset for offset in expected if offset not in queue.messages]
        if holes and not _may_have_holes(ledger, place):
            problems.append(f"{place} has {len(holes)} holes, the first at {holes[0]}")
    return problems


def _may_have_holes(ledger: Ledger, place: Place) -> bool:
    """Return whether power was lost, the log was damaged, or the queue was rebuilt from a log that was cut short."""
    damaged = any(hit.broker == place.broker for hit, _ in ledger.spoilt)
    rebuilt = ledger.faults_of(place.broker, "torn") and ledger.faults_of(place.broker, "vanish")
    return bool(damaged or rebuilt or ledger.faults_of(place.broker, "power"))


def reads_stable(ledger: Ledger, contents: Contents) -> list[str]:
    """Check that a record stays the same, byte by byte, once it was read; only async flush may lose it, with the power."""
    problems = []
    first: dict[tuple[Place, int], Seen] = {}
    ends = ((seen, "") for seen in ledger.seen), ((m, " at the end") for q in contents.values() for m in q.messages.values())
    for sights in ends:
        for seen, when in sights:
            before = first.setdefault((seen.place, seen.queue_offset), seen)
            if (seen.place, seen.queue_offset) in ledger.spoilt:
                continue
            if before.record != seen.record:
                problems.append(
                    f"{_name(seen.place, seen.queue_offset)} was read as {before.body[:40]!r} at {before.at_ms} and"
                    f" as {seen.body[:40]!r} at {seen.at_ms}{when}"
                )
    for (place, offset), seen in first.items():
        queue = contents.get(place)
        if (place, offset) in ledger.spoilt:
            continue
        if (queue is None or offset not in queue.messages) and not may_be_gone(ledger, place.broker, seen.at_ms):
            problems.append(f"{_name(place, offset)} was read at {seen.at_ms} and is gone: {seen.body[:40]!r}")
    return problems


def order_kept(ledger: Ledger) -> list[str]:
    """Check that one sender's acknowledged messages lie in a queue in the order in which it sent them."""
    problems = []
    by_sender: defaultdict[tuple[str, Place], list[Acked]] = defaultdict(list)
    for ack in ledger.acked:
        by_sender[ack.sender, ack.place].append(ack)
    for (sender, place), acks in by_sender.items():
        acks.sort(key=lambda ack: ack.number)
        for before, after in pairwise(acks):
            if before.number < after.number and before.queue_offset >= after.queue_offset:
                problems.append(
                    f"{place}: {sender}'s message {before.number} lies at {before.queue_offset}, its later message"
                    f" {after.number} at {after.queue_offset}"
                )
    return problems


def consumer_offsets(ledger: Ledger, contents: Contents, offsets: dict[tuple[str, Place], int]) -> list[str]:
    """Check that a group's offset is never beyond its queue, and that a confirmed one is kept, except in a crash soon after it.

    Holds for consumers whose offsets only grow between crashes.
    """
    problems = []
    for (group, place), offset in offsets.items():
        queue = contents.get(place)
        if offset > (queue.max_offset if queue is not None else 0):
            problems.append(f"group {group} stands at {offset} of {place}, beyond its end {queue.max_offset if queue else 0}")
    at_end = [Commit(2**62, group, place, offset) for (group, place), offset in offsets.items()]
    commits: defaultdict[tuple[str, Place], list[Commit]] = defaultdict(list)
    for commit in ledger.commits:
        commits[commit.group, commit.place].append(commit)
    for position in [*ledger.positions, *at_end]:
        faults = ledger.faults_of(position.place.broker, "kill", "power", "sync")
        crashes = [fault.at_ms for fault in faults] + unsaved(ledger, position.place.broker)
        for commit in reversed(commits[position.group, position.place]):
            if commit.offset <= position.offset or commit.at_ms >= position.at_ms:
                continue
            if not any(commit.at_ms - 1_000 <= at_ms <= commit.at_ms + ledger.save_window_ms for at_ms in crashes):
                problems.append(
                    f"group {commit.group} committed {commit.offset} of {commit.place} at {commit.at_ms}, later it stood at"
                    f" {position.offset}"
                )
                break
    return problems


def unsaved(ledger: Ledger, broker: str) -> list[int]:
    """Return since when the tables of a broker could not be saved, where a crash came before they were.

    From then on it acknowledges no more progress; what it had acknowledged shortly before is lost as if the crash had come then.
    """
    times = []
    begun = None
    for fault in ledger.faults_of(broker, "unwritable", "writable", "kill", "power", "sync"):
        if fault.kind == "unwritable":
            begun = fault.at_ms if begun is None else begun
        elif fault.kind == "writable":
            begun = None
        elif begun is not None:
            times.append(begun)
    return times


def routes_agree(routes: Iterable[dict[str, str]], brokers: dict[str, str]) -> list[str]:
    """Check that every name server knows every living broker. Each of ``routes`` and ``brokers`` maps names to addresses."""
    return [f"a name server knows {known}, alive are {brokers}" for known in routes if known != brokers]


def may_be_gone(ledger: Ledger, broker: str, at_ms: int, *, by_ms: int | None = None) -> bool:
    """Whether a loss of power may have taken a message that was acknowledged (or read) at a time.

    Only with async flush, and only when the broker had no time to sync it in between. ``by_ms``: only a loss until then counts.
    """
    if ledger.flush != "async":
        return False
    losses = [loss for loss in ledger.faults_of(broker, "power") if by_ms is None or loss.at_ms <= by_ms]
    failed = ledger.faults_of(broker, "sync")
    if failed and losses and losses[-1].at_ms >= at_ms:
        return True  # a failed sync leaves pages that no later sync writes
    return any(
        at_ms <= loss.at_ms + 1_000 and ledger.longest_run_ms(broker, at_ms, loss.at_ms) <= ledger.flush_window_ms
        for loss in losses
    )


def _name(place: Place, offset: int) -> str:
    return f"{place.broker}/{place.topic}/{place.queue_id}@{offset}"
