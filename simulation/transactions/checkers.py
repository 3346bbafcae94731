"""Checkers of transactions: functions from facts to the list of what is wrong. They do nothing else.

``logs`` are what the brokers' logs say at the end, when all is quiet and every live producer was asked. With async flush a loss of
power may take what was not synced yet, a decision too; it never turns one round.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from simulation.checkers import may_be_gone
from simulation.ledger import Contents
from simulation.transactions.ledger import CheckRecord, DecisionRecord, TxLedger
from simulation.transactions.log import COMMITTED, EXPIRED, PREPARED, ROLLED_BACK, ExpiredRecord, HalfRecord, TxLog
from simulation.transactions.producers import key_of

Logs = dict[str, TxLog]

STEP_MS = 250
"""A clock that moved by less does not count as set: dates to the second, and the way there and back, are as far off."""
SLACK_MS = 300
"""Longest duration of a check, its answer and the turns between them when nothing is wrong."""
SETTLE_MS = 8000
"""How long after a trouble producers and brokers may need to find each other: fresh routes, a request that waits, a heartbeat."""
HISTORY_CHECKS = 15
"""Checks of one half message that a broker remembers one by one."""


def check_transactions(ledger: TxLedger, logs: Logs, contents: Contents) -> dict[str, list[str]]:
    """Return what is wrong, by checker."""
    return {
        "leaked": only_committed_is_visible(ledger, logs, contents),
        "twice": visible_once(logs),
        "repeated": stored_once(ledger, logs),
        "decisions": acknowledged_decisions_hold(ledger, logs),
        "reversed": never_reversed(ledger, logs),
        "ends": every_half_ends(ledger, logs),
        "expired": expired_for_a_reason(ledger, logs),
        "late": visible_in_time(ledger, logs),
        "early": asked_in_time(ledger, logs),
        "ops": one_op_each(logs),
        "open": open_costs_no_check(ledger, logs),
        "honoured": decided_after_all(ledger, logs),
        "delivered": delivered_once(logs),
    }


def only_committed_is_visible(ledger: TxLedger, logs: Logs, contents: Contents) -> list[str]:
    """Check that every message a reader saw, or a queue holds at the end, is of a transaction that was committed before."""
    problems = []
    excused = ledger.raced | {decision.key for decision in _turned(ledger, logs)}
    at_end = [seen for queue in contents.values() for seen in queue.messages.values()]
    for seen in [*ledger.messages.seen, *at_end]:
        key = key_of(seen.body)
        outcome = ledger.outcome(key)
        if key not in excused and (outcome is None or not outcome.committed or outcome.at_ms > seen.at_ms):
            problems.append(f"{key} was read from {seen.place} at {seen.at_ms}; its database says {outcome}")
    return problems + [problem for broker, log in logs.items() for problem in _no_copies(broker, log)]


def _no_copies(broker: str, log: TxLog) -> list[str]:
    """Check that every visible record is a copy of a half message that was there before."""
    problems = []
    places = log.by_place()
    for record in log.visible:
        half = places.get(record.half_offset)
        if half is None and record.half_offset < log.first:
            continue
        if half is None or (half.topic, half.queue_id, half.body) != (record.topic, record.queue_id, record.body):
            what = f"the record at {record.physical_offset} ({record.key})"
            problems.append(f"{broker}: {what} is no copy of a half message: {half}")
        elif record.physical_offset < half.physical_offset:
            problems.append(f"{broker}: {record.key} was visible before it was half")
    return problems


def visible_once(logs: Logs) -> list[str]:
    """Check that no half message has two visible records."""
    counts = Counter((broker, record.half_offset, record.key) for broker, log in logs.items() for record in log.visible)
    return [f"{broker}: {key} at {place} is visible {count} times" for (broker, place, key), count in counts.items() if count > 1]


def stored_once(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a half message sent again under its id lies in a broker's log once, however often it came."""
    problems = []
    for broker, log in logs.items():
        counts = Counter(half.key for half in log.halves.values() if half.key in ledger.repeated and not half.resumed)
        problems += [f"{broker}: {key} was stored {count} times" for key, count in counts.items() if count > 1]
    return problems


def acknowledged_decisions_hold(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that the log ends as a second phase that was agreed to: visible, or settled and not visible.

    What came after it expired counts, and what came after that was resumed.
    """
    outcomes = {broker: log.outcomes() for broker, log in logs.items()}
    problems = []
    for decision in ledger.agreed():
        outcome = outcomes[decision.broker].get(decision.index)
        wanted = (COMMITTED,) if decision.committed else (ROLLED_BACK, EXPIRED)
        if outcome not in wanted and not may_be_lost(ledger, logs, decision):
            half = f"half message {decision.index} ({decision.key})"
            problems.append(f"{decision.broker}: {_named(decision)} of {half} at {decision.at_ms}, its state is {outcome}")
    return problems


def never_reversed(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a broker never agrees to two different decisions about a half message, and rolls back nothing that was read.

    With async flush it may, behind a loss of power that took the first of the two.
    """
    problems = []
    agreed: defaultdict[tuple[str, int], list[DecisionRecord]] = defaultdict(list)
    newest = {broker: log.newest() for broker, log in logs.items()}
    for decision in ledger.agreed():
        agreed[decision.broker, newest[decision.broker].get(decision.index, decision.index)].append(decision)
    for (broker, index), (first, *others) in agreed.items():
        for later in others:
            if later.committed != first.committed and not may_be_lost(ledger, logs, first, by_ms=later.at_ms):
                half = f"half message {index} ({later.key})"
                problems.append(f"{broker}: {half}: {_named(first)}, then {_named(later)}, both agreed to")
    read_at: defaultdict[str, list[int]] = defaultdict(list)
    for seen in ledger.messages.seen:
        read_at[key_of(seen.body)].append(seen.at_ms)
    for decision in ledger.agreed():
        for read_ms in read_at[decision.key] if not decision.committed else ():
            # Whichever came first may be what was lost.
            first = decision._replace(at_ms=min(decision.at_ms, read_ms))
            if not may_be_lost(ledger, logs, first, by_ms=max(decision.at_ms, read_ms)):
                problems.append(f"{decision.broker}: {decision.key} was read at {read_ms} and its rollback was agreed to")
    return problems


def every_half_ends(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that an acknowledged half message is known, and decided as its database says, or expired; with a copy, if by nobody."""
    problems = []
    for half in ledger.halves:
        log = logs[half.broker]
        record = log.halves.get(half.index)
        if (record is not None and record.key == half.key) or half.physical_offset < log.first:
            continue
        if not may_be_gone(ledger.messages, half.broker, half.at_ms):
            problems.append(f"{half.broker}: half message {half.index} ({half.key}) was acknowledged and is {record}")
    by_hand = {(decision.broker, decision.index) for decision in ledger.by_hand}
    turned = {(decision.broker, decision.index) for decision in _turned(ledger, logs)}
    for broker, log in logs.items():
        copied = log.copied()
        for index, state in log.states().items():
            half_record = log.halves[index]
            if half_record.physical_offset in copied and state != PREPARED:
                continue
            problem = _ended_otherwise(ledger, half_record.key, state, (broker, index) in by_hand, (broker, index) in turned)
            problems += [f"{broker}: half message {index} ({half_record.key}) {problem}"] if problem else []
    return problems


def _ended_otherwise(ledger: TxLedger, key: str, state: int, by_hand: bool, turned: bool) -> str:
    """Return what is wrong with the state of a half message that has no copy ('': nothing)."""
    wanted = _wanted(ledger, key)
    if state == PREPARED:
        return f"is pending in the end, wanted {wanted}"
    if key in ledger.never and not by_hand:
        return f"was decided by nobody, has state {state} and no copy"
    return f"has state {state}, wanted {wanted}" if wanted not in (None, state) and not turned else ""


def expired_for_a_reason(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a half message expires only after all its checks, each with a member to ask, or when a full disk needs room.

    No broker lives so long here that anything expires by age alone.
    """
    problems = []
    received = _most_in_a_row(ledger)
    for broker, log in logs.items():
        places = log.by_place()
        for record in log.expired:
            what = f"{broker}: {record.key} expired with {record.checks} checks ({record.reason!r})"
            half = places.get(record.half_offset)
            most = ledger.checks_max + (ledger.checks_by_hand[broker, half.index] if half is not None else 1000)
            problems += [f"{what}, {problem}" for problem in _expired_wrongly(ledger, broker, record, most)]
        if not ledger.messages.faults_of(broker, "power", "kill", "sync") and broker not in ledger.filled:
            problems += [
                f"{broker}: a producer was asked {count} times in a row about half message {index}, and never said that it is open"
                for (at, index), count in received.items()
                if at == broker and count > ledger.checks_max + ledger.checks_by_hand[broker, index]
            ]
    return problems


def _expired_wrongly(ledger: TxLedger, broker: str, record: ExpiredRecord, most: int) -> Iterator[str]:
    """Yield what is wrong with the expiry of a half message that may be checked ``most`` times, those by hand among them."""
    for_room = broker in ledger.crowded and record.reason.startswith("its log file goes")
    row = counted(record)
    if record.checks < ledger.checks_max and not for_room:
        yield f"of {ledger.checks_max}"
    strange = sum(answer == "NOT_MINE" for _, answer in record.history)
    if row < min(ledger.checks_max, HISTORY_CHECKS - strange) and not for_room:
        yield f"of which {row} count, of {ledger.checks_max}: its history is {record.history}"
    if row > most or (record.checks > most and record.key not in ledger.opened and not ledger.strangers):
        yield f"more than {most}: its history is {record.history}"
    if len(record.history) != min(record.checks, HISTORY_CHECKS) or not record.reason:
        yield f"its history is {record.history}"
    if nobody := [second for second, _ in record.history if not _somebody(ledger, broker, record.group, second)]:
        yield f"and nobody was there to be asked at {nobody}"


def visible_in_time(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a lost commit is visible once it is old enough and one interval passed, while broker and producers were well.

    Times are the world's: where a broker's clock stepped forward, its half messages are old enough earlier, never later; where it
    was set back, ages and the pause between two checks pass at half speed.
    """
    unknown = {(check.broker, check.index): check.at_ms for check in ledger.checks if check.answer in (0, -1)}
    problems = []
    for broker, log in logs.items():
        troubles, places, copied = _troubles_of(ledger, broker), log.by_place(), log.copied()
        for record in log.visible:
            half, outcome = places.get(record.half_offset), ledger.outcome(record.key)
            if half is None or outcome is None or record.key in ledger.never:  # its producers never say what an operator entered
                continue
            if record.half_offset in copied:  # nobody asked any more
                continue
            stored_ms = ledger.stored_between(broker, half.physical_offset, half.store_ms)[1]
            visible_ms = ledger.stored_between(broker, record.physical_offset, record.store_ms)[0]
            known_ms = max(outcome.at_ms, unknown.get((broker, half.index), 0))
            limit = _visible_by(ledger, broker, stored_ms, known_ms, len(places), troubles)
            if visible_ms > limit:
                problems.append(
                    f"{broker}: half message {half.index} ({record.key}) of {stored_ms} was committed at {outcome.at_ms}, could be"
                    f" visible by {limit} and was at {visible_ms}"
                )
    return problems


def _visible_by(ledger: TxLedger, broker: str, stored_ms: int, known_ms: int, halves: int, troubles: list[tuple[int, int]]) -> int:
    """Return by when a half message is visible that a producer says is committed since ``known_ms``, checks at their rate."""
    speed = 2 if broker in ledger.set_back else 1
    pacing_ms = 1000 * halves * (1 + ledger.strangers) // ledger.checks_per_second if ledger.checks_per_second < 500 else 0
    round_ms = speed * ledger.interval_ms + pacing_ms + SLACK_MS
    limit = max(stored_ms + speed * ledger.minimum_age_ms, known_ms) + round_ms
    for begin, end in troubles:
        if begin <= limit and end >= stored_ms:
            limit = max(limit, end + SETTLE_MS + round_ms)
    return limit


def asked_in_time(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that nobody is asked before a half message is old enough, or twice within an interval: set clocks end no duration.

    A second member may be asked at once where the first said that the check was not its own.

    Ages are those of the broker's clock: where that stepped forward, or was set to before the message, its first check is early.
    """
    problems = []
    last: dict[tuple[str, int], CheckRecord] = {}
    for check in ledger.checks:
        at = (check.broker, check.index)
        half, before = logs[check.broker].halves.get(check.index), last.get(at)
        last[at] = check
        if half is None or half.key != check.key or ledger.checks_by_hand[at]:
            continue
        stored_ms = ledger.stored_between(check.broker, half.physical_offset, half.store_ms)[0]
        what = f"{check.broker}: half message {check.index} ({check.key}) of {stored_ms} was asked about at {check.at_ms}"
        if before is None:
            young = check.at_ms < stored_ms + ledger.minimum_age_ms - STEP_MS
            if young and not _clock_moved(ledger, check, half, stored_ms):
                problems.append(f"{what}, of age it must be {ledger.minimum_age_ms} ms")
        elif _too_soon(ledger, before, check):
            problems.append(f"{what}, and the time before at {before.at_ms}")
    return problems


def _clock_moved(ledger: TxLedger, check: CheckRecord, half: HalfRecord, stored_ms: int) -> bool:
    clock = ledger.clocks.get(check.broker)
    if clock is None:
        return False
    return clock.gained_ms(stored_ms, check.at_ms) > STEP_MS or half.store_ms > clock.shown_at(check.at_ms)


def _too_soon(ledger: TxLedger, before: CheckRecord, check: CheckRecord) -> bool:
    """Whether a check came within an interval of the one before, while all was well."""
    if ledger.checks_per_second < 500:  # what is paced is asked about late, and then not
        return False
    troubles = _troubles_of(ledger, check.broker)
    if before.answer == -2 and before.producer != check.producer:
        return False
    unwell = any(begin < end and begin <= check.at_ms and end >= before.at_ms for begin, end in troubles)
    return not unwell and check.at_ms < before.at_ms + ledger.interval_ms - STEP_MS - SLACK_MS // 2


def one_op_each(logs: Logs) -> list[str]:
    """Check that each decided half message has one op record, behind its visible record or its copy, and no other has one."""
    problems = []
    for broker, log in logs.items():
        places, copied = log.by_place(), log.copied()
        visible_at = {
            places[record.half_offset].index: record.physical_offset
            for record in log.visible
            if record.half_offset in places and record.half_offset not in copied
        }
        counts = Counter(index for _, index in log.ops)
        problems += [
            f"{broker}: the op record of half message {index} lies before its visible record"
            for place, index in log.ops
            if place < visible_at.get(index, 0)
        ]
        problems += [
            f"{broker}: half message {index} has state {state} and {counts[index]} op records"
            for index, state in log.states().items()
            if counts[index] != (state != PREPARED)
        ]
    return problems


# ---------------------------------------------------------------- long transactions and late decisions


def open_costs_no_check(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a broker knows each answer that a transaction is open, while all is well; so nothing open expires.

    `expired_for_a_reason` asks that what such an answer pardons is not counted.
    """
    return [
        f"{broker}: {record.key} was open at {begin_ms}, and a check then has the answer {answer}: {record}"
        for broker, log in logs.items()
        if broker not in ledger.filled
        for record in log.expired
        for begin_ms, answer in _unheard(ledger, broker, record)
    ]


def _unheard(ledger: TxLedger, broker: str, record: ExpiredRecord) -> Iterator[tuple[int, str]]:
    """Yield the checks of which a broker should know that they were answered with *open*, and what it has as their answer."""
    losses, troubles = ledger.messages.faults_of(broker, "power", "sync"), _troubles_of(ledger, broker)
    for second, answer in record.history:
        spans = ledger.seconds(broker, second)
        begin_ms, end_ms = spans[0][0], spans[-1][1] + SLACK_MS
        unwell = any(begin <= end_ms and end >= begin_ms - SETTLE_MS for begin, end in troubles)
        lost = any(loss.at_ms >= begin_ms for loss in losses)
        heard = ledger.stored_between(broker, record.physical_offset, record.store_ms)[0] > end_ms
        if answer != "OPEN" and heard and not unwell and not lost and ledger.is_open(record.key, begin_ms, end_ms):
            yield begin_ms, answer


def decided_after_all(ledger: TxLedger, logs: Logs) -> list[str]:
    """Check that a decision after expiry is agreed to, unless it was decided the other way."""
    by_hand = {(decision.broker, decision.index, decision.committed) for decision in ledger.by_hand}
    problems = []
    for broker, log in logs.items():
        if broker in ledger.filled or broker in ledger.crowded or ledger.messages.faults_of(broker, "sync"):
            continue  # it may take nothing
        outcomes, copies = log.outcomes(), {record.half_offset: record for record in log.expired}
        refused = [decision for decision in ledger.decisions if decision.broker == broker and decision.code != 0]
        for decision in refused:
            half = log.halves.get(decision.index)
            copy = None if half is None else copies.get(half.physical_offset)
            if copy is None or (broker, decision.index, decision.committed) in by_hand:
                continue
            outcome, opposite = outcomes[decision.index], ROLLED_BACK if decision.committed else COMMITTED
            copied_ms = ledger.stored_between(broker, copy.physical_offset, copy.store_ms)[1]
            if copied_ms < decision.asked_ms and outcome != opposite:
                what = f"{_named(decision)} of what expired was refused"
                problems.append(f"{broker}: {what}: {decision}, its state is {outcome}")
    return problems


def delivered_once(logs: Logs) -> list[str]:
    """Check that a transaction is visible once, however often it expired, was resumed and committed late."""
    problems = []
    for broker, log in logs.items():
        if log.first:
            continue
        halves = Counter(half.key for half in log.halves.values() if not half.resumed)
        for key, count in Counter(record.key for record in log.visible).items():
            if count > halves[key]:
                problems.append(f"{broker}: {key} was half {halves[key]} times and is visible {count} times")
    return problems


# ---------------------------------------------------------------- what the checkers ask


def counted(record: ExpiredRecord) -> int:
    """Return how many checks of those that a copy remembers count.

    Those after the last answer that it is open, but for those that were answered with not mine.
    """
    answers = [answer for _, answer in record.history if answer != "NOT_MINE"]
    return len(answers) if "OPEN" not in answers else answers[::-1].index("OPEN")


def _most_in_a_row(ledger: TxLedger) -> Counter[tuple[str, int]]:
    """Return for each half message how many checks in a row producers got that count, until one answered that it is open."""
    row, most = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for check in ledger.checks:
        at = check.broker, check.index
        row[at] = 0 if check.answer == -1 else row[at] + (check.answer != -2)
        most[at] = max(most[at], row[at])
    return most


def _wanted(ledger: TxLedger, key: str) -> int | None:
    """Return the state that a transaction's half messages should come to; None: any."""
    outcome = ledger.outcome(key)
    if key in ledger.raced:
        return None
    return COMMITTED if outcome is not None and outcome.committed else ROLLED_BACK


def _named(decision: DecisionRecord) -> str:
    """Return a decision in words."""
    return "a commit" if decision.committed else "a rollback"


def may_be_lost(ledger: TxLedger, logs: Logs, decision: DecisionRecord, *, by_ms: int | None = None) -> bool:
    """Whether a loss of power or damage may have taken a decision, or the log has let its half message go.

    ``by_ms``: only a loss of power until then counts.
    """
    log, broker = logs[decision.broker], decision.broker
    gone = decision.index not in log.halves and bool(log.first)
    damaged = (broker, decision.index) in ledger.damaged
    return gone or damaged or may_be_gone(ledger.messages, broker, decision.at_ms, by_ms=by_ms)


def _turned(ledger: TxLedger, logs: Logs) -> list[DecisionRecord]:
    """Return the contradictions that a broker agreed to because a loss of power had taken the decision before."""
    agreed: defaultdict[tuple[str, int], list[DecisionRecord]] = defaultdict(list)
    for decision in ledger.agreed():
        agreed[decision.broker, decision.index].append(decision)
    return [
        later
        for first, *others in agreed.values()
        for later in others
        if later.committed != first.committed and may_be_lost(ledger, logs, first, by_ms=later.at_ms)
    ]


def _somebody(ledger: TxLedger, broker: str, group: str, second: int) -> bool:
    """Whether some producer of a group lived at some time of a second of a broker's clock."""
    return any(
        life.group == group and life.begin_ms < end_ms + 1 and (life.end_ms is None or life.end_ms >= begin_ms)
        for life in ledger.lives
        for begin_ms, end_ms in ledger.seconds(broker, second)
    )  # fmt: skip


def _troubles_of(ledger: TxLedger, broker: str) -> list[tuple[int, int]]:
    """Return the times in which a broker did not run or something else was wrong, in order."""
    spans = [(trouble.begin_ms, trouble.end_ms) for trouble in ledger.troubles]
    since: int | None = None
    for fault in ledger.messages.faults_of(broker, "kill", "power", "stop", "left", "sync", "start"):
        if fault.kind != "start":
            since = fault.at_ms if since is None else since
        elif since is not None:
            spans.append((since, fault.at_ms))
            since = None
    return sorted(spans)
