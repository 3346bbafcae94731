"""Groups in the order of any column, and a message that blocks its queue: shown in red, and skipped with a reason."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from halfmoon import Admin, MessageQueue
from halfmoon.console.pages import groups
from halfmoon.results import Finding, GroupHealth
from halfmoon.testing.local import LocalCluster
from tests.console.pages.test_groups import at_rest, error, fields, offset
from tests.topics import new_topic

_numbers = count()


@pytest.fixture
def name(cluster: LocalCluster) -> str:
    """A group of the test's own, which has never consumed."""
    name = f"C_stuck_{next(_numbers)}"
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_group(name)
    return name


async def test_groups_stand_by_their_lag_the_largest_first_and_by_any_column(site, cluster, topic):
    names = [f"C_lag_{number}" for number in range(3)]
    for number, each in enumerate(names):
        await at_rest(cluster, each, new_topic(cluster.nameserver), consumed=1, waiting=(2, 5, 0)[number])

    async def shown(**query: str) -> list[str]:
        return [row["name"] for row in (await site.json("/groups", search="C_lag_", **query))["groups"]]

    assert await shown() == [names[1], names[0], names[2]]
    assert await shown(sort="lag") == [names[2], names[0], names[1]]
    assert await shown(sort="-name") == names[::-1]
    page = await site.text("/groups", search="C_lag_")
    assert 'aria-sort="descending"><a href="/groups?search=C_lag_&amp;sort=lag">Lag</a>' in page
    assert "cannot be sorted by gone" in await error(site, "/groups", sort="gone")


async def test_very_many_groups_stand_by_name_and_only_those_shown_are_asked_for(site, cluster, monkeypatch):
    with Admin(nameserver=cluster.nameserver) as admin:
        for each in ("C_very_1", "C_very_2"):
            admin.create_group(each)
    monkeypatch.setattr(groups, "SORTED_MAX", 1)

    async def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is asked of all groups")

    site.answers(backlogs=refused)
    page = await site.text("/groups", search="C_very_")
    assert page.index("C_very_1") < page.index("C_very_2")
    assert "With this many they are listed by name: filter to sort them." in page
    assert "aria-sort" not in page


@pytest.mark.parametrize(("to", "dead"), [("nowhere", 0), ("dead-letters", 1)])
async def test_a_message_that_blocks_a_queue_is_skipped_with_a_reason(site, cluster, name, topic, to, dead):
    await at_rest(cluster, name, topic, consumed=1, waiting=2)
    place = {"group": name, "topic": topic, "broker": "broker-a", "queue": "0", "offset": "1", "to": to}
    question = await site.text("/group/skip", **place)
    assert f"Group {name} moves behind the message in {topic} broker-a/0 at offset 1" in question
    assert "reason is missing" in site.said(await site.post("/group/skip", **fields(question)))
    assert offset(cluster, name, topic) == 1

    answer = await site.post("/group/skip", **fields(question), reason="KeyError: seq")

    assert site.said(answer).startswith(f"The message at offset 1 of {topic} broker-a/0 is ")
    assert offset(cluster, name, topic) == 2
    with Admin(nameserver=cluster.nameserver) as admin:
        assert len(admin.dead_letters(name)) == dead if dead else f"%DLQ%{name}" not in admin.topics()
    [entry] = [each for each in site.services.audit.read(9) if each.outcome.startswith("done") and each.action == "group skip"]
    assert (entry.fields["offset"], entry.fields["reason"]) == ("1", "KeyError: seq")
    assert "KeyError: seq" in await site.text("/audit")
    again = await site.post("/group/skip", **fields(question), reason="once more")
    assert (again.status_code, "nothing was moved" in site.said(again)) == (400, True)


async def test_a_stuck_queue_is_red_and_has_its_actions_for_operators_alone(site, name):
    queue = MessageQueue("orders", "broker-a", 0)
    what = "Queue 0 of orders at broker-a is stuck at offset 111: KeyError, 235 tries, 4m00s."
    finding = Finding("stuck", what, "Repair the listener, or `halfmoon group skip`.", "blocked", name, queue, 111)

    async def health(*_: Any, **__: Any) -> GroupHealth:
        return GroupHealth(name, "clustering", [], 0, [], 19, 240_000, None, 0, 0, [finding])

    site.answers(group_health=health)
    page = await site.text("/group", name=name)
    assert f'<li class="blocked"><b>Blocked</b> <p>{what}</p>' in page
    assert "<code>halfmoon group skip</code>" in page
    at = "topic=orders&amp;broker=broker-a&amp;queue=0&amp;offset=111"
    assert f'<a class="button" href="/messages?{at}">See the message</a>' in page
    assert [f"/group/skip?{at}&amp;group={name}&amp;to={to}" in page for to in ("nowhere", "dead-letters")] == [True, True]
    site.log_in("eve", "viewer")
    assert "/group/skip" not in await site.text("/group", name=name)
    assert (await site.get("/group/skip", group=name)).status_code == 403
