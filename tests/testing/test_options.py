"""The options of servers of tests are those of their settings; `tests.client.constructors.test_options` has type checkers look."""

from __future__ import annotations

from halfmoon.broker.settings import BrokerSettings
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.options import BrokerOptions, ClusterOptions, StoreOptions
from tools.generate_options import GIVEN, SERVERS_MODULE, servers_module
from tools.generated import write_or_check


def test_the_module_is_as_its_generator_writes_it():
    assert write_or_check(SERVERS_MODULE, servers_module(), ["--check"]) == 0


def test_a_world_takes_every_setting_but_those_that_it_sets_itself():
    assert BrokerOptions.__annotations__.keys() == BrokerSettings.__dataclass_fields__.keys() - GIVEN
    assert StoreOptions.__annotations__.keys() == StoreSettings.__dataclass_fields__.keys() - GIVEN


def test_a_cluster_takes_the_settings_that_one_of_its_parts_has_alone():
    assert StoreOptions.__annotations__.keys() < ClusterOptions.__annotations__.keys()
    assert {"acl_enable", "vip_channel"} < ClusterOptions.__annotations__.keys()
    assert not {"port", "topics_max", "connections_max"} & ClusterOptions.__annotations__.keys()
