"""The overview: what the sampler knows, the same HTML for all who look, with nothing of the visitor in it."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from halfmoon.console.sampler import SAMPLE_MS
from halfmoon.errors import ConnectFailed
from tests.console.test_sampler import APACHES, BROKER, SILENT, Cluster

HOSTILE = "<script>alert(1)</script>\u202e\"'&"


@pytest.fixture
def cluster_of(site):
    """Have the site's sampler ask a cluster of the test."""

    def of(*brokers, groups=()):
        cluster = Cluster(*brokers, groups=groups)
        sampler = site.services.sampler
        sampler._admin, sampler._now_ms = cluster, lambda: cluster.now
        return cluster, sampler

    return of


def text_of(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def test_a_real_broker_in_figures(site):
    await site.services.sampler.sample()
    page, facts = await site.text("/"), await site.json("/")
    assert "The cluster is healthy ." in text_of(page)
    assert (facts["health"], facts["brokers"], facts["faults"]) == ("healthy", 1, [])
    assert 0 < facts["disk_used"] < 1
    assert facts["history"]["disk_used"] == [[facts["at_ms"], facts["disk_used"]]]


async def test_before_the_first_sample_nothing_is_claimed(site):
    assert "The cluster is unknown : nothing has been measured yet." in text_of(await site.text("/"))
    assert "No group is behind" not in await site.text("/")


async def test_figures_charts_and_the_groups_furthest_behind(site, cluster_of):
    _, sampler = cluster_of(BROKER, groups=[f"C_{number:02}" for number in range(30)])
    await sampler.sample()
    page = await site.text("/")
    text = text_of(page)
    assert '<a href="/groups">Backlog</a>' in page
    assert '<a href="/transactions">Pending transactions</a>' in page
    for tile in ("Messages in 10 a second", "Messages out 5 a second", "Backlog 435 messages in 29 groups",
                 "Pending transactions 3 the oldest for 1m00s", "Disk used 25%", "Requests refused 2"):  # fmt: skip
        assert tile in text
    assert [ElementTree.fromstring(svg).find("title").text for svg in re.findall(r"<svg.*?</svg>", page)] == [
        "Messages a second", "Backlog", "Pending transactions", "Disk used",
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
    assert "The cluster is down , since 2023-11-14T22:13:22.000Z ." in text
    assert "no route to ns" in text
    assert "in: not known now, from 10 to 10" in text
    assert "Messages in - a second" in text
    assert "No group is behind" not in text


async def test_a_fault_names_its_broker_and_links_to_it(site, cluster_of):
    _, sampler = cluster_of(BROKER, SILENT)
    await sampler.sample()
    assert '<a href="/broker?address=c%3A1">c: does not answer: no route</a>' in await site.text("/overview/live")


async def test_apaches_brokers_report_no_transactions(site, cluster_of):
    _, sampler = cluster_of(APACHES)
    await sampler.sample()
    text = text_of(await site.text("/"))
    assert "Messages in 1.5 a second" in text
    assert "Pending transactions - not counted, but listed Disk used -" in text


async def test_what_was_left_out_is_said(site, cluster_of):
    _, sampler = cluster_of(BROKER, groups=[f"C_{number:04}" for number in range(1200)])
    await sampler.sample()
    assert "Of 1,200 groups the first 500 by name are asked; halfmoon status asks all." in text_of(await site.text("/"))


async def test_hostile_names_are_shown_and_do_nothing(site, cluster_of):
    _, sampler = cluster_of(replace(BROKER, name=HOSTILE, fault=HOSTILE), groups=["C_one", HOSTILE])
    await sampler.sample()
    page = await site.text("/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
    assert (await site.json("/"))["furthest_behind"][0]["group"] == HOSTILE
