"""Answers of producers to checks: enters them into the transaction index, and says which checks they pardon. Decides nothing.

Follows no class of the original, which forgets what it asked.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from halfmoon.broker.consumers.clients import Clients
from halfmoon.hot import tag_hash
from halfmoon.store.transactions.index import SENT_MAX, Check, State, TransactionIndex


class Answer(IntEnum):
    """The answer to a check, as the transaction index keeps it."""

    NONE = 0
    UNKNOWN = 1
    COMMIT = 2
    ROLLBACK = 3
    OPEN = 4
    """The producer knows the transaction, and it is still open: the checks until now do not count."""
    NOT_MINE = 5
    """This member of the group cannot tell, and another may: its check does not count."""


class AnswerCounters(msgspec.Struct):
    """Answers since the start."""

    answered: int = 0
    still_open: int = 0
    not_mine: int = 0


class Answers:
    """The answers to checks. ``on_not_mine(index)`` is called when the last check of a half message was answered so."""

    def __init__(self, index: TransactionIndex, clients: Clients) -> None:
        self._index, self._clients = index, clients
        self.counters = AnswerCounters()
        self.on_not_mine: Callable[[int], None] = lambda index: None

    def enter(self, answer: Answer, group: str, peer: int, index: int, physical_offset: int) -> None:
        """Enter an answer of a producer of a half message's group.

        The first answer counts, for the last check; but NOT_MINE for the last check that was sent to the member that answers.
        """
        half = self._index.half(index)
        if half is None or half.state != State.PREPARED or half.physical_offset != physical_offset:
            return
        if half.group_hash != tag_hash(group.encode()):
            return
        history = self._index.checks(index).history
        if answer is Answer.NOT_MINE:
            self._enter_not_mine(group, peer, index, history)
        elif history and history[-1].answer == Answer.NONE:
            self._index.answered(index, int(answer), pardons=SENT_MAX if answer is Answer.OPEN else 0)
            self.counters.answered += 1
            self.counters.still_open += answer is Answer.OPEN

    def _enter_not_mine(self, group: str, peer: int, index: int, history: list[Check]) -> None:
        member = self._clients.producers.get(group, {}).get(peer)
        for back, check in enumerate(reversed(history)):
            if member is None or check.answer == Answer.OPEN:  # checks before an answer OPEN do not count any more
                return
            if check.producer == member.short_hash and check.answer == Answer.NONE:
                self._index.answered(index, Answer.NOT_MINE, back=back, pardons=1)
                self.counters.answered += 1
                self.counters.not_mine += 1
                if not back:
                    self.on_not_mine(index)
                return
