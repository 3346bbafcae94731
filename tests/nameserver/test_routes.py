"""The tables alone: who comes, who goes, what they agree on after any history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from halfmoon.limits import ROUTE_BROKERS_MAX, ROUTE_QUEUES_MAX
from halfmoon.nameserver.routes import BrokerRegistration, MasterAddress, Queues, Routes, Superseded, TableFull

Q = Queues(4, 4, 6)


def sent(name: str = "a", broker_id: int = 0, *, version: Any = 1, topics: Any = None, **more: Any) -> BrokerRegistration:
    facts: dict[str, Any] = {
        "cluster": "C",
        "address": f"10.0.0.1:{name}{broker_id}",
        "ha_address": f"ha-{name}{broker_id}",
        **more,
    }
    return BrokerRegistration(
        name=name, broker_id=broker_id, version=version, topics={"t": Q} if topics is None else topics, **facts
    )


def brokers(routes: Routes, topic: str = "t") -> dict[str, dict[int, str]] | None:
    found = routes.route(topic)
    return None if found is None else {group.name: dict(group.addresses) for group in found[0]}


def test_a_registered_topic_has_its_broker_as_route() -> None:
    routes = Routes()
    assert routes.register(sent(), peer=1, now=0) is None
    found = routes.route("t")
    assert found is not None
    assert found[1] == {"a": Q}
    assert brokers(routes) == {"a": {0: "10.0.0.1:a0"}}
    assert routes.route("unknown") is None


@pytest.mark.parametrize("queues", [Queues(2**31 - 1, 4, 6), Queues(4, ROUTE_QUEUES_MAX + 1, 6)])
def test_a_topic_with_more_queues_than_a_client_takes_is_left_out(queues: Queues) -> None:
    routes = Routes()
    routes.register(sent(topics={"t": queues, "good": Q}), 1, 0)
    assert (routes.topics(), routes.left_out, routes.last_left_out) == (["good"], 1, "t")


def test_600_brokers_that_each_say_many_queues_make_no_route_that_a_client_refuses() -> None:
    routes = Routes()
    for number in range(600):
        routes.register(sent(f"b{number}", topics={"t": Queues(ROUTE_QUEUES_MAX // 100, 1, 6), "small": Q}), number, 0)
    found, small = routes.route("t"), routes.route("small")
    assert found is not None
    assert small is not None
    assert sum(queues.read_count for queues in found[1].values()) <= ROUTE_QUEUES_MAX
    assert (len(found[1]), len(small[1]), routes.left_out) == (100, 600, 500)
    assert routes.route("t") == found


def test_what_a_broker_had_of_a_topic_stays_when_it_wants_too_much_and_its_room_is_free_when_it_leaves() -> None:
    routes = Routes()
    routes.register(sent("a", topics={"t": Queues(ROUTE_QUEUES_MAX - 4, 4, 6)}), 1, 0)
    routes.register(sent("b", topics={"t": Q}), 2, 0)
    routes.register(sent("b", topics={"t": Queues(5, 5, 6)}, version=2), 2, 0)
    found = routes.route("t")
    assert found is not None
    assert found[1]["b"] == Q
    routes.lost(1)
    routes.register(sent("b", topics={"t": Queues(5, 5, 6)}, version=3), 2, 0)
    assert found[1]["b"].read_count == 5


def test_a_topic_has_so_many_brokers_at_most_and_a_broker_so_many_members() -> None:
    routes = Routes()
    for number in range(ROUTE_BROKERS_MAX + 3):
        routes.register(sent(f"b{number}"), number, 0)
        if number < ROUTE_BROKERS_MAX:
            routes.register(sent("a", number, topics={}), -number, 0)
    found = routes.route("t")
    assert found is not None
    assert len(found[1]) == ROUTE_BROKERS_MAX
    with pytest.raises(TableFull, match="1000 members of a are registered"):
        routes.register(sent("a", ROUTE_BROKERS_MAX, topics={}), 1, 0)


@pytest.mark.parametrize(
    "facts", [{"name": "b" * 256}, {"cluster": "c" * 900_000}, {"address": "a" * 301}, {"ha_address": "a" * 900_000}]
)
def test_a_broker_with_a_name_or_address_as_nobody_has_one_is_refused(facts: dict[str, str]) -> None:
    routes = Routes()
    with pytest.raises(TableFull, match=r"a .* has at most (255|300) characters, not \d+"):
        routes.register(sent(**facts), 1, 0)  # type: ignore[arg-type]
    assert (routes.live_count, routes.groups(), routes.clusters()) == (0, [], {})


@pytest.mark.parametrize("topic", ["t" * 256, "t" * 900_000, "a\nb", "\u0001"])
def test_a_topic_with_a_name_as_nobody_has_one_is_left_out(topic: str) -> None:
    routes = Routes()
    routes.register(sent(topics={topic: Q}), 1, 0)
    assert (routes.topics(), routes.left_out) == ([], 1)
    assert len(routes.last_left_out) <= 255


def test_all_names_of_topics_fit_into_one_answer() -> None:
    routes = Routes()
    routes.names_bytes_max = 1000
    for version in range(3):
        routes.register(sent(topics={f"{number:0100}": Q for number in range(20)}, version=version), 1, 0)
        assert len(routes.topics()) == 10
        routes.delete_topic(f"{version:0100}")
        routes.register(sent("b", topics={"x" * 100: Q}, version=version), 2, 0)
        assert "x" * 100 in routes.topics()
        routes.delete_topic("x" * 100)
    routes.lost(1)
    routes.lost(2)
    assert (routes.topics(), routes.entries, routes.names_bytes) == ([], 0, 0)


def test_all_tables_together_have_so_many_entries() -> None:
    routes = Routes()
    routes.entries_max = 10
    for name in "abc":
        routes.register(sent(name, topics={f"t{number}": Q for number in range(4)}), ord(name), 0)
    assert (routes.entries, routes.left_out) == (10, 2)
    routes.lost(ord("a"))
    routes.register(sent("d", topics={"t0": Q}), 4, 0)
    assert (routes.entries, routes.left_out) == (7, 2)


def test_topics_change_only_with_the_version() -> None:
    routes = Routes()
    routes.register(sent(), 1, 0)
    routes.register(sent(topics={"t": Queues(8, 8, 6), "new": Q}), 1, 0)
    assert routes.topics() == ["t"]
    routes.register(sent(version=2, topics={"t": Queues(8, 8, 6), "new": Q}), 1, 0)
    found = routes.route("t")
    assert found is not None
    assert found[1]["a"].read_count == 8
    assert routes.topics() == ["t", "new"]


def test_a_topic_that_the_broker_no_longer_names_stays() -> None:
    routes = Routes()
    routes.register(sent(), 1, 0)
    routes.register(sent(version=2, topics={}), 1, 0)
    assert routes.topics() == ["t"]


def test_a_slave_brings_an_address_but_no_topics_and_learns_its_master() -> None:
    routes = Routes()
    assert routes.register(sent(broker_id=1), 2, 0) is None
    assert routes.route("t") is None
    routes.register(sent(), 1, 0)
    assert routes.register(sent(broker_id=1, topics={"mine": Q}), 2, 0) == MasterAddress("10.0.0.1:a0", "ha-a0")
    assert brokers(routes) == {"a": {0: "10.0.0.1:a0", 1: "10.0.0.1:a1"}}
    assert routes.topics() == ["t"]


def test_a_slave_that_became_master_has_one_place() -> None:
    routes = Routes()
    routes.register(sent(broker_id=1, address="10.0.0.9:1"), 1, 0)
    routes.register(sent(broker_id=0, address="10.0.0.9:1"), 1, 0)
    assert brokers(routes) == {"a": {0: "10.0.0.9:1"}}


def test_a_dead_master_with_a_live_slave_keeps_its_topics() -> None:
    routes = Routes()
    routes.register(sent(), 1, 0)
    routes.register(sent(broker_id=1), 2, 0)
    assert routes.lost(1) == ["10.0.0.1:a0"]
    assert brokers(routes) == {"a": {1: "10.0.0.1:a1"}}
    assert routes.lost(2) == ["10.0.0.1:a1"]
    assert routes.route("t") is None
    assert (routes.topics(), routes.groups(), routes.clusters(), routes.live_count) == ([], [], {}, 0)


def test_a_broker_that_left_is_missed_until_it_is_back_or_its_topic_is_deleted() -> None:
    routes = Routes(brokers_max=2)
    topics = {"t": Q, "u": Q, "a": Q, "closed": Queues(4, 4, 2)}
    for name, peer in (("a", 1), ("b", 2)):
        routes.register(sent(name, topics=topics), peer, 0)
    routes.lost(1)
    routes.unregister("C", "b", "10.0.0.1:b0", 0)
    assert (routes.absent("t"), routes.absent("closed"), routes.absent("other")) == (["a", "b"], [], [])
    assert routes.topics() == []
    assert sorted(routes.topics(absent=True)) == ["a", "t", "u"]
    routes.delete_topic("u", "D")
    assert routes.absent("u") == ["a", "b"]
    routes.delete_topic("u", "C")
    assert routes.absent("u") == []
    routes.register(sent("b", topics=topics), 2, 0)
    assert routes.absent("t") == ["a"]


def test_all_brokers_of_a_connection_go_with_it_and_no_others() -> None:
    routes = Routes()
    for name, peer in (("a", 1), ("b", 1), ("c", 2)):
        routes.register(sent(name), peer, 0)
    assert sorted(routes.lost(1)) == ["10.0.0.1:a0", "10.0.0.1:b0"]
    assert brokers(routes) == {"c": {0: "10.0.0.1:c0"}}


def test_the_loss_of_an_old_connection_does_not_remove_a_broker_that_came_back_over_a_new_one() -> None:
    routes = Routes()
    routes.register(sent(), 1, 0)
    routes.register(sent(), 2, 10)
    assert routes.lost(1) == []
    assert brokers(routes) == {"a": {0: "10.0.0.1:a0"}}


def test_a_restarted_broker_at_another_address_replaces_the_old_one() -> None:
    routes = Routes()
    routes.register(sent(address="10.0.0.1:1"), 1, 0)
    routes.register(sent(address="10.0.0.1:2"), 2, 10)
    assert routes.lost(1) == ["10.0.0.1:1"]
    assert brokers(routes) == {"a": {0: "10.0.0.1:2"}}


def test_a_broker_expires_after_its_time_to_live_and_not_before() -> None:
    routes = Routes(expiry_ms=120_000)
    routes.register(sent("a"), 1, 0)
    routes.register(sent("b", ttl_ms=5_000), 2, 0)
    assert routes.expire(5_000) == []
    assert routes.expire(5_001) == [("10.0.0.1:b0", 2)]
    assert routes.expire(120_000) == []
    assert routes.expire(120_001) == [("10.0.0.1:a0", 1)]


def test_being_heard_or_registering_again_puts_the_end_off() -> None:
    routes = Routes(expiry_ms=100)
    routes.register(sent("a"), 1, 0)
    routes.register(sent("b"), 2, 0)
    assert routes.heard("C", "10.0.0.1:a0", 90)
    routes.register(sent("b"), 2, 95)
    assert routes.expire(190) == []
    assert [address for address, _ in routes.expire(191)] == ["10.0.0.1:a0"]
    assert not routes.heard("C", "10.0.0.1:a0", 200)


def test_unregistering_takes_out_just_that_broker() -> None:
    routes = Routes()
    routes.register(sent(), 1, 0)
    routes.register(sent(broker_id=1), 2, 0)
    routes.unregister("C", "a", "10.0.0.1:a0", 0)
    assert brokers(routes) == {"a": {1: "10.0.0.1:a1"}}
    routes.unregister("C", "nobody", "10.0.0.1:x0", 0)
    routes.unregister("C", "a", "10.0.0.1:other", 1)  # that is not its address: it stays
    assert brokers(routes) == {"a": {1: "10.0.0.1:a1"}}


def test_the_write_permission_is_taken_and_given_back_and_returns_with_a_new_version() -> None:
    routes = Routes()
    routes.register(sent(topics={"t": Queues(1, 1, 7), "u": Queues(1, 1, 2)}), 1, 0)

    def perms() -> list[int]:
        return [found[1]["a"].perm for topic in ("t", "u") if (found := routes.route(topic))]

    assert routes.set_permission("a", writable=False) == 2
    assert perms() == [5, 0]
    routes.register(sent(topics={"t": Queues(1, 1, 7)}), 1, 0)
    assert perms() == [5, 0]
    assert routes.set_permission("a", writable=True) == 2
    assert perms() == [6, 6]
    routes.set_permission("a", writable=False)
    routes.register(sent(version=2, topics={"t": Queues(1, 1, 7)}), 1, 0)
    assert perms() == [7, 4]
    assert routes.set_permission("unknown", writable=False) == 0


def test_a_deleted_topic_is_gone_everywhere_or_in_one_cluster() -> None:
    routes = Routes()
    routes.register(sent("a"), 1, 0)
    routes.register(sent("b", cluster="D"), 2, 0)
    routes.delete_topic("t", "nowhere")
    assert set(brokers(routes) or ()) == {"a", "b"}
    routes.delete_topic("t", "D")
    assert set(brokers(routes) or ()) == {"a"}
    routes.delete_topic("t")
    assert routes.topics() == []
    assert routes.topics_of_cluster("C") == []


def test_a_topic_entered_by_request_gets_queues_of_registered_brokers_only() -> None:
    routes = Routes()
    routes.register(sent("a"), 1, 0)
    routes.add_topic("x", {"a": Queues(2, 2, 6), "b": Q})
    routes.add_topic("x", {"a": Queues(9, 9, 6)})
    found = routes.route("x")
    assert found is not None
    assert found[1] == {"a": Queues(2, 2, 6)}
    assert routes.topics_of_cluster("C") == ["t", "x"]


def test_lists_of_topics_by_cluster_and_by_unit_flag() -> None:
    routes = Routes()
    flags = {"none": 0, "unit": 1, "sub": 2, "both": 3}
    routes.register(sent("a", topics={name: Queues(1, 1, 6, flag) for name, flag in flags.items()}), 1, 0)
    routes.register(sent("b", topics={"none": Q}), 2, 0)
    assert routes.topics_of_cluster("C") == ["both", "none", "sub", "unit"]
    assert routes.topics_of_cluster("X") == []
    assert routes.topics_with_flag(unit=True) == ["unit", "both"]
    assert routes.topics_with_flag(unit_sub=True) == ["sub", "both"]
    assert routes.topics_with_flag(unit=False, unit_sub=True) == ["sub"]


def test_the_bound_on_brokers_refuses_a_new_one_and_keeps_the_known() -> None:
    routes = Routes(brokers_max=1)
    routes.register(sent("a"), 1, 0)
    with pytest.raises(TableFull):
        routes.register(sent("b"), 2, 0)
    routes.register(sent("a", version=2, topics={"u": Q}), 1, 5)
    assert routes.clusters() == {"C": ["a"]}
    assert routes.topics() == ["t", "u"]


def test_the_bound_on_topics_leaves_new_ones_out_and_counts_them() -> None:
    routes = Routes(topics_max=2)
    routes.register(sent(topics={"t": Q, "u": Q, "v": Q, "w": Q}), 1, 0)
    assert (routes.topics(), routes.left_out) == (["t", "u"], 2)
    routes.add_topic("x", {"a": Q})
    assert (routes.topics(), routes.left_out) == (["t", "u"], 3)


def test_a_master_that_was_taken_over_does_not_come_back_into_the_routes() -> None:
    routes = Routes()
    routes.register(sent(address="old", epoch=1), 1, 0)
    routes.register(sent(address="new", epoch=2), 2, 0)
    for epoch in (0, 1):  # it goes on without knowing, or was started without its pair
        with pytest.raises(Superseded, match=rf"a has had a master of epoch 2 \(new\), and this is epoch {epoch}"):
            routes.register(sent(address="old", epoch=epoch), 1, 0)
    assert brokers(routes) == {"a": {0: "new"}}
    routes.register(sent(broker_id=1, address="old"), 1, 0)
    routes.register(sent(address="old", epoch=3), 1, 0)
    assert brokers(routes) == {"a": {0: "old"}}


def test_a_broker_that_left_its_pair_is_the_master_at_the_same_address_or_once_the_last_master_is_gone() -> None:
    routes = Routes()
    routes.register(sent(address="last", epoch=2), 1, 0)
    routes.register(sent(address="last"), 1, 0)
    routes.register(sent(broker_id=1, address="other"), 2, 0)
    routes.lost(1)
    with pytest.raises(Superseded, match="epoch 2"):
        routes.register(sent(address="first", epoch=1), 3, 0)
    routes.register(sent(address="other"), 2, 0)
    assert brokers(routes) == {"a": {0: "other"}}


class AnyHistory(RuleBasedStateMachine):
    """Brokers come, go, fall silent and lose connections in any order; the tables never disagree with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.routes, self.now = Routes(expiry_ms=100, brokers_max=5, topics_max=4), 0

    names, ids, peers = st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 4)
    topics = st.dictionaries(st.sampled_from("tuvwx"), st.just(Q), max_size=4)

    @rule(
        name=names,
        broker_id=ids,
        address=st.sampled_from("123"),
        cluster=st.sampled_from("CD"),
        peer=peers,
        topics=topics,
        version=ids,
        epoch=ids,
    )
    def register(self, name: str, broker_id: int, peer: int, **facts: Any) -> None:
        known = self.routes.group(name)
        try:
            self.routes.register(sent(name, broker_id, **facts), peer, self.now)
        except Superseded:
            assert broker_id == 0
            assert known is not None
            assert facts["epoch"] < known.epoch
        except TableFull:
            assert self.routes.live_count == 5

    @rule(name=names, broker_id=ids, address=st.sampled_from("123"), cluster=st.sampled_from("CD"))
    def unregister(self, name: str, broker_id: int, address: str, cluster: str) -> None:
        self.routes.unregister(cluster, name, address, broker_id)

    @rule(peer=peers)
    def lose(self, peer: int) -> None:
        self.routes.lost(peer)

    @rule(ms=st.integers(1, 80))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.routes.expire(self.now)

    @rule(topic=st.sampled_from("tuvwx"), cluster=st.sampled_from([None, "C", "D"]))
    def delete(self, topic: str, cluster: str | None) -> None:
        self.routes.delete_topic(topic, cluster)

    @rule(name=names)
    def wipe(self, name: str) -> None:
        self.routes.set_permission(name, writable=False)

    @invariant()
    def tables_agree(self) -> None:
        routes = self.routes
        groups = {group.name for group in routes.groups()}
        assert all(group.addresses for group in routes.groups())
        assert {name for names in routes.clusters().values() for name in names} == groups
        assert len(routes.topics()) <= 4
        for topic in routes.topics():
            found = routes.route(topic)
            assert found is not None
            assert set(found[1]) == {group.name for group in found[0]} <= groups
        held = {(name, topic) for topic, by_broker in routes._topics.items() for name in by_broker}
        assert held == {(name, topic) for name, topics in routes._topics_of.items() for topic in topics}
        assert not groups & routes._absent.keys()
        assert len(routes._absent) <= 5
        assert {key for keys in routes._brokers_of.values() for key in keys} == set(routes._live)


AnyHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestAnyHistory = AnyHistory.TestCase
