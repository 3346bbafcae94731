"""Every page over messages that unpack to a thousand times their bytes: what is unpacked is bounded, away from the event loop."""

from __future__ import annotations

import threading
import zlib

import pytest

from halfmoon.client.core.admin.resend import store_copy
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.console.page import Page
from halfmoon.console.pages import ALL
from halfmoon.wire import compression
from halfmoon.wire.codes import COMPRESSED, ZLIB
from halfmoon.wire.properties import encode
from tests.topics import new_topic

UNPACKED = 8 * 2**20
BOMB = zlib.compress(b" " * UNPACKED, 9)
COUNT = 10
LISTED_MAX = 100 * 1024
"""What may be unpacked for a list: the beginnings of its rows."""


class Unpacked(dict):
    """How many bytes each thread has unpacked."""

    def count(self, content):
        name = threading.current_thread().name
        self[name] = self.get(name, 0) + len(content)
        return content


@pytest.fixture
def unpacked(monkeypatch):
    found, decompressobj = Unpacked(), zlib.decompressobj

    class Counted:
        def __init__(self):
            self.stream = decompressobj()

        def decompress(self, *given):
            return found.count(self.stream.decompress(*given))

        @property
        def eof(self):
            return self.stream.eof

    monkeypatch.setattr(compression.zlib, "decompressobj", Counted)
    return found


@pytest.fixture
async def bombs(site, cluster):
    """The topic, the group and the ids of messages and dead letters that are bombs."""
    topic = new_topic(site.nameserver)
    group = f"C_{topic}"
    await site.admin.create_topic(f"%DLQ%{group}", queue_count=1, perm=6)
    route = await site.admin.topic_route(topic)
    address = route.broker_datas[0].broker_addrs[0]
    ids = {}
    for name in (topic, f"%DLQ%{group}"):
        for number in range(COUNT):
            unique = f"{name[:3]}{number:029d}"
            properties = encode({"UNIQ_KEY": unique, "KEYS": "o-1", "TRAN_MSG": ""}).decode()
            outgoing = Outgoing(name, BOMB, properties, unique, 0, COMPRESSED | ZLIB)
            ids[name] = await site.admin.run(store_copy(outgoing, 0, address, 3000))
    return topic, group, ids[topic], ids[f"%DLQ%{group}"], route.broker_datas[0].broker_name


def queries(bombs):
    """What pages can be asked for that have to do with the bombs; each page takes what it knows."""
    topic, group, message, letter, broker = bombs
    named = {"topic": topic, "group": group, "name": topic, "broker": broker, "queue": "0", "offset": "0"}
    yield {"topic": topic}
    yield {"topic": topic, "key": "o-1"}
    yield {"topic": topic, "broker": broker, "queue": "0"}
    yield {**named, "id": message}
    yield {"group": group, "id": letter}
    yield {"group": group}


async def test_no_page_unpacks_more_than_one_body_nor_anything_in_the_event_loop(site, bombs, unpacked):
    loop = threading.current_thread().name
    most = 0
    for page in ALL:
        if not isinstance(page, Page) or not page.template:
            continue
        for query in queries(bombs):
            unpacked.clear()
            await site.get(page.path, **query)
            assert loop not in unpacked, (page.path, query)
            assert sum(unpacked.values()) <= 2 * UNPACKED + LISTED_MAX, (page.path, query)
            most = max(most, sum(unpacked.values()))
    assert most >= UNPACKED  # the walk meets bodies


@pytest.mark.parametrize("number", [0, 1, 2, 5])
async def test_a_list_unpacks_only_what_it_shows(site, bombs, unpacked, number):
    query = list(queries(bombs))[number]
    path = "/messages" if "topic" in query else "/dead-letters"

    facts = await site.json(path, **query)

    rows = facts.get("rows") or facts["letters"]
    assert len(rows) == COUNT
    assert {(row["start"].strip(" "), row["size_bytes"]) for row in rows} == {("", len(BOMB))}
    assert 0 < sum(unpacked.values()) < LISTED_MAX


async def test_a_bomb_is_sent_again_as_it_is(site, bombs, unpacked):
    topic, group, message, letter, _ = bombs

    assert "A copy of the message is stored" in site.said(await site.post("/message/resend", topic=topic, id=message))
    assert "1 replayed" in site.said(await site.post("/dead-letters/replay", group=group, id=letter, to="group"))
    assert sum(unpacked.values()) < UNPACKED + LISTED_MAX  # the page of the message, to which the first one leads
