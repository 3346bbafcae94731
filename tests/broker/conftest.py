"""A broker in a temporary directory for each test that asks for one."""

import pytest

from tests.broker.talk import Talk


@pytest.fixture
def talk(tmp_path):
    return Talk(tmp_path / "store")


@pytest.fixture
def make_talk(tmp_path):
    made = []

    def make(**kw):
        made.append(Talk(tmp_path / f"store{len(made)}", **kw))
        return made[-1]

    return make
