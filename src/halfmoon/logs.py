"""Escaping and rate limits for all log lines of Halfmoon: a text from outside can forge neither a line nor a colour.

A filter on each of our loggers changes the record before any handler sees it: one on a logger of ours or on the root, set up
before us or after, by hand or from a table. `to_stderr` is the log of our own programs. `log_failure` is the form of all lines
about functions of the user's that raise. Decides nothing about what is logged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from traceback import format_tb, walk_tb
from types import TracebackType
from typing import Any

from halfmoon.errors import HalfmoonError
from halfmoon.instant import Steady

NAMES = (
    "halfmoon", "halfmoon.audit", "halfmoon.broker", "halfmoon.broker.access", "halfmoon.broker.batches",
    "halfmoon.broker.delay", "halfmoon.broker.tables", "halfmoon.broker.transactions", "halfmoon.cli", "halfmoon.client",
    "halfmoon.console", "halfmoon.data", "halfmoon.events", "halfmoon.nameserver", "halfmoon.serve", "halfmoon.runtime",
    "halfmoon.simulation", "halfmoon.spark", "halfmoon.store", "halfmoon.store.damaged", "halfmoon.store.health",
    "halfmoon.store.transactions", "halfmoon.wire",
)  # fmt: skip
"""Loggers of Halfmoon. A logger does not apply the filters of its parent, so each has its own."""

LENGTH_MAX = 16_384
"""Longest text in a log, in characters; a peer may send names and remarks of any length."""

ERRORS_MAX = 16
"""Most exceptions of one traceback that are shown: causes, contexts, and members of groups."""

FRAMES_MAX = 64
"""Most frames of one exception that are shown, the innermost."""

LINES_A_MINUTE = 100
"""Most warnings that a `RateLimitedLog` writes in a minute."""

KINDS_MAX = 50
"""Most kinds that a `CountedLog` tells apart in a minute."""

OTHERS = "others"
"""Name of all further kinds."""

_NOTES_MAX = 16
_BY_USER = "halfmoon_by_user"
"""Attribute of the records of `log_failure`: whether frames of Halfmoon are left out."""
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def escaped(text: str) -> str:
    """Return a text with printable characters only: others are written as in a Python literal.

    It has at most `LENGTH_MAX` characters; one that was cut says how many of the original's are missing.
    """
    if len(text) <= LENGTH_MAX and text.isprintable():
        return text
    characters = [
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text[:LENGTH_MAX]
    ]
    if len(text) <= LENGTH_MAX and sum(map(len, characters)) <= LENGTH_MAX:
        return "".join(characters)
    room, shown = LENGTH_MAX - len(f" ... and {len(text)} characters more"), 0
    while room >= len(characters[shown]):
        room -= len(characters[shown])
        shown += 1
    return f"{''.join(characters[:shown])} ... and {len(text) - shown} characters more"


def listed(names: Sequence[str], count_max: int = 10) -> str:
    """Return names as one text, the first of them; it says how many others there are."""
    more = len(names) - count_max
    return ", ".join(names[:count_max]) + (f" and {more} others" if more > 0 else "")


def escape(record: logging.LogRecord) -> bool:
    """Escape the parts that a record is formatted from, and let it pass.

    One that does not fit its arguments is left: `logging` says so.

    What was escaped before comes out as it is.
    """
    try:
        text = record.getMessage()
    except Exception:
        return True
    if (safe := escaped(text)) != text:
        record.msg, record.args = safe, ()
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = "\n".join(_Traceback(by_user=getattr(record, _BY_USER, False)).lines_of(record.exc_info[1]))
    return True


def log_failure(
    log: logging.Logger,
    what: str,
    error: BaseException,
    facts: Mapping[str, object],
    then: str = "",
    *,
    level: int = logging.ERROR,
) -> None:
    """Log that a function of the user's raised: one line, and the traceback of the user's code.

    The line has the ``facts`` that are neither None nor empty, and what happens ``then``. The traceback begins with the user's
    first frame and leaves out those of Halfmoon. A logger at DEBUG shows all; so does any where no code of the user's ran, and
    the error is none that Halfmoon raises on purpose: that is a mistake of ours, or a function that cannot be called so.
    """
    explained = isinstance(error, HalfmoonError) or _user_frames(error.__traceback__) is not None
    shown = " ".join(f"{name}={fact}" for name, fact in facts.items() if fact is not None and fact != "")
    log.log(
        level,
        "%s: %s%s",
        what,
        shown,
        f"; {then}" if then else "",
        exc_info=error,
        extra={_BY_USER: explained and not log.isEnabledFor(logging.DEBUG)},
        stacklevel=2,
    )


def without_our_frames(error: HalfmoonError) -> HalfmoonError:
    """Return an error without the frames of Halfmoon in its traceback and in those of its causes. At DEBUG they stay."""
    if not logging.getLogger("halfmoon").isEnabledFor(logging.DEBUG):
        cause: BaseException | None = error
        for _ in range(ERRORS_MAX):
            if cause is None:
                break
            cause.with_traceback(_user_frames(cause.__traceback__))
            cause = cause.__cause__ or cause.__context__
    return error


def _user_frames(link: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on, without frames of Halfmoon; None: it has no frame of the user's."""
    links: list[TracebackType] = []
    while link is not None:
        package = str(link.tb_frame.f_globals.get("__name__")).partition(".")[0]
        # Before the user's first frame the standard library's are ours as well: they call what we hand them.
        if package != "halfmoon" and (links or package not in sys.stdlib_module_names):
            links.append(link)
        link = link.tb_next
    kept = None
    for link in reversed(links):
        kept = TracebackType(kept, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return kept


class _Traceback:
    """Traceback as Python writes it, with the texts of the exceptions escaped. A part that is cut is marked.

    ``by_user``: of the user's code only.
    """

    def __init__(self, *, by_user: bool) -> None:
        self._by_user = by_user
        self._left = ERRORS_MAX
        self._seen: set[int] = set()

    def lines_of(self, error: BaseException) -> list[str]:
        """Return the lines of an exception: its cause or context first, then itself with its members."""
        chain: list[tuple[BaseException, str]] = []
        link: BaseException | None = error
        word, cut = "", []
        while link is not None:
            if id(link) in self._seen:
                cut = ["... and an exception that is shown already", "", word, ""]
                break
            if not self._left:
                cut = [f"... and more: {ERRORS_MAX} exceptions are shown", "", word, ""]
                break
            self._left -= 1
            self._seen.add(id(link))
            chain.append((link, word))
            cause, context = link.__cause__, None if link.__suppress_context__ else link.__context__
            link, word = (context, _CONTEXT) if cause is None else (cause, _CAUSE)
        lines = cut if chain else cut[:1]
        for exception, joined in reversed(chain):
            lines += self._own(exception)
            lines += ["", joined, ""] if joined else []
        return lines

    def _own(self, error: BaseException) -> list[str]:
        lines = []
        where = _user_frames(error.__traceback__) if self._by_user else error.__traceback__
        if where is not None:
            lines.append("Traceback (most recent call last):")
            if (more := sum(1 for _ in walk_tb(where)) - FRAMES_MAX) > 0:
                lines.append(f"  ... {more} frames left out")
            lines += "".join(format_tb(where, limit=-FRAMES_MAX)).rstrip("\n").split("\n")
        module = type(error).__module__
        place = "" if module in ("builtins", "__main__") else f"{module}."
        lines.append(f"{place}{type(error).__qualname__}: {_text_of(error)}")
        notes = getattr(error, "__notes__", None) or ()
        if isinstance(notes, list | tuple):
            lines += [_text_of(note) for note in notes[:_NOTES_MAX]]
            lines += [f"... and {len(notes) - _NOTES_MAX} notes more"] if len(notes) > _NOTES_MAX else []
        if isinstance(error, BaseExceptionGroup):
            count = len(error.exceptions)
            for number, member in enumerate(error.exceptions, 1):
                if not self._left:
                    lines.append(f"  +- ... and {count - number + 1} of its {count} exceptions more")
                    break
                lines.append(f"  +- {number} of its {count} exceptions:")
                lines += [f"  | {line}".rstrip() for line in self.lines_of(member)]
        return lines


def _text_of(value: object) -> str:
    """Return an exception's text, or a note, escaped. It may be of a class of the user's, whose own text fails."""
    try:
        return escaped(str(value))
    except Exception as exc:
        return f"<its text is not available: {type(exc).__qualname__}>"


class RateLimitedLog:
    """Log of warnings that peers can cause: at most `LINES_A_MINUTE`, and one line with the number of suppressed ones."""

    def __init__(self, log: logging.Logger, now: Steady) -> None:
        self._log, self._next_ms = log, now + 60_000
        self._left = LINES_A_MINUTE
        self.suppressed = 0

    def warning(self, text: str, *arguments: Any) -> None:
        """Write a warning, or count it if the limit of this minute is reached."""
        if self._left > 0:
            self._left -= 1
            self._log.warning(text, *arguments)
        else:
            self.suppressed += 1

    def tick(self, now: Steady) -> None:
        """Begin a new minute when the last one is over."""
        if now >= self._next_ms:
            self._next_ms, self._left = now + 60_000, LINES_A_MINUTE
            if self.suppressed:
                self._log.warning("suppressed %d more warnings in the last minute", self.suppressed)
                self.suppressed = 0


class CountedLog:
    """Log of warnings that peers can repeat: the first of each kind, then the number of further ones each minute.

    The kinds are texts such as an address; those beyond `KINDS_MAX` in a minute are counted together.
    """

    def __init__(self, log: logging.Logger, what: str, now: Steady) -> None:
        self._log, self._what, self._next_ms = log, what, now + 60_000
        self._counts: dict[str, int] = {}

    @property
    def is_counting(self) -> bool:
        """Whether there was a warning since the minute began, or in the minute before."""
        return bool(self._counts)

    def count(self, kind: str) -> None:
        """Count a warning; the first of its kind since a minute without any is logged at once."""
        if kind in self._counts:
            self._counts[kind] += 1
        elif len(self._counts) < KINDS_MAX:
            self._counts[kind] = 0
            self._log.warning("%s: %s", self._what, kind)
        else:
            self._counts[OTHERS] = self._counts.get(OTHERS, 0) + 1

    def tick(self, now: Steady) -> None:
        """Log the counts when a minute is over, and begin a new one."""
        if now < self._next_ms:
            return
        self._next_ms = now + 60_000
        for kind, count in self._counts.items():
            if count:
                self._log.warning("%s: %s, %d times in the last minute", self._what, kind, count)
        self._counts = {kind: 0 for kind, count in self._counts.items() if count and kind != OTHERS}


def to_stderr(level: int) -> None:
    """Write log lines of this process and its libraries to standard error, from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(escape)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler])


def set_up() -> None:
    """Escape Halfmoon's log lines from now on. Called when the package is imported; a second call does nothing."""
    for name in NAMES:
        logging.getLogger(name).addFilter(escape)
