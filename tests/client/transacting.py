"""Transactional producers in virtual time: their core over scripted brokers, and checks as a broker would ask them."""

from __future__ import annotations

from random import Random
from typing import Any

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.transaction import Transactions
from halfmoon.client.settings import TransactionSettings, settings_of
from halfmoon.model import LocalTransactionState
from halfmoon.wire.command import Command, request_command
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.transaction import CheckTransactionState, EndTransaction
from halfmoon.wire.ids import UniqueIds
from tests.client.messages import record
from tests.client.scripted import Answer, Reply, Scripted, Seen, route, routes

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
NOT_MINE = LocalTransactionState.NOT_MINE
OFFSET_ID = "7F00000100002A9F0000000000001000"
"""The broker's id of a record at 127.0.0.1:10911, byte 4096 of its log."""


class Shop:
    """A listener that says what it is told to, or raises it, and remembers what it was asked."""

    def __init__(self, execute: Any = COMMIT, check: Any = COMMIT) -> None:
        self._execute, self._check = execute, check
        self.executed: list[tuple[Any, Any]] = []
        self.checked: list[Any] = []

    def execute(self, message: Any, arg: Any) -> Any:
        self.executed.append((message, arg))
        return _said(self._execute)

    def check(self, message: Any) -> Any:
        self.checked.append(message)
        return _said(self._check)


def _said(what: Any) -> Any:
    if isinstance(what, BaseException):
        raise what
    return what


def transactions(script: Scripted, listener: Any = None, brokers: dict[str, int] | int = 1, **values: Any) -> Transactions:
    """Return the core of a running transactional producer of group P that knows the topic ``orders``."""
    settings = settings_of(TransactionSettings, {"group": "P", "nameserver": "ns:9876", **values})
    instance = Instance(settings, "10.0.0.1@1", Random(7))
    sender = Sender(settings, instance.routes, UniqueIds(b"\x0a\0\0\1", 1, Random(7)))
    sender.running = True
    instance.producer_group = sender.group
    script.on(GetRouteinfoByTopic, routes(**{instance.wire("orders"): route(brokers)}))
    script.on(SendMessageV2, half_stored())
    return Transactions(settings, sender, instance, listener)


def half_stored(code: int = 0, *, transaction_id: str | None = "TX", ms: int = 1) -> Answer:
    """Return the answer of a broker that stores half messages: the sixth of its half queue."""

    def answer(seen: Seen) -> Reply:
        header = SendMessageReply(msg_id=OFFSET_ID, queue_id=seen.request.queue_id, queue_offset=5, transaction_id=transaction_id)
        return Reply(code, header, ms=ms)

    return answer


def ends(script: Scripted) -> list[Seen]:
    """Return the second phases and answers to checks that left."""
    return script.asked(EndTransaction)


def check(unique: str = "ID7", *, group: str = "P", topic: str = "orders", body: bytes = b"paid", **fields: Any) -> Command:
    """Return a broker's check of the half message with a sender's id, written anew at queue offset 7, byte 700."""
    header = CheckTransactionState(tran_state_table_offset=7, commit_log_offset=700, msg_id=unique, transaction_id=unique, **fields)
    stored = record(7, body, topic=topic, UNIQ_KEY=unique, PGROUP=group, TRAN_MSG="true", KEYS="k1")
    return request_command(header, stored, oneway=True)


def ask(script: Scripted, core: Transactions, command: Command, address: str = "broker-a:1") -> None:
    """Have a broker ask, and let everything happen that follows."""
    answer = core.instance.asked(address, command)
    if answer is not None:
        script.run(answer)
