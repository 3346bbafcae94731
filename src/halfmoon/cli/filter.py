"""`halfmoon filter`: shows the parse tree and the cost of an SQL92 filter, and the messages that pass. Asks no server."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from halfmoon import sql92
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json, pairs
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.conversion import json_decoder
from halfmoon.errors import UsageError
from halfmoon.shown.texts import count_text
from halfmoon.sql92 import Filter, FilterOutcome, FilterVerdict
from halfmoon.sql92.tree import lines

app = App(
    help='Try SQL92 filters without a broker.\n\nExample: halfmoon filter explain "amount > 100" --property amount=250',
)

LINE_BYTES_MAX = 32 * 1024 * 1024
"""A line of a file of messages. The largest body that brokers take, as JSON, is a third of it."""

GROUP = 1000
"""Messages that are tested at once; with fewer in all, the time means little and is not shown."""

_MEMBERS = json_decoder(dict[str, Any])


@app.command()
def explain(
    expression: Annotated[str, Argument(metavar="EXPRESSION", help="The filter.")],
    given: Annotated[
        list[str] | None,
        Option("--property", "-p", metavar="NAME=VALUE", help="A property of a message to test; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        Option(
            "--messages",
            metavar="FILE",
            help="Messages to test, one JSON object per line, as consume --json writes them; - for standard input.",
        ),
    ] = None,
    count: Annotated[int, Option("--show", min=0, max=100_000, help="Show N messages; all are counted.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the parse tree of a filter, the cost of evaluating it, and which of the given messages pass.

    A line of the file is an object with "properties", or the properties themselves. A result is true (the message passes), false,
    null (a property is missing) or unfit (a value cannot be read as the filter needs it).

    Example: halfmoon filter explain "a > 5 AND b IN ('x')" --property a=7 --property b=x
    """
    compiled = sql92.compile(expression)
    trial = _Trials(compiled, count)
    if given is not None:
        trial.test([sql92.stored(pairs(given, "--property"))])
    if file is not None:
        for group in _groups(file):
            trial.test(group)
    if as_json:
        show_json({**_facts(compiled), **(trial.facts() if trial.began else {})})
    else:
        _show(compiled)
        if trial.began:
            trial.show()


class _Trials:
    """Results of tested messages: counts of each result, and the first few messages."""

    def __init__(self, tested: Filter, shown_max: int) -> None:
        self._filter, self._shown_max = tested, shown_max
        self._counts: Counter[FilterVerdict] = Counter()
        self._first: list[FilterOutcome] = []
        self._spent_ns = self._matching = 0
        self.began = False

    def test(self, blocks: list[bytes]) -> None:
        """Test messages; the time is that of the fast path, which brokers use."""
        self.began = True
        start_ns = time.process_time_ns()
        self._matching += len(self._filter.matching(blocks))
        self._spent_ns += time.process_time_ns() - start_ns
        outcomes = [self._filter.outcome(block) for block in blocks]
        self._counts.update(outcome.verdict for outcome in outcomes)
        self._first += outcomes[: max(0, self._shown_max - len(self._first))]

    def facts(self) -> dict[str, Any]:
        """Return the results as JSON has them."""
        count = self._counts.total()
        return {
            "messages": count,
            "matching": self._matching,
            "results": {verdict.value: self._counts[verdict] for verdict in FilterVerdict},
            "nanoseconds_a_message": round(self._spent_ns / count) if count >= GROUP else None,
            "shown": [{"result": outcome.verdict.value, "reason": outcome.reason} for outcome in self._first],
        }

    def show(self) -> None:
        """Write the results as a table."""
        count = self._counts.total()
        say()
        rows = [(number, outcome.verdict.value, outcome.reason) for number, outcome in enumerate(self._first, 1)]
        if rows:
            show_table("", ("message", "result", "why"), rows)
        others = ", ".join(
            f"{number:,} {each.value}"
            for each in FilterVerdict
            if each is not FilterVerdict.TRUE and (number := self._counts[each])
        )
        spent = f"; {self._spent_ns / count / 1000:.2f} microseconds each" if count >= GROUP else ""
        say(f"{self._matching:,} of {count_text(count)} pass" + (f" ({others})" if others else "") + spent)


def _facts(compiled: Filter) -> dict[str, Any]:
    return {
        "expression": compiled.expression,
        "tree": [{"depth": depth, "text": text} for depth, text in lines(compiled.tree)],
        "names": list(compiled.names),
        "steps": compiled.steps,
        "scans": compiled.scans,
        "constants": compiled.constants(),
    }


def _show(compiled: Filter) -> None:
    for depth, text in lines(compiled.tree):
        say("  " * depth + text)
    say()
    say(f"reads      {', '.join(compiled.names) or 'no property'}")
    say(f"cost       at most {compiled.steps:,} steps a message, of 0.1 to 0.2 microseconds where properties are short")
    for constant in compiled.constants():
        say(f"warning    {constant}")


def _groups(file: Path) -> Iterator[list[bytes]]:
    """Yield the properties of a file's messages, some at a time. Raises UsageError with the line that is no message."""
    if str(file) == "-":
        yield from _read(sys.stdin.buffer, "standard input")
        return
    try:
        source = file.open("rb")
    except OSError as wrong:
        raise UsageError(f"{file} cannot be read: {wrong.strerror}") from None
    with source:
        yield from _read(source, str(file))


def _read(source: BinaryIO, name: str) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    number = 0
    while line := source.readline(LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            group.append(sql92.stored(_properties(line)))
        except (msgspec.MsgspecError, UsageError) as wrong:
            raise UsageError(f"{name}, line {number:,} is no message: {wrong}") from None
        if len(group) == GROUP:
            yield group
            group = []
    yield group


def _properties(line: bytes) -> dict[str, str]:
    """Return the properties that one line has. Numbers and truth values become the texts that a producer would send."""
    message = _MEMBERS.decode(line)
    properties = message.get("properties")
    values = properties if isinstance(properties, dict) else message
    for name, value in values.items():
        if not isinstance(value, str | int | float | None):
            raise UsageError(f"property {name!r} is a list or an object")
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
