"""`halfmoon dlq report`: dead letters counted by group, topic and reason. Reads them page by page and keeps the counts only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from typing import Annotated

from halfmoon.cli.shared.app import Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Groups, Json, Limit, NameServer, time_ms
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.client.admin import Admin
from halfmoon.model import DeadLetter
from halfmoon.shown.texts import TIME_FORMS, time_text

DLQ_PREFIX = "%DLQ%"
PAGE_MAX = 1_000
REASONS_MAX = 10_000
"""Reasons that are counted apart; further ones count as one."""


def report(
    group: Groups = None,
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help=f"Dead-lettered at or after this time: {TIME_FORMS}.")
    ] = None,
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Count dead letters by group, topic and reason, ignoring numbers in reasons.

    Example: halfmoon dlq report --group C_mail --since 1d
    """
    begin_ms = time_ms(since) if since else 0
    with Admin(nameserver=nameserver) as admin:
        groups = group or [name.removeprefix(DLQ_PREFIX) for name in admin.topics() if name.startswith(DLQ_PREFIX)]
        reasons = reasons_of(letter for name in groups for letter in _letters(admin, name, begin_ms))
    shown, more = reasons[:limit], len(reasons) > limit
    if as_json:
        show_json({"reasons": [asdict(reason) for reason in shown], "more": more}, rows="reasons")
        return len(shown)
    names = ("group", "topic", "reason", "count", "tries", "bytes", "oldest", "newest")
    rows = [[*astuple(reason)[:6], time_text(reason.oldest_ms), time_text(reason.newest_ms)] for reason in shown]
    show_table("dead letters", names, rows)
    if more:
        say(f"there are more than these {limit:,}: give --limit, or --since")
    return len(shown)


@dataclass
class DeadLetterReason:
    """Dead letters of one group and topic whose reasons differ in numbers only; N stands for each number.

    ``tries`` leaves out those that an operator skipped, whose tries are not known.
    """

    group: str
    topic: str
    reason: str
    count: int = 0
    tries: int = 0
    bytes: int = 0
    oldest_ms: int = 2**63
    newest_ms: int = 0
    example: str = ""

    def add(self, letter: DeadLetter) -> None:
        """Count one dead letter more."""
        self.count += 1
        self.tries += letter.tries or 0
        self.bytes += letter.message.held_bytes
        self.oldest_ms = min(self.oldest_ms, letter.dead_lettered_ms)
        self.newest_ms = max(self.newest_ms, letter.dead_lettered_ms)
        self.example = self.example or letter.reason


def reasons_of(letters: Iterable[DeadLetter], count_max: int = REASONS_MAX) -> list[DeadLetterReason]:
    """Return dead letters by group, topic and reason, the most frequent first."""
    reasons: dict[tuple[str, str, str], DeadLetterReason] = {}
    for letter in letters:
        key = (letter.group, letter.topic, re.sub(r"[0-9]+", "N", letter.reason) or "not reported")
        if key not in reasons and len(reasons) >= count_max:
            key = ("", "", "other reasons")
        reasons.setdefault(key, DeadLetterReason(*key)).add(letter)
    return sorted(reasons.values(), key=lambda reason: (-reason.count, reason.group, reason.topic, reason.reason))


def _letters(admin: Admin, group: str, begin_ms: int) -> Iterator[DeadLetter]:
    """Yield all dead letters of a group since a time."""
    after: str | None = ""
    while after is not None:
        page = admin.dead_letter_page(group, after=after, newest_first=False, begin_ms=begin_ms, count_max=PAGE_MAX)
        yield from page.letters
        after = page.next
