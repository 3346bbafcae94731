"""The cluster in figures that are the same for all who look; its brokers, silent or hostile; and its clients, page by page."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from halfmoon.client.aio import AsyncPullConsumer
from halfmoon.console.sampler import SAMPLE_MS
from halfmoon.errors import ConnectFailed
from halfmoon.results import ClientList, ConnectedClient, SlaveStatus
from tests.console.conftest import Site
from tests.console.test_sampler import APACHES, BROKER, SILENT, Cluster

HOSTILE = "<script>alert(1)</script>\u202e\"'&"


@pytest.fixture
def cluster_of(site):
    """Have the site's sampler ask a cluster of the test."""

    def of(*brokers, groups=()):
        cluster = Cluster(*brokers, groups=groups)
        sampler = site.services.sampler
        sampler.admin, sampler.now_ms = cluster, lambda: cluster.now
        return cluster, sampler

    return of


def text_of(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def test_a_real_broker_in_figures(site):
    await site.services.sampler.sample()
    page, facts = await site.text("/"), await site.json("/")
    assert "The cluster is healthy ." in text_of(page)
    assert (facts["health"], facts["brokers"], facts["findings"]) == ("healthy", 1, [])
    assert 0 < facts["disk_used"] < 1
    assert facts["history"]["disk_used"][-1][1] == facts["disk_used"]


async def test_before_the_first_sample_nothing_is_claimed(site):
    assert "The cluster is unknown : nothing has been measured yet." in text_of(await site.text("/"))
    assert "No group is behind" not in await site.text("/")


async def test_figures_charts_and_the_groups_furthest_behind(site, cluster_of):
    _, sampler = cluster_of(BROKER, groups=[f"C_{number:02}" for number in range(30)])
    await sampler.sample()
    page = await site.text("/")
    text = text_of(page)
    assert '<a href="/groups">Backlog</a>' in page
    assert '<a href="/transactions">Transactions</a>' in page
    for tile in ("Messages in 10 per second", "Messages out 5 per second", "Backlog 435 messages in 29 groups",
                 "Transactions 3 pending, the oldest for 1m00s", "Disk used 25%", "Requests refused 2"):  # fmt: skip
        assert tile in text
    assert [ElementTree.fromstring(svg).find("title").text for svg in re.findall(r"<svg width.*?</svg>.*?</svg>", page)] == [
        "Messages per second", "Backlog", "Pending transactions", "Disk used",
    ]  # fmt: skip
    assert re.findall(r'href="/group\?name=(C_\d\d)"', page) == [f"C_{number}" for number in range(29, 19, -1)]
    assert "nan" not in page.lower()


async def test_the_part_that_is_live_is_the_same_bytes_for_all_and_nothing_of_the_visitor_stands_in_it(site, cluster_of):
    cluster, sampler = cluster_of(BROKER, groups=["C_one", "C_two"])
    await sampler.sample()
    of_operator = await site.text("/overview/live")
    assert of_operator in await site.text("/")
    csrf = site.csrf
    site.log_in("looker", "viewer")
    assert await site.text("/overview/live") == of_operator
    assert not {"admin", "looker", csrf, site.csrf} & set(re.findall(r"[\w-]+", of_operator))
    assert "form" not in re.findall(r"<(\w+)", of_operator)
    asked = len(cluster.asked)
    for _ in range(20):
        await site.text("/overview/live")
    assert len(cluster.asked) == asked, "who looks asks nobody"

    cluster.now += SAMPLE_MS
    await sampler.sample()
    assert await site.text("/overview/live") != of_operator


async def test_a_cluster_that_does_not_answer_is_down_since_then_with_the_reason(site, cluster_of):
    cluster, sampler = cluster_of(BROKER, groups=["C_shop"])
    await sampler.sample()
    cluster.error = ConnectFailed("no route to ns", "ns:1")
    for _ in range(8):
        cluster.now += SAMPLE_MS
        await sampler.sample()
    text = text_of(await site.text("/"))
    assert "The cluster is down , since 2023-11-14 22:13:22.000 UTC (" in text
    assert "no route to ns" in text
    assert "in: not known now, from 10 to 10" in text
    assert "Messages in - per second" in text
    assert "No group is behind" not in text


async def test_a_fault_names_its_broker_and_links_to_it(site, cluster_of):
    _, sampler = cluster_of(BROKER, SILENT)
    await sampler.sample()
    part = await site.text("/overview/live")
    assert "<p>c: does not answer: no route</p>" in part
    assert '<a class="button" href="/broker?address=c%3A1">Open the broker</a>' in part


async def test_apaches_brokers_report_no_transactions(site, cluster_of):
    _, sampler = cluster_of(APACHES)
    await sampler.sample()
    text = text_of(await site.text("/"))
    assert "Messages in 1.5 per second" in text
    assert "Transactions - not counted, but listed Disk used -" in text


async def test_what_was_left_out_is_said(site, cluster_of):
    _, sampler = cluster_of(BROKER, groups=[f"C_{number:04}" for number in range(1200)])
    await sampler.sample()
    assert "500 of 1,200 groups were checked: those with the largest lag" in text_of(await site.text("/"))


async def test_hostile_names_are_shown_and_do_nothing(site, cluster_of):
    _, sampler = cluster_of(replace(BROKER, name=HOSTILE, fault=HOSTILE), groups=["C_one", HOSTILE])
    await sampler.sample()
    page = await site.text("/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
    assert (await site.json("/"))["furthest_behind"][0]["group"] == HOSTILE


# ---------------------------------------------------------------- brokers


def answers(site, *brokers):
    """Have the site's cluster consist of these brokers."""

    async def found():
        return list(brokers)

    site.admin.brokers = found


async def test_a_real_broker_and_its_name_server(site, cluster):
    page, facts = await site.text("/brokers"), await site.json("/brokers")
    [broker] = facts["brokers"]
    assert (broker["name"], broker["address"], broker["fault"]) == ("broker-a", cluster.broker, None)
    assert facts["name_servers"] == [cluster.nameserver]
    assert f"broker-a/0 {cluster.broker}" in text_of(page)


async def test_one_broker_with_its_own_statistics(site, cluster):
    page, facts = await site.text("/broker", address=cluster.broker), await site.json("/broker", address=cluster.broker)
    assert facts["statistics"]["brokerVersionDesc"] == facts["broker"]["version"] == "V4_9_8"
    assert "transactionsPending" in page
    assert '<h1>Broker <code title="broker-a">broker-a</code></h1>' in page
    assert "<title>Broker broker-a · Halfmoon</title>" in page


async def test_the_slaves_of_a_master_and_how_far_each_is_behind(site, cluster):
    async def slaves(address):
        assert address == cluster.broker
        return [SlaveStatus("10.0.0.9:4000", 2048, 61_000, False), SlaveStatus(HOSTILE, 0, 0, True)]

    assert "Slaves" not in await site.text("/broker", address=cluster.broker)
    site.admin.slaves = slaves
    page = await site.text("/broker", address=cluster.broker)
    assert "Slaves Connection Behind Behind for State 10.0.0.9:4000 2.0 KiB 1m01s not in sync" in text_of(page)
    assert "0 B 0.0s in sync" in text_of(page)
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("behind", "shown"), [((0, None), "Behind its master: 0 B ."), ((2048, 61_000), "Behind its master: 2.0 KiB for 1m01s .")]
)
async def test_a_slave_says_how_far_it_is_behind(site, cluster, behind, shown):
    slave = replace(BROKER, id=1, address=cluster.broker, behind_bytes=behind[0], behind_ms=behind[1])
    answers(site, slave)
    assert shown.replace(" .", ".") in text_of(await site.text("/broker", address=cluster.broker))


async def test_a_member_of_a_pair_says_its_role(site, cluster):
    member = replace(BROKER, address=cluster.broker, pair=f"master of epoch 3, complete: {HOSTILE}")
    answers(site, member)
    page = await site.text("/broker", address=cluster.broker)
    assert "Pair: master of epoch 3, complete: " in text_of(page)
    assert "<script>alert" not in page


async def test_an_address_that_is_no_broker_of_the_cluster_is_not_asked(site, cluster):
    for address in (cluster.nameserver, "127.0.0.1:1", HOSTILE):
        answer = await site.get("/broker", address=address)
        assert answer.status_code == 400
        assert "the cluster has no broker" in site.said(answer)
        assert "<script>alert" not in answer.text


async def test_brokers_that_are_silent_or_report_less(site):
    answers(site, APACHES, SILENT, BROKER)
    rows = text_of(await site.text("/brokers"))
    assert "b/0 answers b:1 1.5 0 - - - - V4" in rows
    assert "c/0 does not answer: no route c:1" in rows
    assert "a/0 answers a:1 10 5 3 25% 2 0.0s V4" in rows
    assert "does not answer: no route" in await site.text("/broker", address="c:1")


async def test_hostile_names_of_brokers_are_shown_and_do_nothing(site):
    answers(site, replace(SILENT, name=HOSTILE, cluster=HOSTILE, address=HOSTILE, fault=HOSTILE))
    for page in (await site.text("/brokers"), await site.text("/broker", address=HOSTILE)):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page


# ---------------------------------------------------------------- clients


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


async def test_many_clients_are_paged_and_every_one_stands_on_one_page(site: Site):
    every = [ConnectedClient("producer", "P", f"client-{n:03}", "a:1", "JAVA", "V5", ["b:1"]) for n in range(250)]

    async def clients(_group: str | None, *, failing: list[str]) -> ClientList:
        return ClientList(every, ["b:2"])

    site.answers(clients=clients)
    first = await site.json("/clients")
    second = await site.json("/clients", after=first["next"])
    third = await site.json("/clients", after=second["next"])

    assert [row["client_id"] for part in (first, second, third) for row in part["clients"]] == [each.client_id for each in every]
    assert third["next"] is None
    assert 'rel="next"' in await site.text("/clients")
    assert "producers of groups that are not named, at b:2" in await site.text("/clients")
