"""Transactions for operators: list, find, check, decide and resume. Asks all masters; changes one message a call.

Halfmoon brokers answer from their table (31001 to 31005). Any other answers code 3 to these; its queues are read instead, see
`halfmoon.client.core.admin.half_queue`, and a decision is an ordinary second phase.
"""

from __future__ import annotations

from itertools import count as numbers
from operator import itemgetter

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.admin.find import broker_of, message_by_offset_id
from halfmoon.client.core.admin.half_queue import (
    EXPIRED_TOPIC,
    HALF_TOPIC,
    checks_max_of,
    committed_late,
    copies_behind,
    ends,
    expired_copies,
    half_queue,
    newest_copy,
    producer_count,
    records,
    since_ms,
    state_of,
    transaction_at,
)
from halfmoon.client.core.admin.pages import END, PAGE_MAX, Listed, Master, Place, count_of, masters, merged, of_all, places_of
from halfmoon.client.core.admin.transaction_facts import (
    COMMITTED,
    EXPIRED,
    PREPARED,
    READ_FROM_QUEUES,
    ROLLED_BACK,
    ExpiredPage,
    ExpiredTransaction,
    PendingPage,
    TransactionAt,
    TransactionStatsAt,
)
from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import unwrap, wrap
from halfmoon.effects import Op, gather, now
from halfmoon.errors import BrokerError, QueryNotFound, RequestNotSupported, RequestTimeout, UsageError
from halfmoon.model import LocalTransactionState, StoredMessage
from halfmoon.wire.bodies import GroupTransactions, PendingTransactions, SentCheck, from_json
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    DecideTransaction,
    EndTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
    ResumeCheckHalfMessage,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.table import Header

EXPIRED_MAX, EXPIRED_PAGE_MAX = 10_000, 100
"""Most expired ones of one answer, and of a page: what became of each is looked up, all of a page at once."""

PAGE_REQUESTS_MAX = 16
"""Requests that a page makes to a broker with a table: it looks at up to four million transactions there."""

HALFMOON_TIMEOUT_MS, HALFMOON_STATISTIC = 2000, "transactionsPending"
"""Timeout of Halfmoon's own requests, and a runtime statistic that only Halfmoon brokers have."""
ILLEGAL_OPERATION = 604
"""Reply of 5.x to a decision that must come from a check."""


# ---------------------------------------------------------------- what is pending


def pending_transactions(
    admin: AdminCore, *, group: str | None = None, older_than_ms: int = 0, count_max: int = 100
) -> Op[list[TransactionAt]]:
    """Return undecided half messages of all brokers, or of one producer group, at least ``older_than_ms`` old, the oldest first.

    Brokers that keep no table of them have their half queue read; ``not_reported`` says what is unknown then. Raises the error of
    any broker: a list without its half messages would look complete.
    """
    wanted = None if group is None else wrap(group, admin.settings.namespace)
    lists = yield from gather([
        _pending(admin, master, wanted, older_than_ms, count_max) for master in (yield from masters(admin))
    ])  # fmt: skip
    pending: list[TransactionAt] = []
    for outcome in lists:
        if isinstance(outcome, Exception):
            raise outcome
        pending += [transaction for _, transaction in outcome.rows]
    return sorted(pending, key=lambda transaction: transaction.since_ms)[:count_max]


def pending_page(
    admin: AdminCore, *, group: str | None = None, older_than_ms: int = 0, count: int = 100, after: str | None = None,
    failing: list[str] | None = None,
) -> Op[PendingPage]:  # fmt: skip
    """Return some of what `pending_transactions` lists, up to 1,000, and the cursor of what follows: give it as ``after``.

    All pages together have each transaction once that stays pending meanwhile. A page may have fewer than ``count``, and even none
    while others follow, where a group has few of very many. Raises as `pending_transactions`, unless a broker that fails is named
    in ``failing`` (see `answers_of`); UsageError for a damaged cursor.
    """
    wanted, count, places = None if group is None else wrap(group, admin.settings.namespace), count_of(count), places_of(after)

    def listed(broker: Master) -> Op[Listed[TransactionAt]]:
        start = places.get(broker.name, (0, ""))
        return _pending(admin, broker, wanted, older_than_ms, count, start, PAGE_REQUESTS_MAX)

    pages = yield from of_all(admin, places, listed, failing)
    return PendingPage(*merged(pages, count, lambda transaction: transaction.since_ms, places))


def _pending(
    admin: AdminCore, broker: Master, group: str | None, older_than_ms: int, count_max: int, start: Place = (0, ""),
    requests_max: int | None = None,
) -> Op[Listed[TransactionAt]]:  # fmt: skip
    """List what is pending at a broker from a place on, by so many requests at most."""
    rows: list[tuple[Place, TransactionAt]] = []
    at = start[0]
    for number in numbers():
        if at < 0 or len(rows) >= count_max or number == requests_max:
            break
        count = min(PAGE_MAX, count_max - len(rows))
        request = ListPendingTransactions(group=group, start=at, count=count, older_than_ms=older_than_ms)
        try:
            reply = yield from ask_halfmoon(admin, broker.address, request)
        except RequestNotSupported:
            return (yield from _pending_in_queue(admin, broker, group, older_than_ms, count_max, start))
        page = from_json(_Page, reply)
        rows += [((transaction.index + 1, ""), _placed(admin, broker, transaction)) for transaction in page.transactions]
        at = page.next if page.next > at else -1
    return Listed(rows, (max(at, -1), ""))


class _Page(PendingTransactions):
    transactions: list[TransactionAt] = []  # type: ignore[assignment]  # noqa: RUF012


def _placed(admin: AdminCore, broker: Master, transaction: TransactionAt) -> TransactionAt:
    transaction.broker, transaction.address, transaction.since_ms = broker.name, broker.address, transaction.stored_ms
    transaction.group, transaction.topic = (
        unwrap(transaction.group, admin.settings.namespace),
        unwrap(transaction.topic, admin.settings.namespace),
    )
    return transaction


def _pending_in_queue(
    admin: AdminCore, broker: Master, group: str | None, older_than_ms: int, count_max: int, start: Place
) -> Op[Listed[TransactionAt]]:
    time, queue = (yield from now()), (yield from half_queue(admin, broker.address))
    halves = [half for half in queue.pending() if time - since_ms(half) >= older_than_ms]
    halves = [half for half in halves if group is None or half.properties.get("PGROUP") == group]
    found = sorted(
        (((half.born_ms, half.msg_id), half) for half in halves if (half.born_ms, half.msg_id) > start), key=itemgetter(0)
    )
    checks_max = (yield from checks_max_of(admin, broker.address)) if found else 0
    producers: dict[str, int] = {}
    rows = []
    for place, half in found[:count_max]:
        transaction = transaction_at(admin, broker.name, broker.address, half, PREPARED, checks_max)
        transaction.producers = yield from _counted(admin, broker, half, producers)
        if not queue.whole:
            transaction.not_reported.append(
                "half and op queue are too long to be read to their ends: decided ones may be among these"
            )
        rows.append((place, transaction))
    return Listed(rows, rows[-1][0] if len(found) > count_max else END)


def _counted(admin: AdminCore, broker: Master, half: StoredMessage, known: dict[str, int]) -> Op[int]:
    group = half.properties.get("PGROUP", "")
    if group not in known:
        known[group] = yield from producer_count(admin, broker.address, group)
    return known[group]


# ---------------------------------------------------------------- one transaction


Name = str | int
"""How a transaction is named: by a text, which is the sender's id (the transaction id), a key of the message or the broker's id; or
by a number, which is its offset in the half queue."""


def transaction(admin: AdminCore, name: Name) -> Op[TransactionAt]:
    """Return one transaction, pending or decided, of whichever broker knows it.

    ``name`` is its id, a key of its message or the broker's id; a number is the offset in the half queue. Raises QueryNotFound,
    and UsageError or BrokerError when it names several, with their ids.
    """
    return (yield from _locate(admin, name))[1]


def _locate(admin: AdminCore, name: Name) -> Op[tuple[Master, TransactionAt]]:
    """Return the one transaction that a name means, with its broker. Raises as `transaction`."""
    brokers = yield from masters(admin)
    address = broker_of(name) if isinstance(name, str) else ""
    asked = [broker for broker in brokers if broker.address == address] or brokers
    outcomes = yield from gather([_at(admin, broker, name) for broker in asked])
    matches = [(broker, outcome) for broker, outcome in zip(asked, outcomes) if isinstance(outcome, TransactionAt)]
    return _only(name, matches, [outcome for outcome in outcomes if isinstance(outcome, Exception)])


def _only(name: Name, matches: list[tuple[Master, TransactionAt]], errors: list[Exception]) -> tuple[Master, TransactionAt]:
    """Return the one match of a name. Raises an error when there is none, or when several transactions have the name or may."""
    if len(matches) > 1:  # an id goes before a key of that text
        matches = [match for match in matches if match[1].msg_id == name] or matches
    unclear = [error for error in errors if not isinstance(error, QueryNotFound)]  # of brokers that may have another one
    if len(matches) == 1 and (not unclear or name == matches[0][1].msg_id):
        return matches[0]
    if matches:
        ids = ", ".join(match.offset_msg_id for _, match in matches)
        raise UsageError("; ".join([f"{name} may mean several transactions: give one of {ids}", *map(str, unclear)]))
    raise UsageError("; ".join(map(str, unclear))) if len(unclear) > 1 else [*unclear, *errors][0]


def _at(admin: AdminCore, broker: Master, name: Name) -> Op[TransactionAt]:
    """Return a transaction of one broker."""
    try:
        request = GetTransaction(id=name) if isinstance(name, str) else GetTransaction(offset=name)
        transaction = yield from _ask_about(admin, broker, request)
    except RequestNotSupported:
        copies = yield from newest_copy(admin, broker.address, name)
        state = yield from state_of(admin, broker.address, copies)
        checks_max = yield from checks_max_of(admin, broker.address)
        transaction = transaction_at(admin, broker.name, broker.address, copies[0], state, checks_max)
        transaction.producers = yield from _counted(admin, broker, copies[0], {})
        return transaction
    if transaction.state != ROLLED_BACK:
        return transaction
    offset = transaction.commit_log_offset
    if (yield from copies_behind(admin, broker.address, EXPIRED_TOPIC, transaction.msg_id, offset)):  # nobody decided
        copies = yield from expired_copies(admin, broker.address, transaction.msg_id)
        late = [copy for copy in copies if copy.prepared_transaction_offset == offset]
        transaction.state = COMMITTED if late and (yield from committed_late(admin, broker.address, late[0])) else EXPIRED
    return transaction


def check_transaction(admin: AdminCore, name: Name) -> Op[TransactionAt]:
    """Ask the broker to check a transaction with a producer now, whatever its age; return the transaction with that check.

    Raises RequestNotSupported on Apache's brokers, whose protocol has no such request; BrokerError when no producer is online.
    """
    broker, transaction = yield from _locate(admin, name)
    if transaction.not_reported:
        raise RequestNotSupported(
            f"broker {broker.name} is no Halfmoon broker: its protocol has no request for a check; it checks in its own time",
            broker.address,
        )
    return (yield from _ask_about(admin, broker, CheckTransaction(offset=transaction.index)))


def decide_transaction(admin: AdminCore, name: Name, *, commit: bool, operator: str) -> Op[TransactionAt]:
    """Commit or roll back by hand; return the transaction as it is now. A repeat changes nothing, a contradiction is refused.

    ``operator`` says who does it, 1 to 200 printable characters: a Halfmoon broker writes it into its log and the op record; the
    protocol of others has no place for it. There the newest copy is decided, and earlier decisions are looked up first, because
    those brokers would deliver a second time.

    Raises BrokerError, QueryNotFound, UsageError.
    """
    broker, transaction = yield from _locate(admin, name)
    if not transaction.not_reported:
        request = DecideTransaction(offset=transaction.index, commit=commit, operator=operator)
        return (yield from _ask_about(admin, broker, request))
    # A later copy of one that is rolled back may be pending: a second rollback does no harm.
    if transaction.state == PREPARED or (transaction.state == ROLLED_BACK and not commit):
        state = LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK
        yield from end_transaction(admin, transaction.offset_msg_id, state)
    elif (transaction.state == COMMITTED) != commit or transaction.state not in (COMMITTED, ROLLED_BACK):
        raise BrokerError(f"the transaction is decided: {transaction.state}", broker.address)
    transaction.state, transaction.next_check_ms = COMMITTED if commit else ROLLED_BACK, 0
    transaction.not_reported.append("who decided is written down nowhere: this broker's protocol has no place for it")
    return transaction


# ---------------------------------------------------------------- figures


def transaction_stats(admin: AdminCore, *, failing: list[str] | None = None) -> Op[list[TransactionStatsAt]]:
    """Return pending transactions by producer group, and counters since the start, by broker.

    Raises the error of any broker, unless it is named in ``failing`` (see `answers_of`).
    """
    brokers = yield from masters(admin)
    outcomes = yield from gather([_stats(admin, broker) for broker in brokers])
    return answers_of(zip([broker.name for broker in brokers], outcomes), failing)


def _stats(admin: AdminCore, broker: Master) -> Op[TransactionStatsAt]:
    try:
        stats = from_json(TransactionStatsAt, (yield from ask_halfmoon(admin, broker.address, GetTransactionStats())))
    except RequestNotSupported:
        stats = yield from _stats_of_queue(admin, broker)
    stats.broker, stats.address = broker.name, broker.address
    for group in stats.groups:
        group.group = unwrap(group.group, admin.settings.namespace)
    return stats


def _stats_of_queue(admin: AdminCore, broker: Master) -> Op[TransactionStatsAt]:
    time, queue = (yield from now()), (yield from half_queue(admin, broker.address))
    pending = queue.pending()
    groups: dict[str, GroupTransactions] = {}
    producers: dict[str, int] = {}
    for half in pending:
        name = half.properties.get("PGROUP", "")
        group = groups.setdefault(name, GroupTransactions(name, 0, since_ms(half)))
        group.pending += 1
        group.producers = yield from _counted(admin, broker, half, producers)
    oldest = since_ms(pending[0]) if pending else -1
    hidden = [*READ_FROM_QUEUES, "decisions, checks and contradictions are not counted by this broker"]
    if not queue.whole:
        hidden.append("half and op queue are too long to be read to their ends: the numbers are not exact")
    return TransactionStatsAt(time, len(pending), oldest, list(groups.values()), {}, {}, -1, not_reported=hidden)


# ---------------------------------------------------------------- expired half messages


def expired_transactions(admin: AdminCore, *, count_max: int = 100) -> Op[list[ExpiredTransaction]]:
    """Return the newest expired half messages, the oldest first; `resume_half` takes their ``offset_msg_id``."""
    count = min(max(count_max, 1), EXPIRED_MAX)
    transactions: list[ExpiredTransaction] = []
    for outcome in (yield from gather([_expired_at(admin, master, count) for master in (yield from masters(admin))])):
        if isinstance(outcome, Exception):
            raise outcome
        transactions += outcome
    return sorted(transactions, key=lambda transaction: transaction.expired_ms)[-count:]


def expired_page(
    admin: AdminCore, *, count: int = 100, after: str | None = None, failing: list[str] | None = None
) -> Op[ExpiredPage]:
    """Return some expired half messages, up to 100, the newest first, and the cursor of those before: give it as ``after``.

    Raises the error of any broker, unless it is named in ``failing`` (see `answers_of`), and UsageError for a damaged cursor.
    """
    count, places = min(count_of(count), EXPIRED_PAGE_MAX), places_of(after)

    def listed(broker: Master) -> Op[Listed[tuple[Master, StoredMessage]]]:
        begin, end = yield from ends(admin, broker.address, EXPIRED_TOPIC)
        end = min(end, places.get(broker.name, (end, ""))[0])
        low = max(begin, end - count)
        copies, _ = yield from records(admin, broker.address, EXPIRED_TOPIC, low, max(0, end - low))
        return Listed([((copy.queue_offset, ""), (broker, copy)) for copy in reversed(copies)], (low, "") if low > begin else END)

    pages = yield from of_all(admin, places, listed, failing)
    copies, following = merged(pages, count, lambda row: -row[1].store_ms, places)
    outcomes = yield from gather([_expired_one(admin, broker, copy) for broker, copy in copies])
    return ExpiredPage(answers_of(zip([broker.name for broker, _ in copies], outcomes), failing), following)


def _expired_at(admin: AdminCore, broker: Master, count: int) -> Op[list[ExpiredTransaction]]:
    begin, end = yield from ends(admin, broker.address, EXPIRED_TOPIC)
    copies, _ = yield from records(admin, broker.address, EXPIRED_TOPIC, max(begin, end - count), count)
    transactions = []
    for copy in copies:
        transactions.append((yield from _expired_one(admin, broker, copy)))
    return transactions


def _expired_one(admin: AdminCore, broker: Master, copy: StoredMessage) -> Op[ExpiredTransaction]:
    properties, namespace = copy.properties, admin.settings.namespace
    sent, reason = properties.get("TRANSACTION_CHECK_TIMES", ""), properties.get("TRANSACTION_EXPIRED_REASON", "")
    return ExpiredTransaction(
        offset_msg_id=copy.offset_msg_id, msg_id=copy.msg_id, group=unwrap(properties.get("PGROUP", ""), namespace),
        topic=unwrap(properties.get("REAL_TOPIC", ""), namespace), tag=copy.tag or "", keys=properties.get("KEYS", ""),
        born_ms=copy.born_ms, expired_ms=copy.store_ms, reason=reason,
        checks_sent=int(sent) if sent.isdigit() and len(sent) < 6 else 0,
        checks=history_of(properties.get("TRANSACTION_CHECK_HISTORY", "")),
        resumed=(yield from copies_behind(admin, broker.address, HALF_TOPIC, copy.msg_id, copy.physical_offset)),
        committed=(yield from committed_late(admin, broker.address, copy)), broker=broker.name,
        address=broker.address, not_reported=[] if reason else ["why it expired, and the history of its checks, are not reported"],
    )  # fmt: skip


def history_of(text: str) -> list[SentCheck]:
    """Return the checks that a copy remembers, ``seconds:answer:producer`` each; what is not of this form is left out."""
    checks = [fields.split(":") for fields in text.split()]
    return [
        SentCheck(int(fields[0]) * 1000, fields[2], fields[1])
        for fields in checks
        if len(fields) == 3 and fields[0].isdigit() and len(fields[0]) < 12
    ]


def _ask_about(admin: AdminCore, broker: Master, request: Header) -> Op[TransactionAt]:
    """Ask a Halfmoon broker something about one transaction; return the transaction. Raises as `ask_halfmoon`."""
    return _placed(admin, broker, from_json(TransactionAt, (yield from ask_halfmoon(admin, broker.address, request))))


def ask_halfmoon(admin: AdminCore, address: str, request: Header, body: bytes = b"") -> Op[bytes]:
    """Ask one of Halfmoon's own requests. Raises RequestNotSupported for another broker: those of 4.7.1 answer nothing at all."""
    if address not in admin.foreign_brokers:
        try:
            reply = yield from ask(address, request, body, min(HALFMOON_TIMEOUT_MS, admin.settings.request_timeout_ms))
            return bytes(reply.body)
        except RequestTimeout:
            if HALFMOON_STATISTIC in (yield from admin.broker_runtime_info(address)):
                raise
            admin.foreign_brokers.add(address)
    raise RequestNotSupported("no Halfmoon broker: it does not answer what it does not know", address)


# ---------------------------------------------------------------- by the original's own requests


def end_transaction(admin: AdminCore, offset_msg_id: str, state: LocalTransactionState) -> Op[StoredMessage]:
    """Commit or roll back by hand the half message with a broker's id; return it once the broker agreed.

    Brokers of 5.x refuse a decision later than the message's own minimum age unless it answers a check: then it is sent as such
    an answer.

    With Apache's brokers give the id of the newest copy, and decide once: a check writes the half message anew, and a copy that
    was decided is not recognised, so that a second commit delivers a second time.

    Raises UsageError when the message is no half message or the state decides nothing, BrokerError, NetworkError.
    """
    if state not in (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK):
        raise UsageError(f"expected COMMIT or ROLLBACK, got {state!r}")
    message = yield from message_by_offset_id(admin, offset_msg_id)
    if message.topic != HALF_TOPIC:
        raise UsageError(f"not a half message: {offset_msg_id} lies in topic {message.topic}")
    address, timeout_ms = parse_offset_msg_id(offset_msg_id).address, admin.settings.request_timeout_ms
    try:
        yield from ask(address, _ending(message, state, from_check=False), b"", timeout_ms)
    except BrokerError as refusal:
        if refusal.code != ILLEGAL_OPERATION:
            raise
        yield from ask(address, _ending(message, state, from_check=True), b"", timeout_ms)
    return message


def _ending(half: StoredMessage, state: LocalTransactionState, *, from_check: bool) -> EndTransaction:
    return EndTransaction(
        producer_group=half.properties.get("PGROUP", ""), tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset, commit_or_rollback=state.code, msg_id=half.msg_id,
        from_transaction_check=from_check, transaction_id=half.transaction_id, topic=half.properties.get("REAL_TOPIC"),
    )  # fmt: skip


def resume_half(admin: AdminCore, offset_msg_id: str) -> Op[None]:
    """Have an expired half message checked again, from the first check on.

    ``offset_msg_id`` is the broker's id of its copy in TRANS_CHECK_MAX_TIME_TOPIC. Raises UsageError, BrokerError, NetworkError.
    """
    request = ResumeCheckHalfMessage(msg_id=offset_msg_id, topic=EXPIRED_TOPIC)
    yield from ask(parse_offset_msg_id(offset_msg_id).address, request, b"", admin.settings.request_timeout_ms)
