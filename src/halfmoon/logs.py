"""What every line that Halfmoon logs goes through: texts from outside are escaped in it, so that none forges a line or a colour.

A handler on the logger ``halfmoon`` changes each record of its children before the handlers of the program see it, whoever set
those up and however they format. `to_stderr` is the log of our own programs. Decides nothing about what is logged.
"""

from __future__ import annotations

import logging
import sys
from traceback import format_tb
from types import TracebackType

LENGTH_MAX = 16_384
"""Characters of one message; a peer may send names and remarks of any length."""

CAUSES_MAX = 8
"""Exceptions of one chain that are shown."""


def escaped(text: str) -> str:
    """Return a text whose characters all can be printed: the others as Python writes them in a literal, the rest as it is."""
    if len(text) > LENGTH_MAX:
        text = f"{text[:LENGTH_MAX]} ... and {len(text) - LENGTH_MAX} characters more"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Escaping(logging.Handler):
    """Escapes the message and the exceptions of each record. Where no other handler is set up, says it as Python would."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)

    def handle(self, record: logging.LogRecord) -> bool:
        """Change the record; nothing of it is kept, so no lock is taken."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Change the record."""
        escape(record)
        if logging.lastResort is not None and record.levelno >= logging.lastResort.level and not self._is_heard(record.name):
            logging.lastResort.handle(record)

    def _is_heard(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def escape(record: logging.LogRecord) -> None:
    """Escape what a record will be formatted from. A record whose message does not fit its arguments is left: `logging` says so."""
    try:
        text = record.getMessage()
    except Exception:
        return
    if (safe := escaped(text)) != text:
        record.msg, record.args = safe, ()
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = _traceback_text(record.exc_info[1])


def _traceback_text(error: BaseException) -> str:
    """Return a traceback as Python writes it, but for the texts of the exceptions, which are escaped."""
    chain: list[tuple[BaseException, str]] = []
    each: BaseException | None = error
    joined = ""
    while each is not None and len(chain) < CAUSES_MAX:
        chain.append((each, joined))
        if each.__cause__ is not None:
            each, joined = each.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
        else:
            each = None if each.__suppress_context__ else each.__context__
            joined = "\nDuring handling of the above exception, another exception occurred:\n\n"
    parts = []
    for one, after in reversed(chain):
        where: TracebackType | None = one.__traceback__
        frames = "Traceback (most recent call last):\n" + "".join(format_tb(where)) if where is not None else ""
        notes = "".join(f"\n{escaped(str(note))}" for note in getattr(one, "__notes__", ()))
        parts.append(f"{frames}{type(one).__module__}.{type(one).__qualname__}: {escaped(str(one))}{notes}\n{after}")
    return "".join(parts).rstrip("\n")


def to_stderr(level: int) -> None:
    """Let this process say on standard error what is logged, by whatever library, from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_escaped)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler])


def _escaped(record: logging.LogRecord) -> bool:
    escape(record)
    return True


def set_up() -> None:
    """Have what Halfmoon logs escaped. Done when the package is imported; a second call does nothing."""
    logger = logging.getLogger("halfmoon")
    if not any(isinstance(handler, Escaping) for handler in logger.handlers):
        logger.addHandler(Escaping())
