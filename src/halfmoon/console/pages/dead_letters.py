"""Pages of dead letters: messages that consumer groups gave up, the reasons, and their replay, each once."""

from __future__ import annotations

from typing import Any

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.pages.bodies import body_of, unpacking
from halfmoon.console.pages.messages import fields, row, rows
from halfmoon.console.pages.send import EDITED_BYTES_MAX, editable, lines, properties_of
from halfmoon.console.pages.topics import gathered
from halfmoon.console.render import at
from halfmoon.console.tables import ordered
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.model import DeadLetter, Replayed

PREFIX = "%DLQ%"
REPLAY_MS_MAX = 60_000
"""Time limit of one form: letters that are not sent by then are named, and can be replayed again."""
FAILURES_MAX = 10
TARGETS = {"group": "its group alone", "topic": "the topic it came from, to all groups"}
_under_way: set[str] = set()


async def dead_letters(asked: Asked) -> Facts:
    """Return a page of a group's dead letters, the newest first; without a group, the groups that have some."""
    group = asked.text("group", "")
    facts: Facts = {"group": group, "groups": [], "letters": [], "next": None, "short": "", "targets": TARGETS}
    if not group:
        topics, more = asked.rows([topic for topic in await asked.admin.topics() if topic.startswith(PREFIX)])
        groups = map(_group, topics, await gathered(asked.admin.topic_stats, topics))
        shown = [each for each in groups if each["count"] or each["error"]]
        return facts | {"groups": ordered(shown, asked.text("sort", "-count"), lambda each: each["group"]), "next": more}
    page = await asked.admin.dead_letter_page(
        group, after=asked.after, count_max=PAGE_SIZE,
        newest_first=asked.choice("order", ("newest", "oldest"), "newest") == "newest", begin_ms=asked.moment("since", "") or 0,
        end_ms=asked.moment("until", ""), key=asked.text("key", "") or None, reason=asked.text("reason", "") or None,
        expression=asked.text("tags", "*"),
    )  # fmt: skip
    letters = asked.sorted(await unpacking(_rows, page.letters))
    return facts | {"letters": letters, "next": page.next, "short": page.short}


def _group(topic: str, ends: Any) -> Facts:
    facts: Facts = {"group": topic.removeprefix(PREFIX), "count": 0, "newest_ms": 0, "error": ""}
    if isinstance(ends, HalfmoonError):
        return facts | {"error": str(ends)}
    newest_ms = max((queue.last_update_timestamp for queue in ends.values()), default=0)
    return facts | {"count": sum(queue.max_offset - queue.min_offset for queue in ends.values()), "newest_ms": newest_ms}


def _rows(letters: list[DeadLetter]) -> list[Facts]:
    return [_row(letter) for letter in letters]


def _row(letter: DeadLetter) -> Facts:
    facts = {name: getattr(letter, name) for name in ("topic", "reason", "tries", "replay_of", "dead_lettered_ms")}
    return row(letter.message) | facts | {"id": letter.offset_msg_id}


# ---------------------------------------------------------------- one


async def dead_letter(asked: Asked) -> Facts:
    """Return all of one dead letter, what a form can change of it, and where it was replayed to."""
    group = asked.text("group")
    letter = await asked.admin.dead_letter(asked.text("id"), group)
    copies = [copy for target in letter.targets() for copy in await asked.admin.replays(letter, target)]
    return {
        "group": group, "letter": await unpacking(_row, letter), "replays": await unpacking(rows, copies),
        "edit": await unpacking(editable, letter.message), "message": fields(letter.message),
        "body": await body_of(letter.message),
    }  # fmt: skip


def _changes(asked: Asked, letter: DeadLetter) -> dict[str, Any]:
    """Return the changes that a form makes to a dead letter. A missing or unchanged field changes nothing."""
    was = editable(letter.message)
    if "body" in asked.values and "body" not in was:
        raise UsageError(f"only bodies that are text, of up to {EDITED_BYTES_MAX:,} bytes, can be edited")
    now = {name: lines(asked.values.get(name, text)) for name, text in was.items()}
    changes: dict[str, Any] = {name: now[name].strip() for name in ("tag", "keys") if now[name].split() != was[name].split()}
    if now.get("body") != was.get("body"):
        changes["body"] = now["body"].replace("\n", "\r\n" if b"\r\n" in letter.message.body else "\n").encode()
    before, after = properties_of(was["properties"]), properties_of(now["properties"])
    if edited := {name: after.get(name) for name in before | after if before.get(name) != after.get(name)}:
        changes["properties"] = edited
    return changes


async def _sent(asked: Asked, letter: DeadLetter, to: str | None, **how: Any) -> Replayed:
    """Replay a letter, and refuse other forms for it meanwhile: each of them would send it, too."""
    if letter.offset_msg_id in _under_way:
        raise UsageError(f"{letter.offset_msg_id} is being replayed by another form")
    _under_way.add(letter.offset_msg_id)
    try:
        return await asked.admin.replay_dead_letter(letter, to=to, **how)
    finally:
        _under_way.remove(letter.offset_msg_id)


async def replay_one(asked: Asked) -> Done:
    """Replay one dead letter, perhaps edited, to its group or to any topic."""
    group, name = asked.text("group"), asked.text("id")
    letter = await asked.admin.dead_letter(name, group)
    changes = await unpacking(_changes, asked, letter)
    done = await _sent(asked, letter, asked.text("to", "") or None, again="again" in asked.values, **changes)
    edited = f", with another {', '.join(changes)}" if changes else ""
    said = f"{name} was replayed to {done.topic}{edited}, as {done.offset_msg_id}."
    if done.already:
        said = f"It was replayed to {done.topic} before, as {done.offset_msg_id}; nothing was sent."
    return Done(said, at("/dead-letter", group=group, id=name))


async def replay(asked: Asked) -> Done:
    """Replay dead letters as they are, one after the other; one that fails stops no other."""
    group, to = asked.text("group"), asked.choice("to", TARGETS, "group")
    names = list(dict.fromkeys(asked.text("id", "", length_max=PAGE_SIZE * 64).split()))
    if not 0 < len(names) <= PAGE_SIZE:
        raise UsageError(f"choose from 1 to {PAGE_SIZE} dead letters")
    end_ms, outcomes, failed = asked.now_ms + REPLAY_MS_MAX, list[str](), list[str]()
    for name in names:
        try:
            if asked.now_ms > end_ms:
                raise UsageError("not tried, because the others took too long")
            letter = await asked.admin.dead_letter(name, group)
            if to == "topic" and not letter.topic:
                raise UsageError("it is not known which topic it came from")
            done = await _sent(asked, letter, letter.topic if to == "topic" else None)
            outcomes.append("replayed before" if done.already else "replayed")
        except HalfmoonError as exc:
            failed.append(f"{name}: {getattr(exc, 'remark', '') or exc}")
    said = [f"{outcomes.count(each)} {each}" for each in ("replayed", "replayed before") if each in outcomes]
    said += [f"{len(failed)} failed ({'; '.join(failed[:FAILURES_MAX])}{'; …' * (len(failed) > FAILURES_MAX)})"] if failed else []
    return Done(f"{', '.join(said)}.", at("/dead-letters", group=group))


PAGES = (
    Page("/dead-letters", "Dead letters", "dead_letters.html", dead_letters, menu="Trouble"),
    Page("/dead-letter", "Dead letter", "dead_letter.html", dead_letter, under="/dead-letters"),
    Change("/dead-letters/replay", replay, ("group", "id", "to")),
    Change("/dead-letter/replay", replay_one, ("group", "id", "to", "again", "tag", "keys", "properties")),
)
