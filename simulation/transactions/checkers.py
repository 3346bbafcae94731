"""What must hold of every history of transactions: functions from facts to the list of what is wrong. They do nothing else.

``logs`` are what the brokers' logs say at the end, when all is quiet and every live producer was asked. With async flush a loss of
power may take what was not synced yet, a decision too; it never turns one round.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from halfmoon.runtime.server.server import STEP_MS
from simulation.ledger import Contents
from simulation.messages.checkers import may_be_gone
from simulation.transactions.ledger import Asked, Ended, TxLedger
from simulation.transactions.log import COMMITTED, GIVEN_UP, PREPARED, ROLLED_BACK, GivenUpRecord, HalfRecord, TxLog
from simulation.transactions.producers import key_of
from simulation.verdict import by_checker

Logs = dict[str, TxLog]

SLACK_MS = 300
"""What a check, its answer and the turns between them take at most when nothing is wrong."""
SETTLE_MS = 8000
"""How long after a trouble producers and brokers may need to find each other: fresh routes, a request that waits, a heartbeat."""
HISTORY_CHECKS = 15
"""Checks of one half message that a broker remembers one by one."""


def check_transactions(ledger: TxLedger, logs: Logs, contents: Contents) -> list[str]:
    """Return everything that is wrong with a history: each checker's problems with its name before them."""
    problems = {
        "leaked": only_committed_is_visible(ledger, logs, contents),
        "twice": visible_once(logs),
        "repeated": stored_once(ledger, logs),
        "decisions": acknowledged_decisions_hold(ledger, logs),
        "reversed": never_reversed(ledger, logs),
        "ends": every_half_ends(ledger, logs),
        "given up": given_up_for_a_reason(ledger, logs),
        "late": visible_in_time(ledger, logs),
        "early": asked_in_time(ledger, logs),
        "ops": one_op_each(logs),
    }
    return by_checker(problems)


def only_committed_is_visible(ledger: TxLedger, logs: Logs, contents: Contents) -> list[str]:
    """Whatever a reader ever saw, and whatever queues hold at the end, is of a transaction that was committed before."""
    problems = []
    turned = {one.key for one in _turned(ledger, logs)}
    at_end = [seen for queue in contents.values() for seen in queue.messages.values()]
    for seen in [*ledger.messages.seen, *at_end]:
        key = key_of(seen.body)
        if key in ledger.raced or key in turned:
            continue
        outcome = ledger.outcome(key)
        if outcome is None or not outcome.committed or outcome.at_ms > seen.at_ms:
            problems.append(f"{key} was read from {seen.place} at {seen.at_ms}; its database says {outcome}")
    for broker, log in logs.items():
        places = log.by_place()
        for one in log.visible:
            half = places.get(one.half_offset)
            if half is None and one.half_offset < log.first:
                continue
            if half is None or (half.topic, half.queue_id, half.body) != (one.topic, one.queue_id, one.body):
                problems.append(f"{broker}: the record at {one.physical_offset} ({one.key}) is no copy of a half message: {half}")
            elif one.physical_offset < half.physical_offset:
                problems.append(f"{broker}: {one.key} was visible before it was half")
    return problems


def visible_once(logs: Logs) -> list[str]:
    """No half message has two visible records."""
    counts = Counter((broker, one.half_offset, one.key) for broker, log in logs.items() for one in log.visible)
    return [f"{broker}: {key} at {place} is visible {count} times" for (broker, place, key), count in counts.items() if count > 1]


def stored_once(ledger: TxLedger, logs: Logs) -> list[str]:
    """A half message that was sent again under its id lies in a broker's log once, however often it came."""
    problems = []
    for broker, log in logs.items():
        counts = Counter(half.key for half in log.halves.values() if half.key in ledger.repeated and not half.resumed)
        problems += [f"{broker}: {key} was stored {count} times" for key, count in counts.items() if count > 1]
    return problems


def acknowledged_decisions_hold(ledger: TxLedger, logs: Logs) -> list[str]:
    """A second phase that the broker agreed to is what the log says in the end: visible, or settled and not visible.

    What came after giving up counts, and what came after that was resumed.
    """
    outcomes = {broker: log.outcomes() for broker, log in logs.items()}
    problems = []
    for one in ledger.ended:
        outcome = outcomes[one.broker].get(one.index)
        wanted = (COMMITTED,) if one.committed else (ROLLED_BACK, GIVEN_UP)
        if one.code or outcome in wanted or may_be_lost(ledger, logs, one):
            continue
        problems.append(f"{one.broker}: {said(one)} of half message {one.index} ({one.key}) at {one.at_ms}, its state is {outcome}")
    return problems


def never_reversed(ledger: TxLedger, logs: Logs) -> list[str]:
    """A broker never agrees to two different decisions about a half message, and nothing that was visible is rolled back."""
    problems = []
    agreed: defaultdict[tuple[str, int], list[Ended]] = defaultdict(list)
    newest = {broker: log.newest() for broker, log in logs.items()}
    for one in ledger.ended:
        if one.code == 0:
            agreed[one.broker, newest[one.broker].get(one.index, one.index)].append(one)
    for (broker, index), decisions in agreed.items():
        first = decisions[0]
        for one in decisions[1:]:
            if one.committed != first.committed and not may_be_lost(ledger, logs, first):
                problems.append(f"{broker}: half message {index} ({one.key}): {said(first)}, then {said(one)}, both agreed to")
    seen = {key_of(seen.body): seen for seen in ledger.messages.seen}
    for one in ledger.ended:
        if one.code == 0 and not one.committed and one.key in seen and not may_be_lost(ledger, logs, one):
            problems.append(f"{one.broker}: {one.key} was read at {seen[one.key].at_ms} and its rollback was agreed to")
    return problems


def every_half_ends(ledger: TxLedger, logs: Logs) -> list[str]:
    """What was acknowledged as half is still known, and decided as its database says, or given up; with a copy, if by nobody."""
    problems = []
    by_hand = {(one.broker, one.index) for one in ledger.by_hand}
    turned = {(one.broker, one.index) for one in _turned(ledger, logs)}
    for half in ledger.halves:
        log = logs[half.broker]
        record = log.halves.get(half.index)
        if (record is not None and record.key == half.key) or half.physical_offset < log.first:
            continue
        if not may_be_gone(ledger.messages, half.broker, half.at_ms):
            problems.append(f"{half.broker}: half message {half.index} ({half.key}) was acknowledged and is {record}")
    for broker, log in logs.items():
        given_up = {one.half_offset for one in log.given_up}
        for index, state in log.states().items():
            key, copied = log.halves[index].key, log.halves[index].physical_offset in given_up
            wanted = _wanted(ledger, key)
            if state == PREPARED:
                problems.append(f"{broker}: half message {index} ({key}) is pending in the end, wanted {wanted}")
            elif key in ledger.never and not copied and (broker, index) not in by_hand:
                problems.append(f"{broker}: half message {index} ({key}) was decided by nobody, has state {state} and no copy")
            elif wanted is not None and state != wanted and not copied and (broker, index) not in turned:
                problems.append(f"{broker}: half message {index} ({key}) has state {state}, wanted {wanted}")
    return problems


def given_up_for_a_reason(ledger: TxLedger, logs: Logs) -> list[str]:
    """Given up is only what was asked about as often as may be, each time with somebody there to ask, or what a full disk needs.

    No broker lives so long here that age alone could give up anything.
    """
    problems = []
    by_hand = ledger.checks_by_hand
    received = _most_in_a_row(ledger)
    for broker, log in logs.items():
        losses, places = ledger.messages.faults_of(broker, "power", "kill", "sync"), log.by_place()
        for one in log.given_up:
            what = f"{broker}: {one.key} was given up with {one.checks} checks ({one.reason!r})"
            for_room = broker in ledger.crowded and one.reason.startswith("its log file goes")
            if one.checks < ledger.checks_max and not for_room:
                problems.append(f"{what}, of {ledger.checks_max}")
            half = places.get(one.half_offset)
            most = ledger.checks_max + (by_hand[broker, half.index] if half is not None else 1000)
            row = counted(one)
            if row < min(ledger.checks_max, HISTORY_CHECKS) and not for_room:
                problems.append(f"{what}, of which {row} count, of {ledger.checks_max}: its history is {one.history}")
            if row > most or (one.checks > most and one.key not in ledger.opened):
                problems.append(f"{what}, more than {most}: its history is {one.history}")
            if len(one.history) != min(one.checks, HISTORY_CHECKS) or not one.reason:
                problems.append(f"{what}, its history is {one.history}")
            nobody = [second for second, _ in one.history if not _somebody(ledger, broker, one.group, second)]
            if nobody:
                problems.append(f"{what}, and nobody was there to be asked at {nobody}")
        if not losses and broker not in ledger.filled:
            problems += [
                f"{broker}: a producer was asked {count} times in a row about half message {index}, and never said that it is open"
                for (at, index), count in received.items()
                if at == broker and count > ledger.checks_max + by_hand[broker, index]
            ]
    return problems


def visible_in_time(ledger: TxLedger, logs: Logs) -> list[str]:
    """Committed and not told: visible once it is old enough and one interval passed, while broker and producers were well.

    Times are the world's: where a broker's clock stepped forward, its half messages are old enough earlier, never later; where it
    was set back, ages and the pause between two checks pass at half speed.
    """
    unknown: dict[tuple[str, int], int] = {}
    for asked in ledger.asked:
        if asked.answer in (0, -1):
            unknown[asked.broker, asked.index] = asked.at_ms
    problems = []
    for broker, log in logs.items():
        troubles = troubles_of(ledger, broker)
        places, copied = log.by_place(), {one.half_offset for one in log.given_up}
        pacing_ms = 1000 * len(places) // ledger.checks_per_second if ledger.checks_per_second < 500 else 0
        speed = 2 if broker in ledger.set_back else 1
        for one in log.visible:
            half, outcome = places.get(one.half_offset), ledger.outcome(one.key)
            if half is None or outcome is None or one.key in ledger.never:  # its producers never say what an operator entered
                continue
            if one.half_offset in copied:  # nobody asked any more
                continue
            stored_ms = ledger.stored_between(broker, half.physical_offset, half.store_ms)[1]
            visible_ms = ledger.stored_between(broker, one.physical_offset, one.store_ms)[0]
            ready = max(stored_ms + speed * ledger.minimum_age_ms, outcome.at_ms, unknown.get((broker, half.index), 0))
            limit = ready + speed * ledger.interval_ms + pacing_ms + SLACK_MS
            for begin, end in troubles:
                if begin <= limit and end >= stored_ms:
                    limit = max(limit, end + SETTLE_MS + speed * ledger.interval_ms + pacing_ms + SLACK_MS)
            if visible_ms > limit:
                problems.append(
                    f"{broker}: half message {half.index} ({one.key}) of {stored_ms} was committed at {outcome.at_ms}, could be"
                    f" visible by {limit} and was at {visible_ms}"
                )
    return problems


def asked_in_time(ledger: TxLedger, logs: Logs) -> list[str]:
    """No check before a half message is old enough, and no second one within an interval: clocks that are set end no duration.

    Ages are those of the broker's clock: where that stepped forward, or was set to before the message, its first check is early.
    """
    problems = []
    last: dict[tuple[str, int], Asked] = {}
    for asked in ledger.asked:
        at, log = (asked.broker, asked.index), logs[asked.broker]
        half, before = log.halves.get(asked.index), last.get(at)
        last[at] = asked
        if half is None or half.key != asked.key or ledger.checks_by_hand[at]:
            continue
        stored_ms = ledger.stored_between(asked.broker, half.physical_offset, half.store_ms)[0]
        clock = ledger.clocks.get(asked.broker)
        moved = clock is not None and (
            clock.gained_ms(stored_ms, asked.at_ms) > STEP_MS or half.store_ms > clock.shown_at(asked.at_ms)
        )
        what = f"{asked.broker}: half message {asked.index} ({asked.key}) of {stored_ms} was asked about at {asked.at_ms}"
        if before is None and not moved and asked.at_ms < stored_ms + ledger.minimum_age_ms - STEP_MS:
            problems.append(f"{what}, of age it must be {ledger.minimum_age_ms} ms")
        if ledger.checks_per_second < 500 or before is None:  # what is paced is asked about late, and then not
            continue
        unwell = any(
            begin < end and begin <= asked.at_ms and end >= before.at_ms for begin, end in troubles_of(ledger, asked.broker)
        )
        if not unwell and asked.at_ms < before.at_ms + ledger.interval_ms - STEP_MS - SLACK_MS // 2:
            problems.append(f"{what}, and the time before at {before.at_ms}")
    return problems


def one_op_each(logs: Logs) -> list[str]:
    """Each decided half message has one op record, behind its visible record, or behind its copy; no other has one."""
    problems = []
    for broker, log in logs.items():
        states, places = log.states(), log.by_place()
        copied = {one.half_offset for one in log.given_up}
        visible_at = {
            places[one.half_offset].index: one.physical_offset
            for one in log.visible
            if one.half_offset in places and one.half_offset not in copied
        }
        counts: Counter[int] = Counter()
        for place, index in log.ops:
            counts[index] += 1
            if place < visible_at.get(index, 0):
                problems.append(f"{broker}: the op record of half message {index} lies before its visible record")
        for index, state in states.items():
            if counts[index] != (state != PREPARED):
                problems.append(f"{broker}: half message {index} has state {state} and {counts[index]} op records")
    return problems


# ---------------------------------------------------------------- what the checkers ask


def counted(one: GivenUpRecord) -> int:
    """Return how many checks count of those that a copy remembers: those after the last answer that it is open."""
    answers = [answer for _, answer in one.history]
    return len(answers) if "OPEN" not in answers else answers[::-1].index("OPEN")


def _most_in_a_row(ledger: TxLedger) -> Counter[tuple[str, int]]:
    """Return for each half message how many checks in a row producers got and answered otherwise than that it is open."""
    row, most = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for asked in ledger.asked:
        at = asked.broker, asked.index
        row[at] = 0 if asked.answer == -1 else row[at] + 1
        most[at] = max(most[at], row[at])
    return most


def _wanted(ledger: TxLedger, key: str) -> int | None:
    """Return the state that a transaction's half messages should come to; None: any."""
    outcome = ledger.outcome(key)
    if key in ledger.raced:
        return None
    return COMMITTED if outcome is not None and outcome.committed else ROLLED_BACK


def said(one: Ended) -> str:
    """Return a decision in words."""
    return "a commit" if one.committed else "a rollback"


def may_be_lost(ledger: TxLedger, logs: Logs, one: Ended) -> bool:
    """Whether a loss of power or damage may have taken a decision, or the log has let its half message go."""
    half: HalfRecord | None = logs[one.broker].halves.get(one.index)
    gone = half is None and bool(logs[one.broker].first)
    return gone or (one.broker, one.index) in ledger.damaged or may_be_gone(ledger.messages, one.broker, one.at_ms)


def _turned(ledger: TxLedger, logs: Logs) -> list[Ended]:
    """Return the contradictions that a broker agreed to because a loss of power had taken the decision before."""
    agreed: defaultdict[tuple[str, int], list[Ended]] = defaultdict(list)
    for one in ledger.ended:
        if one.code == 0:
            agreed[one.broker, one.index].append(one)
    return [
        later
        for first, *others in agreed.values()
        for later in others
        if later.committed != first.committed and may_be_lost(ledger, logs, first)
    ]


def _somebody(ledger: TxLedger, broker: str, group: str, second: int) -> bool:
    """Whether some producer of a group lived at some time of a second of a broker's clock."""
    return any(
        life.group == group and life.begin_ms < end_ms + 1 and (life.end_ms is None or life.end_ms >= begin_ms)
        for life in ledger.alive
        for begin_ms, end_ms in ledger.seconds(broker, second)
    )  # fmt: skip


def troubles_of(ledger: TxLedger, broker: str) -> list[tuple[int, int]]:
    """Return the times in which a broker did not run or something else was wrong, in order."""
    found = [(trouble.begin_ms, trouble.end_ms) for trouble in ledger.troubles]
    since: int | None = None
    for fault in ledger.messages.faults_of(broker, "kill", "power", "stop", "left", "sync", "start"):
        if fault.kind != "start":
            since = fault.at_ms if since is None else since
        elif since is not None:
            found.append((since, fault.at_ms))
            since = None
    return sorted(found)
