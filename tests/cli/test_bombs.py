"""Every command that writes bodies, over messages that unpack to a thousand times their bytes: what it writes is bounded."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from halfmoon.cli.shared.bodies import FOR_EACH_BYTE
from halfmoon.client.admin import AsyncAdmin
from halfmoon.client.core.admin.resend import store_copy
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.wire.codes import COMPRESSED, ZLIB
from halfmoon.wire.properties import encode
from tests.topics import new_topic

BOMB = zlib.compress(b" " * 12 * 2**20, 9)
COUNT = 10


def store_bombs(nameserver: str, topic: str, **properties: str) -> list[str]:
    """Store bombs in queue 0 of a topic; return their ids."""

    async def store() -> list[str]:
        async with AsyncAdmin(nameserver=nameserver) as admin:
            address = (await admin.topic_route(topic)).broker_datas[0].broker_addrs[0]
            ids = []
            for number in range(COUNT):
                unique = f"{number:032d}"
                text = encode({"UNIQ_KEY": unique, "KEYS": "o-1", **properties}).decode()
                outgoing = Outgoing(topic, BOMB, text, unique, 0, COMPRESSED | ZLIB)
                ids.append(await admin.run(store_copy(outgoing, 0, address, 3000)))
            return ids

    return asyncio.run(store())


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize(
    "command",
    [("consume", "--topic"), ("consume", "--group", "C_bombs", "--topic"), ("msg", "find", "--key", "o-1", "--topic"),
     ("msg", "find", "--since", "1h", "--topic"), ("msg", "dump")],
    ids=" ".join,
)  # fmt: skip
def test_a_command_writes_no_more_than_a_frame_and_what_is_stored_allows(run, cluster, command, as_json):
    topic = new_topic(cluster.nameserver)
    store_bombs(cluster.nameserver, topic)
    more = ["--nameserver", cluster.nameserver] if command == ("msg", "dump") else []

    ran = run(*command, topic, *more, *as_json)

    allowed = FRAME_BYTES_MAX + FOR_EACH_BYTE * COUNT * len(BOMB)
    assert ran.code == 0, ran.err
    assert len(ran.out) < allowed + COUNT * 4000
    if as_json or command == ("msg", "dump"):
        rows = ran.json() if command[1] == "find" else ran.lines()
        assert len(rows) == COUNT
        left_out = [row for row in rows if "body_left_out" in row]
        assert len(left_out) == COUNT - 1
        assert {row["body"] for row in left_out} == {None}
        assert "unpack to more than 32 times" in left_out[0]["body_left_out"]
        assert ran.err.count("is left out") == 1
        assert left_out[0]["offset_msg_id"] in ran.err
