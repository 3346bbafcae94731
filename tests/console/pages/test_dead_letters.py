"""Dead letters in the console: real ones, with their reasons, replayed once, and hostile ones that are only shown."""

from __future__ import annotations

import asyncio
import os
import re
import time
from functools import partial
from html import unescape

import pytest

from halfmoon import Admin, ConsumeContext, ConsumeFrom, Message, Producer, PushConsumer
from halfmoon.console.pages import dead_letters as module
from tests.console.conftest import Site
from tests.waiting import until

pytestmark = pytest.mark.slow

HOSTILE = '<script>alert(1)</script>"\u202e'


class Dead:
    """A group with dead letters of a topic, and what it consumed once ``works`` was set."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.nameserver, self.topic, self.group = nameserver, topic, f"C_{topic}"[:60]
        self.works, self.got = False, []
        self.consumer = PushConsumer(group=self.group, nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
        self.consumer.subscribe(topic)
        self.consumer.on_message(self.handle)

    def handle(self, messages, context: ConsumeContext):
        if not self.works:
            context.delay_level = -1
            raise TimeoutError(messages[0].properties.get("why", "no bank"))
        self.got += messages

    def die(self, *messages: Message) -> list[str]:
        """Send messages and return the ids of their dead letters, the oldest first."""
        with Admin(nameserver=self.nameserver) as admin, Producer(group="P_letters", nameserver=self.nameserver) as producer:
            before = len(admin.dead_letters(self.group))
            for number, message in enumerate(messages, before + 1):
                producer.send(message)
                until(lambda n=number: len(admin.dead_letters(self.group)) == n)
            return [letter.offset_msg_id for letter in admin.dead_letters(self.group)[before:]]


@pytest.fixture
def dead(cluster, topic):
    found = Dead(cluster.nameserver, topic)
    with found.consumer:
        yield found


def letter(dead: Dead, body: bytes = b"x", why: str = "no bank", **more) -> Message:
    return Message(dead.topic, body, properties={"why": why, **more.pop("properties", {})}, **more)


async def test_groups_with_dead_letters_are_listed_and_their_letters_the_newest_first(site: Site, dead: Dead):
    ids = dead.die(letter(dead, b"one", keys=["k1"], tag="A"), letter(dead, b"two", why="no stock"))

    groups = await site.json("/dead-letters")
    listed = await site.json("/dead-letters", group=dead.group)
    page = await site.text("/dead-letters", group=dead.group)

    (row,) = [each for each in groups["groups"] if each["group"] == dead.group]
    assert (row["count"], row["error"]) == (2, "")
    assert 0 <= time.time() * 1000 - row["newest_ms"] < 600_000
    assert f"/dead-letters?group={dead.group}" in await site.text("/dead-letters")
    assert [each["id"] for each in listed["letters"]] == ids[::-1]
    newest, oldest = listed["letters"]
    assert (newest["reason"], newest["start"], newest["topic"], newest["tries"]) == ("TimeoutError: no stock", "two", dead.topic, 1)
    assert (oldest["reason"], oldest["keys"], oldest["tag"]) == ("TimeoutError: no bank", "k1", "A")
    assert "no stock" in page
    assert ids[0] in page
    assert ">k1</td>" in page
    assert "<dd>A, k1</dd>" in await site.text("/dead-letter", group=dead.group, id=ids[0])


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ({"key": "k1"}, ["1"]),
        ({"reason": "STOCK"}, ["2"]),
        ({"tags": "A || B"}, ["2", "1"]),
        ({"order": "oldest"}, ["1", "2", "3"]),
        ({"since": "2001-01-01"}, ["3", "2", "1"]),
        ({"until": "2001-01-01T08:00"}, []),
    ],
)
async def test_letters_are_chosen(site: Site, dead: Dead, query, bodies):
    dead.die(letter(dead, b"1", keys=["k1"], tag="A"), letter(dead, b"2", why="no stock", tag="B"), letter(dead, b"3"))

    assert [each["start"] for each in (await site.json("/dead-letters", group=dead.group, **query))["letters"]] == bodies


@pytest.mark.parametrize("query", [{"since": "soon"}, {"after": "x"}, {"tags": "||"}, {"order": "odd"}, {"group": "a b"}])
async def test_a_query_that_makes_no_sense_is_refused_in_words(site: Site, query):
    answer = await site.get("/dead-letters", **{"group": "C", **query})

    assert answer.status_code == 400
    assert site.said(answer)


async def test_pages_together_are_all_letters(site: Site, dead: Dead, monkeypatch):
    ids = dead.die(*(letter(dead, b"%d" % n) for n in range(5)))
    monkeypatch.setattr(module, "PAGE_SIZE", 2)

    found, after = [], ""
    while after is not None:
        page = await site.json("/dead-letters", group=dead.group, after=after)
        found += [each["id"] for each in page["letters"]]
        after = page["next"]

    assert found == ids[::-1]
    assert 'rel="next"' in await site.text("/dead-letters", group=dead.group)


async def test_a_replay_sends_each_once_and_says_what_became_of_each(site: Site, dead: Dead):
    first, second = dead.die(letter(dead, b"one"), letter(dead, b"two"))
    gone = first[:-4] + "0003"
    dead.works = True
    await site.post("/dead-letters/replay", group=dead.group, id=first)

    answer = await site.post("/dead-letters/replay", group=dead.group, id=[first, gone, second, first])

    assert site.said(answer).startswith(f"1 replayed, 1 replayed before, 1 failed ({gone}: there is no dead letter")
    assert answer.url.path == "/dead-letters"
    copies = [copy for id in (first, second) for copy in (await site.json("/dead-letter", group=dead.group, id=id))["replays"]]
    assert [copy["topic"] for copy in copies] == [f"%RETRY%{dead.group}"] * 2
    until(lambda: len(dead.got) == 2)
    assert sorted(message.body for message in dead.got) == [b"one", b"two"]
    entry = site.services.audit.read(1)[0]
    assert all(id in entry.fields["id"] for id in (first, second, gone))


async def test_a_replay_to_the_topic_reaches_every_group_of_it(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead))
    await site.post("/dead-letters/replay", group=dead.group, id=id, to="topic")

    with Admin(nameserver=dead.nameserver) as admin:
        assert sum(queue.max_offset for queue in admin.topic_stats(dead.topic).values()) == 2


@pytest.mark.parametrize("fields", [{}, {"id": [f"{n:032X}" for n in range(101)]}, {"id": "x" * 9000}, {"to": "odd"}])
async def test_a_choice_of_none_or_too_many_is_refused(site: Site, fields):
    answer = await site.post("/dead-letters/replay", group="C", **fields)

    assert answer.status_code == 400


async def test_of_many_that_fail_the_first_are_named_with_the_reason_of_each(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead))
    gone = [f"{id[:-4]}{number:04X}" for number in range(1, 13)]

    said = site.said(await site.post("/dead-letters/replay", group=dead.group, id=gone))

    assert said.startswith(f"12 failed ({gone[0]}: there is no dead letter")
    assert (gone[9] in said, gone[10] in said, said.endswith("; …).")) == (True, False, True)


async def test_a_viewer_sees_letters_and_replays_none(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead, b"seen by all"))
    site.log_in("eve", "viewer")

    page = await site.text("/dead-letters", group=dead.group)
    for path in ("/dead-letters/replay", "/dead-letter/replay"):
        assert (await site.post(path, group=dead.group, id=id)).status_code == 403

    assert "seen by all" in page
    assert "checkbox" not in page
    assert '<form class="change"' not in await site.text("/dead-letter", group=dead.group, id=id)
    assert (await site.json("/dead-letter", group=dead.group, id=id))["replays"] == []


# ---------------------------------------------------------------- one


def shown(page: str, name: str) -> str:
    """Return what stands in a field of the form, as a browser would send it."""
    found = re.search(rf'<textarea name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    assert found is not None
    return unescape(found[1]).replace("\r\n", "\n").replace("\n", "\r\n")


async def test_one_is_shown_whole_with_its_earlier_life_and_replays(site: Site, dead: Dead):
    (first,) = dead.die(letter(dead, b"whole", properties={"amount": "7"}))
    await site.post("/dead-letter/replay", group=dead.group, id=first)
    until(partial(later_of, dead, first))
    again = later_of(dead, first)

    before = await site.json("/dead-letter", group=dead.group, id=first)
    now = await site.json("/dead-letter", group=dead.group, id=again)

    assert (before["body"]["text"], before["message"]["properties"]["amount"]) == ("whole", "7")
    assert (before["letter"]["replay_of"], now["letter"]["replay_of"]) == ("", first)
    assert [copy["topic"] for copy in before["replays"]] == [f"%RETRY%{dead.group}"]
    assert f'<a href="/dead-letter?group={dead.group}&amp;id={first}" aria-label="{first}">' in await site.text(
        "/dead-letter", group=dead.group, id=again
    )


def later_of(dead: Dead, first: str) -> str | None:
    with Admin(nameserver=dead.nameserver) as admin:
        return next((each.offset_msg_id for each in admin.dead_letters(dead.group) if each.replay_of == first), None)


async def test_a_form_that_is_sent_as_it_stands_changes_nothing_of_the_copy(site: Site, dead: Dead):
    body = b"\n<b>first</b>\r\nsecond\r\n\r\n"
    (id,) = dead.die(letter(dead, body, keys=["k1", "k2"], tag="A", properties={"amount": "7", "odd": "line\nbreak"}))
    page = await site.text("/dead-letter", group=dead.group, id=id)
    dead.works = True

    answer = await site.post(
        "/dead-letter/replay", group=dead.group, id=id, to="", tag="A", keys="k1 k2",
        properties=shown(page, "properties"), body=shown(page, "body"),
    )  # fmt: skip

    assert re.fullmatch(rf"{id} was replayed to %RETRY%{dead.group}, as [0-9A-F]+\.", site.said(answer))
    (message,) = until(lambda: dead.got)
    assert (message.body, message.tag, message.keys) == (body, "A", ("k1", "k2"))
    assert (message.properties["amount"], message.properties["odd"]) == ("7", "line\nbreak")


async def test_a_copy_may_be_edited_and_go_to_a_topic_and_again(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead, b"old\r\nbody", keys=["k1"], properties={"amount": "7", "kept": "yes"}))
    dead.works = True
    edits = {"tag": "B", "keys": "", "properties": "kept=yes\r\nby=Ada", "body": "new\r\nbody"}

    first = await site.post("/dead-letter/replay", group=dead.group, id=id, to=dead.topic, **edits)
    second = await site.post("/dead-letter/replay", group=dead.group, id=id, to=dead.topic, **edits)
    third = await site.post("/dead-letter/replay", group=dead.group, id=id, to=dead.topic, again="yes", **edits)

    assert f"was replayed to {dead.topic}, with another tag, keys, body, properties, as" in site.said(first)
    assert "nothing was sent" in site.said(second)
    assert f"was replayed to {dead.topic}" in site.said(third)
    until(lambda: len(dead.got) == 2)
    message = dead.got[0]
    assert (message.body, message.tag, message.keys) == (b"new\r\nbody", "B", ())
    assert (message.properties["kept"], message.properties["by"]) == ("yes", "Ada")
    assert "amount" not in message.properties


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"properties": "no equals sign"}, "NAME=VALUE"),
        ({"properties": "DELAY=3"}, "belong to the protocol"),
        ({"properties": "a=" + "x" * 70_000}, "bytes long"),
        ({"body": "x" * (5 << 20)}, "size"),
        ({"to": "%DLQ%C"}, "belongs to one group"),
        ({"to": "no topic of ours"}, "illegal"),
        ({"id": "nothing"}, "there is no dead letter"),
        ({"id": "C0000201000000500000000000000000"}, "there is no dead letter"),
    ],
)
async def test_an_edit_or_target_that_cannot_be_is_refused_and_nothing_is_sent(site: Site, dead: Dead, fields, word):
    (id,) = dead.die(letter(dead))
    answer = await site.post("/dead-letter/replay", **{"group": dead.group, "id": id, **fields})

    assert (answer.status_code in (400, 404, 409), word in site.said(answer)) == (True, True), site.said(answer)
    assert (await site.json("/dead-letter", group=dead.group, id=id))["replays"] == []


async def test_a_body_that_is_no_text_is_shown_in_hex_and_goes_as_it_is(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead, b"\xff\x00\x01"))
    page = await site.text("/dead-letter", group=dead.group, id=id)

    refused = await site.post("/dead-letter/replay", group=dead.group, id=id, body="text")
    await site.post("/dead-letter/replay", group=dead.group, id=id)

    assert "ff 00 01" in page
    assert 'name="body"' not in page
    assert "only bodies that are text" in site.said(refused)


async def test_hostile_reasons_keys_and_bodies_are_shown_and_not_obeyed(site: Site, dead: Dead):
    (id,) = dead.die(letter(dead, HOSTILE.encode(), why=HOSTILE, keys=[HOSTILE], tag=HOSTILE))

    for path in ("/dead-letters", "/dead-letter"):
        page = await site.text(path, group=dead.group, id=id)
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page
        assert "\u202e" not in re.sub(r"<textarea.*?</textarea>|<input[^>]*>", "", page, flags=re.DOTALL)
    assert (await site.json("/dead-letter", group=dead.group, id=id))["body"]["text"] == HOSTILE[:-1] + "\\u202e"


async def test_large_bodies_make_a_page_short_and_it_says_so(site: Site, dead: Dead):
    bodies = [b"0" * (4 << 20), *(os.urandom(4 << 20) for _ in range(5))]  # large as they are stored
    ids = dead.die(*(letter(dead, body) for body in bodies))

    first = await site.json("/dead-letters", group=dead.group)
    second = await site.json("/dead-letters", group=dead.group, after=first["next"])

    assert [each["id"] for each in [*first["letters"], *second["letters"]]] == ids[::-1]
    assert (len(first["letters"]), "large" in first["short"]) == (4, True)
    assert all(len(each["start"]) == 60 for each in first["letters"])
    assert "This page is short" in await site.text("/dead-letters", group=dead.group)
    assert len(await site.text("/dead-letter", group=dead.group, id=ids[0])) < 4.5 * (1 << 20)


async def test_two_tabs_that_replay_a_letter_at_once_send_one_copy(site: Site, dead: Dead):
    (name,) = dead.die(letter(dead))
    one, many = partial(site.post, "/dead-letter/replay"), partial(site.post, "/dead-letters/replay", to="group")

    await asyncio.gather(*(post(group=dead.group, id=name, once=f"tab {n}") for n, post in enumerate((one, many) * 4)))

    assert len((await site.json("/dead-letter", group=dead.group, id=name))["replays"]) == 1
    refusals = ("is being replayed by another form", "replayed before", "; nothing was sent.")
    outcomes = [entry.outcome for entry in site.services.audit.read(8)]
    assert sum(any(text in outcome for text in refusals) for outcome in outcomes) == 7, outcomes
