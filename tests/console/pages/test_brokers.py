"""Brokers as they say they are: of Halfmoon, of Apache, silent, hostile; and that nobody else is asked."""

from __future__ import annotations

from msgspec.structs import replace

from tests.console.pages.test_overview import HOSTILE, text_of
from tests.console.test_sampler import APACHES, BROKER, SILENT


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
    assert f"broker-a/0 {cluster.broker} DefaultCluster answers" in text_of(page)


async def test_one_broker_with_its_own_statistics(site, cluster):
    page, facts = await site.text("/broker", address=cluster.broker), await site.json("/broker", address=cluster.broker)
    assert facts["statistics"]["brokerVersionDesc"] == facts["broker"]["version"] == "V4_9_8"
    assert "transactionsPending" in page
    assert "<h1>Broker <code>broker-a</code></h1>" in page
    assert "<title>Broker broker-a · Halfmoon</title>" in page


async def test_an_address_that_is_no_broker_of_the_cluster_is_not_asked(site, cluster):
    for address in (cluster.nameserver, "127.0.0.1:1", HOSTILE):
        answer = await site.get("/broker", address=address)
        assert answer.status_code == 400
        assert "the cluster has no broker" in site.said(answer)
        assert "<script>alert" not in answer.text


async def test_brokers_that_are_silent_or_report_less(site):
    answers(site, APACHES, SILENT, BROKER)
    rows = text_of(await site.text("/brokers"))
    assert "b/0 b:1 C answers 1.5 0 - - - - V4" in rows
    assert "c/0 c:1 C does not answer: no route" in rows
    assert "a/0 a:1 C answers 10 5 3 25% 2 0.0s V4" in rows
    assert "does not answer: no route" in await site.text("/broker", address="c:1")


async def test_hostile_names_are_shown_and_do_nothing(site):
    answers(site, replace(SILENT, name=HOSTILE, cluster=HOSTILE, address=HOSTILE, fault=HOSTILE))
    for page in (await site.text("/brokers"), await site.text("/broker", address=HOSTILE)):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
