"""Dead letters: what consumer groups gave up, why, and sending it again, each once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.render import at
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON, RESERVED_PROPERTIES, DeadLetter
from halfmoon.shown.texts import message_facts

PREFIX = "%DLQ%"
LIVES_MAX = 10
REPLAY_MS_MAX = 60_000
"""How long one form may take: what is not sent by then is said, and can be sent again."""
OUTCOMES_MAX, CURSOR_MAX, EDITED_MAX = 32, 8192, 64 * 1024
TARGETS = (("group", "its group alone"), ("topic", "the topic it came from, to all groups"))
_outcomes: dict[str, Facts] = {}
"""What the last forms did, by a secret: for the page that shows it."""
_under_way: set[str] = set()
_PROTOCOL = RESERVED_PROPERTIES | {DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON}


async def dead_letters(asked: Asked) -> Facts:
    """Return a page of a group's dead letters, the newest first; without a group, the groups that have some."""
    group, after = asked.text("group", ""), asked.text("after", "", length_max=CURSOR_MAX)
    facts: Facts = {"group": group, "groups": [], "letters": [], "next": None, "first": not after, "short": "", "targets": TARGETS}
    if not group:
        names = [topic.removeprefix(PREFIX) for topic in await asked.admin.topics() if topic.startswith(PREFIX)]
        behind = [name for name in names if name > after]
        groups = await asyncio.gather(*(_group(asked, name) for name in behind[:PAGE_SIZE]))
        more = behind[PAGE_SIZE - 1] if len(behind) > PAGE_SIZE else None
        return facts | {"groups": [each for each in groups if each["count"] or each["error"]], "next": more}
    page = await asked.admin.dead_letter_page(
        group, after=after, newest_first=asked.choice("order", ("newest", "oldest"), "newest") == "newest",
        begin_ms=_time(asked, "since") or 0, end_ms=_time(asked, "until"), key=asked.text("key", "") or None,
        reason=asked.text("reason", "") or None, expression=asked.text("tags", "*"), count_max=PAGE_SIZE,
    )  # fmt: skip
    return facts | {"letters": [_row(letter) for letter in page.letters], "next": page.next, "short": page.short}


async def _group(asked: Asked, name: str) -> Facts:
    facts: Facts = {"group": name, "count": 0, "newest_ms": 0, "age_ms": 0, "error": ""}
    try:
        queues = (await asked.admin.topic_stats(PREFIX + name)).values()
    except HalfmoonError as exc:
        return facts | {"error": str(exc)}
    newest_ms = max((queue.last_update_timestamp for queue in queues), default=0)
    count = sum(queue.max_offset - queue.min_offset for queue in queues)
    return facts | {"count": count, "newest_ms": newest_ms, "age_ms": max(0, asked.now_ms - newest_ms)}


def _time(asked: Asked, name: str) -> int | None:
    text = asked.text(name, "")
    try:
        at = datetime.fromisoformat(text) if text else None
        return None if at is None else max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(f"{name} must be a time such as 2026-01-31T08:00, in UTC unless it says otherwise, not {text}") from None


def _row(letter: DeadLetter) -> Facts:
    message = letter.message
    return {
        "id": letter.offset_msg_id, "dead_lettered_ms": letter.dead_lettered_ms, "reason": letter.reason, "tries": letter.tries,
        "topic": letter.topic, "keys": " ".join(message.keys), "tag": message.tag or "", "msg_id": message.msg_id,
        "broker": message.broker_name, "size_bytes": len(message.body), "replay_of": letter.replay_of,
        "body": message.body[:400].decode("utf-8", "replace")[:100],
    }  # fmt: skip


# ---------------------------------------------------------------- one


async def dead_letter(asked: Asked) -> Facts:
    """Return all of one dead letter, why it died before, and where it was replayed to."""
    group = asked.text("group")
    letter = await asked.admin.dead_letter(asked.text("id"), group)
    facts: Facts = {"group": group, "letter": _row(letter), "message": message_facts(letter.message), "lives": [], "replays": []}
    for target in letter.targets():
        copies = await asked.admin.replays(letter, target)
        facts["replays"] += [{"topic": target, "id": copy.offset_msg_id, "store_ms": copy.store_ms} for copy in copies]
    before = letter
    try:
        while before.replay_of and len(facts["lives"]) < LIVES_MAX:
            before = await asked.admin.dead_letter(before.replay_of, group)
            facts["lives"].append(_row(before))
    except HalfmoonError as exc:
        facts["lives"].append(
            {"id": before.replay_of, "dead_lettered_ms": 0, "reason": f"not there any more: {exc}", "tries": None}
        )
    return facts | {"edit": {name: value for name, value in _editable(letter).items() if name != "body"}, "text": _text(letter)}


def _text(letter: DeadLetter) -> bool:
    """Whether a form can hold the body and give it back as it is."""
    try:
        text = letter.message.body.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\r\n" for character in text)


def _editable(letter: DeadLetter) -> dict[str, str]:
    """Return what a form can change, as it shows it; properties that no line can hold are left as they are."""
    message = letter.message
    own = {name: value for name, value in message.properties.items() if name not in _PROTOCOL and "=" not in name}
    lines = [f"{name}={value}" for name, value in own.items() if f"{name}{value}".isprintable() and name == name.strip() != ""]
    body = _lines(message.body.decode()) if _text(letter) else ""
    return {
        "tag": " ".join((message.tag or "").split()),
        "keys": " ".join(message.keys),
        "properties": "\n".join(lines),
        "body": body,
    }


def _lines(text: str) -> str:
    """Return a text with the line ends that all browsers agree on."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _changes(asked: Asked, letter: DeadLetter) -> dict[str, Any]:
    """Return what a form changes of a dead letter. A field that is missing or as it was changes nothing."""
    was, changes = _editable(letter), dict[str, Any]()
    now = {name: _lines(asked.values.get(name, text)) for name, text in was.items()}
    for name in ("tag", "keys"):
        if now[name].strip() != was[name]:
            changes[name] = now[name].strip()
    if now["body"] != was["body"]:
        if not _text(letter):
            raise UsageError("only bodies that are text can be edited")
        crlf = b"\r\n" in letter.message.body
        changes["body"] = (now["body"].replace("\n", "\r\n") if crlf else now["body"]).encode()
    before, after = (
        dict(_property(line) for line in text.split("\n") if line.strip()) for text in (was["properties"], now["properties"])
    )
    if len(now["properties"]) > EDITED_MAX:
        raise UsageError(f"properties are longer than {EDITED_MAX:,} characters")
    edited: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    edited |= dict.fromkeys(before.keys() - after.keys())
    if edited:
        changes["properties"] = edited
    return changes


def _property(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals or not name.strip():
        raise UsageError("properties are lines of the form NAME=VALUE")
    return name.strip(), value


async def replay_one(asked: Asked) -> Done:
    """Replay one dead letter, perhaps edited, to its group or to any topic."""
    group, name = asked.text("group"), asked.text("id")
    letter = await asked.admin.dead_letter(name, group)
    changes = _changes(asked, letter)
    with _alone(letter):
        done = await asked.admin.replay_dead_letter(
            letter, to=asked.text("to", "") or None, again="again" in asked.values, **changes
        )
    edited = f", with another {', '.join(changes)}" if changes else ""
    said = f"It was replayed to {done.topic} before, as {done.offset_msg_id}; nothing was sent."
    said = said if done.already else f"{name} was replayed to {done.topic}{edited}, as {done.offset_msg_id}."
    return Done(said, at("/dead-letter", group=group, id=name))


@contextmanager
def _alone(letter: DeadLetter) -> Iterator[None]:
    """Keep other forms from a letter while one replays it: each of them would find that nothing was sent yet, and send."""
    if letter.offset_msg_id in _under_way:
        raise UsageError(f"{letter.offset_msg_id} is being replayed by another form")
    _under_way.add(letter.offset_msg_id)
    try:
        yield
    finally:
        _under_way.remove(letter.offset_msg_id)


# ---------------------------------------------------------------- many


async def replay(asked: Asked) -> Done:
    """Replay dead letters as they are, one after the other; one that fails stops no other."""
    group, to = asked.text("group"), asked.choice("to", tuple(name for name, _ in TARGETS), "group")
    names = list(dict.fromkeys(asked.text("id", "", length_max=PAGE_SIZE * 64).split()))
    if not 0 < len(names) <= PAGE_SIZE:
        raise UsageError(f"choose from 1 to {PAGE_SIZE} dead letters")
    end_ms, rows = asked.now_ms + REPLAY_MS_MAX, list[Facts]()
    for name in names:
        if asked.now_ms > end_ms:
            rows.append({"id": name, "outcome": "failed", "reason": "not tried: the others took too long", "copy": ""})
        else:
            rows.append(await _replayed(asked, group, name, to))
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("replayed", "replayed before", "failed")}
    secret = secrets.token_urlsafe(16)
    _outcomes[secret] = {"group": group, "rows": rows, "counts": counts}
    while len(_outcomes) > OUTCOMES_MAX:
        del _outcomes[next(iter(_outcomes))]
    failed = [row["id"] for row in rows if row["outcome"] == "failed"]
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    said += f" ({' '.join(failed)})" if failed else ""
    return Done(f"{said}.", at("/dead-letters/replayed", outcome=secret))


async def _replayed(asked: Asked, group: str, name: str, to: str) -> Facts:
    try:
        letter = await asked.admin.dead_letter(name, group)
        if to == "topic" and not letter.topic:
            raise UsageError("it is not known which topic it came from")
        with _alone(letter):
            done = await asked.admin.replay_dead_letter(letter, to=letter.topic if to == "topic" else None)
    except HalfmoonError as exc:
        return {"id": name, "outcome": "failed", "reason": str(exc), "copy": ""}
    return {"id": name, "outcome": "replayed before" if done.already else "replayed", "reason": "", "copy": done.offset_msg_id}


async def replayed(asked: Asked) -> Facts:
    """Return what one form did with each dead letter."""
    facts = _outcomes.get(asked.text("outcome"))
    if facts is None:
        raise UsageError("this outcome is not kept any more; the audit log has it")
    return facts


PAGES = (
    Page("/dead-letters", "Dead letters", "dead_letters.html", dead_letters, menu=True),
    Page("/dead-letter", "Dead letter", "dead_letter.html", dead_letter, under="/dead-letters"),
    Page("/dead-letters/replayed", "Replayed", "replayed.html", replayed, under="/dead-letters"),
    Change("/dead-letters/replay", replay, ("group", "id", "to")),
    Change("/dead-letter/replay", replay_one, ("group", "id", "to", "again", "tag", "keys", "properties")),
)
