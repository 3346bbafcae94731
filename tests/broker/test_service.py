"""Parts of a broker: each is registered once, and only the hooks that it overrides are called."""

import pytest

import halfmoon.broker.broker  # noqa: F401  # so that all parts are loaded
from halfmoon.broker.copies.accounts import AccountsCheck
from halfmoon.broker.copies.lag import CopyLag
from halfmoon.broker.copies.takeover import Takeover
from halfmoon.broker.service import Service, Services
from halfmoon.instant import BEGINNING
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from tests.broker.access.rule_files import write
from tests.broker.talk import pull_header


class Forgetful(Service):
    def __init__(self, due=None):
        self.forgotten, self._due = [], due

    def topic_deleted(self, topic):
        self.forgotten.append(topic)

    def due(self, now):
        return self._due


class Told(Service):
    def texts(self, now):
        return {"at": str(now)}


def test_hooks_are_called_in_the_order_of_registration_and_those_alone_that_a_service_overrides():
    services, first, second = Services(), Forgetful(5), Forgetful()
    services.register(first, Told(), None, second)
    services.call("topic_deleted", "T")
    services.call("group_deleted", "G")

    assert (first.forgotten, second.forgotten) == (["T"], ["T"])
    assert (list(services.dues(BEGINNING)), services.ticks, services.works) == ([5, None], [], [])
    assert services.texts(7) == {"at": "7"}


def test_every_part_of_a_broker_is_registered_once(make_talk, tmp_path):
    write(tmp_path / "store0")
    kinds = [type(part) for part in make_talk(acl_enable=True).broker.services.parts]
    parts = {kind for kind in Service.__subclasses__() if kind.__module__.startswith("halfmoon.")}

    assert len(parts) > 20
    assert sorted(kinds, key=str) == sorted(parts - {AccountsCheck, CopyLag, Takeover}, key=str), "that is a slave's"


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_pull_is_handled_after_the_other_requests_of_its_turn_whatever_its_header_is_written_in(talk, serialization):
    pull = talk.post(pull_header("late"), serialization=serialization)
    talk.post(UpdateAndCreateTopic(
        topic="late", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG",
        order=False,
    ))  # fmt: skip
    talk.consume("late")
    talk.turn()

    assert talk.answer(pull).code == 19, "the topic that came behind the pull exists"
