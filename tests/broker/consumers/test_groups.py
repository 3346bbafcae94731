"""The table of consumer groups."""

import pytest

from halfmoon.errors import BrokerError, GroupNotFound, SystemBusy
from halfmoon.wire.bodies import SubscriptionGroupConfig


def test_a_group_is_created_where_that_is_allowed_and_its_change_is_counted(talk):
    groups = talk.broker.groups
    before = groups.epoch
    assert groups.existing("G", talk.now).group_name == "G"
    assert (groups.epoch, "G" in groups.names()) == (before + 1, True)
    groups.existing("G", talk.now)
    assert groups.epoch == before + 1


def test_without_auto_create_only_system_groups_are_created(make_talk):
    groups = make_talk(auto_create_groups=False).broker.groups
    with pytest.raises(GroupNotFound):
        groups.existing("G", 0)
    assert groups.existing("CID_RMQ_SYS_X", 0).group_name == "CID_RMQ_SYS_X"


def test_bad_names_and_too_many_groups_are_refused(make_talk):
    groups = make_talk(groups_max=100).broker.groups
    with pytest.raises(BrokerError):
        groups.put(SubscriptionGroupConfig(group_name="a b"), 0)
    for number in range(100 - len(groups.names())):
        groups.existing(f"G{number}", 0)
    with pytest.raises(SystemBusy, match="groups_max"):
        groups.existing("one_more", 0)


def test_groups_are_there_after_a_restart_and_predefined_ones_do_not_count_as_saved(talk):
    talk.broker.groups.existing("G", talk.now)
    talk.wait(10_000)
    talk.restart()
    assert talk.broker.groups.saved == {"G"}
