"""The table of consumer groups."""

import pytest

from halfmoon.errors import BrokerError, GroupNotFound, SystemBusy
from halfmoon.wire.bodies import GroupForbidden, SubscriptionGroupConfig, from_json
from halfmoon.wire.headers.group import DeleteSubscriptiongroup, UpdateAndGetGroupForbidden
from tests.broker.talk import pull_header


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


# ---------------------------------------------------------------- topics that a group may not read


def forbid(talk, readable=None, *, group="G", topic="orders"):
    reply = talk.ask(UpdateAndGetGroupForbidden(group=group, topic=topic, readable=readable))
    return from_json(GroupForbidden, reply.body).readable if reply.code == 0 else reply.code


def test_a_group_that_may_not_read_a_topic_is_refused_at_once_and_after_a_kill(talk):
    for topic in ("orders", "bills"):
        talk.send(topic)
        assert talk.pull(topic).code == 0

    assert (forbid(talk, False), forbid(talk), forbid(talk, group="H")) == (False, False, True)

    refused = talk.pull("orders")
    assert (refused.code, refused.remark) == (16, "the consumer group[G] is forbidden for topic[orders]")
    assert (talk.pull("bills").code, talk.pull("orders", group="H").code) == (0, 0)
    talk.broker.store.close(talk.instant)
    talk.open()
    assert talk.pull("orders").code == 16


def test_a_pull_that_waits_is_refused_when_its_group_may_not_read_the_topic_any_more(talk):
    talk.send("orders")
    waiting = talk.post(pull_header("orders", offset=1, wait_ms=10_000))
    talk.turn()
    forbid(talk, False)

    talk.send("orders", peer=2)

    assert talk.answer(waiting).code == 16


def test_what_lets_a_group_read_a_topic_again_leaves_its_other_topics_and_is_kept(talk):
    for topic in ("orders", "bills"):
        talk.send(topic)
        forbid(talk, False, topic=topic)

    assert forbid(talk, True) is True
    talk.restart()

    assert (talk.pull("orders").code, talk.pull("bills").code) == (0, 16)
    assert talk.broker.groups.table().forbidden_table == {"G": {"bills": 4}}
    forbid(talk, True, topic="bills")
    assert talk.broker.groups.table().forbidden_table is None


def test_with_its_group_it_is_forgotten_what_the_group_may_not_read(talk):
    talk.send("orders")
    talk.pull("orders")
    forbid(talk, False)

    talk.ask(DeleteSubscriptiongroup(group_name="G"))

    assert talk.pull("orders").code == 0


def test_bad_names_and_more_than_the_bound_are_not_kept(talk):
    talk.broker.groups.forbidden_max = 1

    assert forbid(talk, False, group="a b") == 1
    assert forbid(talk, False, topic="a/b") == 1
    assert forbid(talk, False) is False
    assert forbid(talk, False, topic="bills") == 2
    assert forbid(talk, False) is False
