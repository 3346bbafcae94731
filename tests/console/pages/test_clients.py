"""Connected clients, page by page."""

from __future__ import annotations

from halfmoon.client.aio import AsyncPullConsumer
from halfmoon.results import ClientList, ConnectedClient
from tests.console.conftest import Site


async def test_members_of_a_group_are_listed_with_the_same_facts_as_json(site: Site, topic: str):
    member = AsyncPullConsumer(group="C_clients", nameserver=site.nameserver)
    member.subscribe(topic)
    async with member:
        page, twin = await site.text("/clients", group="C_clients"), await site.json("/clients", group="C_clients")

    (client,) = twin["clients"]
    assert (client["kind"], client["language"]) == ("consumer", "PYTHON")
    assert client["client_id"] in page
    assert 'href="/group?name=C_clients"' in page


async def test_a_group_that_nobody_is_in_says_so(site: Site):
    assert "No client is connected." in await site.text("/clients", group="Nobody")
    assert (await site.json("/clients", group="Nobody"))["clients"] == []


async def test_many_clients_are_paged_and_every_one_stands_on_one_page(site: Site, monkeypatch):
    every = [ConnectedClient("producer", "P", f"client-{n:03}", "a:1", "JAVA", "V5", ["b:1"]) for n in range(250)]

    async def clients(_self: object, _group: str | None) -> ClientList:
        return ClientList(every, ["b:2"])

    monkeypatch.setattr(type(site.admin), "clients", clients)
    first = await site.json("/clients")
    second = await site.json("/clients", after=first["next"])
    third = await site.json("/clients", after=second["next"])

    assert [row["client_id"] for part in (first, second, third) for row in part["clients"]] == [each.client_id for each in every]
    assert third["next"] is None
    assert 'rel="next"' in await site.text("/clients")
    assert "producers of groups that are not named, at b:2" in await site.text("/clients")
