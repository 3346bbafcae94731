"""What is sampled: sums, gaps with their reason, bounds, and a pace that slows down while nothing answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console import sampler as module
from halfmoon.console.sampler import BACKLOG_MS, GROUPS_MAX, KEPT_MS, PAUSE_MAX_MS, SAMPLE_MS, SPAN_MS, Sampler
from halfmoon.errors import ConnectFailed
from halfmoon.results import Backlog, BrokerStatus, ClusterStatus, Finding
from halfmoon.testing.local import LocalCluster
from tests.waiting import soon

START_MS = 1_700_000_000_000
BROKER = BrokerStatus("a", 0, "a:1", "C", "V4", None, 1, 10.0, 5.0, 1, 1, 3, 60_000, 2, 0.25, None)
APACHES = BrokerStatus("b", 0, "b:1", "C", "V4", None, None, 1.5, 0.0, 1, 1, None, None, None, None, None)
SILENT = BrokerStatus("c", 0, "c:1", "C", None, None, None, 0.0, 0.0, 0, 0, None, None, None, None, "does not answer: no route")


class Cluster:
    """Stands for the asked cluster, in its own time."""

    def __init__(self, *brokers, groups=()):
        self.brokers, self.names, self.now = list(brokers), list(groups), START_MS
        self.error, self.group_error, self.asked, self.findings, self.checked = None, None, [], [], []

    async def status(self, *, groups):
        self.asked.append("status" if groups is False else ("backlogs", len(groups)))
        if groups is not False:
            if self.group_error:
                raise self.group_error
            self.checked.append(groups)
            backlog = {name: Backlog(number, 1000 * number) for number, name in enumerate(self.names) if name in groups}
            return ClusterStatus(self.now, "degraded", [], self.brokers, backlog, self.findings)
        if self.error:
            return ClusterStatus(self.now, "down", [str(self.error)], [], {})
        faults = [f"{broker.name}: {broker.fault}" for broker in self.brokers if broker.fault]
        health = "degraded" if faults else "healthy"
        return ClusterStatus(
            self.now, health if any(broker.version for broker in self.brokers) else "down", faults, self.brokers, {}
        )

    async def groups(self, *, failing):
        self.asked.append("groups")
        return self.names

    def sampler(self, **given):
        return Sampler(self, lambda: self.now, **given)


async def sampled(cluster, times=1, every_ms=SAMPLE_MS):
    sampler = cluster.sampler()
    for _ in range(times):
        await sampler.sample()
        cluster.now += every_ms
    return sampler


async def test_figures_are_sums_over_the_brokers_that_answer_and_of_ages_and_disks_the_highest():
    facts = (await sampled(Cluster(BROKER, APACHES, SILENT))).facts
    assert [facts[name] for name in module.RATES] == [11.5, 5.0, 3, 60_000, 0.25, 2]
    assert (facts["health"], facts["brokers"]) == ("degraded", 3)
    assert [each.what for each in facts["findings"]] == ["c: does not answer: no route"]
    assert facts["addresses"]["c"] == "c:1"


async def test_what_no_broker_reports_is_not_known():
    facts = (await sampled(Cluster(APACHES))).facts
    assert [facts[name] for name in module.RATES] == [1.5, 0.0, None, None, None, None]


async def test_before_the_first_sample_nothing_is_known():
    facts = Cluster(BROKER).sampler().view("5 min")
    assert (facts["health"], facts["in_per_second"], facts["history"]["backlog"]) == ("unknown", None, [])


async def test_a_cluster_that_does_not_answer_is_a_gap_with_its_reason_and_since_when():
    cluster = Cluster(BROKER, groups=["C_shop"])
    sampler = await sampled(cluster)
    cluster.error = ConnectFailed("no route", "ns:1")
    for _ in range(6):
        await sampler.sample()
        cluster.now += SAMPLE_MS
    facts = sampler.view("30 min")
    assert (facts["health"], [each.what for each in facts["findings"]]) == ("down", ["no route"])
    assert facts["failing_since_ms"] == START_MS + SAMPLE_MS
    assert [value for _, value in facts["history"]["in_per_second"]] == [10.0] + [None] * 6
    assert [value for _, value in facts["history"]["backlog"]] == [0, None]
    assert facts["in_per_second"] is facts["backlog"] is None
    assert cluster.asked.count("groups") == 1, "a cluster that is down is not asked for groups too"

    cluster.error = None
    await sampler.sample()
    assert (sampler.facts["health"], sampler.facts["failing_since_ms"], sampler.facts["in_per_second"]) == ("healthy", None, 10.0)


async def test_findings_about_groups_are_kept_until_groups_are_asked_again_and_the_most_severe_stand_first():
    cluster = Cluster(SILENT, BROKER, groups=["C_ledger"])
    cluster.findings = [
        Finding("dead-letters", "3 messages.", "", "note", "C_pay"),
        Finding("stuck", "Stuck.", "", "blocked", "C_ledger"),
    ]
    facts = (await sampled(cluster, times=4)).facts
    assert cluster.asked.count(("backlogs", 1)) == 1
    assert [each.kind for each in facts["findings"]] == ["unknown", "stuck", "dead-letters"]
    assert (await sampled(Cluster(BROKER))).facts["health"] == "healthy"
    healthy = Cluster(BROKER, groups=["C_ledger"])
    healthy.findings = cluster.findings
    assert (await sampled(healthy)).facts["health"] == "degraded"
    healthy.findings = cluster.findings[:1]
    assert (await sampled(healthy)).facts["health"] == "healthy"


async def test_a_day_is_kept_of_each_minute_the_highest_and_the_lag_of_each_group_for_its_time_to_drain():
    cluster = Cluster(BROKER, groups=["C_one", "C_two"])
    sampler = await sampled(cluster, times=3 * KEPT_MS // SAMPLE_MS)
    day = sampler.view("24 h")
    assert day["span_ms"][1] - day["span_ms"][0] >= 3 * KEPT_MS - 2 * module.MINUTE_MS
    assert len(day["history"]["in_per_second"]) == 3 * KEPT_MS // module.MINUTE_MS + (START_MS % module.MINUTE_MS > 0)
    assert set(sampler.lags("C_two")) == {1}
    assert (sampler.drain_ms("C_two"), sampler.drain_ms("C_none")) == (None, None)
    now = cluster.now
    sampler._lags.extend([(now - 120_000, {"C_two": 300}), (now - 60_000, {"C_two": 200}), (now, {"C_two": 100})])
    sampler._lags.extend([(now, {"C_two": 100})])
    sampler._lags = type(sampler._lags)([each for each in sampler._lags if each[0] >= now - 120_000 and each[1]["C_two"] > 1])
    assert sampler.drain_ms("C_two") == 60_000


async def test_brokers_that_all_are_silent_are_a_gap_too():
    facts = (await sampled(Cluster(SILENT))).facts
    assert (facts["health"], facts["in_per_second"], facts["failing_since_ms"]) == ("down", None, START_MS)


async def test_a_backlog_that_cannot_be_asked_for_is_a_gap_of_its_own():
    cluster = Cluster(BROKER, groups=["C_one", "C_two"])
    sampler = await sampled(cluster)
    assert [each["group"] for each in sampler.facts["furthest_behind"]] == ["C_two"]
    cluster.now, cluster.group_error = START_MS + BACKLOG_MS, ConnectFailed("a is gone", "a:1")
    await sampler.sample()
    facts = sampler.facts
    assert (facts["health"], facts["backlog"], facts["backlog_fault"], facts["furthest_behind"]) == (
        "healthy",
        None,
        "a is gone",
        [],
    )


async def test_a_mistake_of_ours_is_logged_and_a_gap(caplog):
    cluster = Cluster(BROKER)
    cluster.brokers = [object()]
    sampler = cluster.sampler()
    await sampler.sample()
    assert sampler.facts["findings"][0].what == "internal error; see the console's log"
    assert "a sample failed" in caplog.text


async def test_of_many_groups_500_are_checked_every_ten_seconds_those_with_the_largest_lag_and_others_in_turn():
    names = [f"C_{number:04}" for number in range(GROUPS_MAX + 7)]
    cluster = Cluster(BROKER, groups=names)
    facts = (await sampled(cluster, times=6)).facts
    assert cluster.asked.count(("backlogs", GROUPS_MAX)) == 2
    assert cluster.asked.count("groups") == 1, "a long list is asked for less often"
    assert (facts["groups"], facts["groups_left_out"], facts["groups_behind"]) == (GROUPS_MAX + 7, 7, GROUPS_MAX - 1)
    assert cluster.checked[0] == names[:GROUPS_MAX]
    assert {*cluster.checked[1]} == {*names} - {*names[243:250]}
    assert facts["backlog"] == sum(range(GROUPS_MAX + 7)) - sum(range(243, 250))
    assert [each["group"] for each in facts["furthest_behind"]] == [f"C_{number:04}" for number in range(506, 496, -1)]


@pytest.mark.parametrize("count", [3, GROUPS_MAX + 7, 20 * GROUPS_MAX])
async def test_findings_about_groups_are_there_for_any_number_of_them_with_the_number_that_was_checked(count: int):
    cluster = Cluster(BROKER, groups=[f"C_{number:05}" for number in range(count)])
    cluster.findings = [Finding("stuck", "Stuck.", "", "blocked", "C_00001")]
    facts = (await sampled(cluster)).facts

    said = [each.what for each in facts["findings"]]
    assert said[0] == "Stuck."
    assert [text.partition(":")[0] for text in said[1:]] == ([f"500 of {count:,} groups were checked"] if count > 500 else [])


async def test_every_group_has_its_turn():
    cluster = Cluster(BROKER, groups=[f"C_{number:04}" for number in range(4 * GROUPS_MAX)])
    await sampled(cluster, times=9, every_ms=BACKLOG_MS)

    assert {name for names in cluster.checked for name in names} == {*cluster.names}


async def test_half_an_hour_is_kept():
    cluster = Cluster(BROKER, groups=["C_shop"])
    facts = (await sampled(cluster, times=KEPT_MS // SAMPLE_MS + 50)).view("30 min")
    assert {name: len(points) for name, points in facts["history"].items()} == {
        **dict.fromkeys(module.RATES, KEPT_MS // SAMPLE_MS), "backlog": KEPT_MS // BACKLOG_MS,
    }  # fmt: skip
    assert facts["history"]["in_per_second"][0][0] >= facts["span_ms"][0]


@pytest.mark.parametrize(("times", "shown_ms"), [(3, SPAN_MS), (200, 199 * SAMPLE_MS), (KEPT_MS // SAMPLE_MS + 50, KEPT_MS)])
async def test_the_charts_begin_with_what_was_measured_first(times: int, shown_ms: int):
    begin_ms, end_ms = (await sampled(Cluster(), times=times)).view("30 min")["span_ms"]

    assert abs(end_ms - begin_ms - shown_ms) <= SAMPLE_MS


async def test_time_in_which_nothing_was_sampled_is_a_gap():
    facts = (await sampled(Cluster(BROKER), times=2, every_ms=60_000)).view("5 min")
    assert [value for _, value in facts["history"]["in_per_second"]] == [10.0, None, 10.0]


async def test_all_who_look_are_given_the_same_until_the_next_sample():
    sampler = await sampled(Cluster(BROKER))
    facts = sampler.facts
    assert sampler.facts is facts
    await sampler.sample()
    assert sampler.facts is not facts


async def test_the_pause_doubles_while_nothing_answers_and_is_short_again_afterwards():
    cluster, pauses = Cluster(BROKER), []
    cluster.error = ConnectFailed("no route", "ns:1")

    async def sleep(seconds):
        pauses.append(seconds)
        cluster.now += int(seconds * 1000)
        if len(pauses) == 7:
            cluster.error = None
        if len(pauses) == 9:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await cluster.sampler(sleep=sleep).run()
    assert pauses == [4, 8, 16, *[PAUSE_MAX_MS / 1000] * 4, 2, 2]


async def test_a_slow_answer_is_waited_for_and_followed_by_a_pause():
    cluster, pauses = Cluster(BROKER), []

    async def slow(*, groups):
        cluster.now += 10 * SAMPLE_MS
        return ClusterStatus(cluster.now, "healthy", [], [BROKER], {})

    async def sleep(seconds):
        pauses.append(seconds)
        raise asyncio.CancelledError

    cluster.status = slow
    with suppress(asyncio.CancelledError):
        await cluster.sampler(sleep=sleep).run()
    assert pauses == [SAMPLE_MS / 4 / 1000]


async def test_a_broker_that_dies_while_it_is_sampled_and_comes_back(tmp_path):
    with LocalCluster(tmp_path / "data") as cluster:
        async with AsyncAdmin(nameserver=cluster.nameserver, request_timeout_ms=1_000) as admin:
            sampler = Sampler(admin)
            await sampler.sample()
            assert sampler.facts["health"] == "healthy"
            await asyncio.to_thread(cluster.kill)
            await sampler.sample()
            assert sampler.facts["health"] == "down"
            assert cluster.nameserver in sampler.facts["findings"][0].what
            await asyncio.to_thread(cluster.start)
            async with sampler:
                await soon(lambda: sampler.facts["health"] == "healthy")
            assert sampler._task.cancelled()
