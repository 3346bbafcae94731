"""A slave finds out whether its copy can go on, and if not, whether an empty one may take its place."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.standby import RESYNC
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from tests.broker.copies.slave import log_of
from tests.broker.copies.test_feeding import fill
from tests.broker.copies.test_following import FILE_BYTES
from tests.broker.copies.test_standby import MASTER, A, B, Standing, copied, described, of_apache, of_epochs, talk  # noqa: F401
from tests.broker.talk import Talk

PERSON = "may have messages that the master lost: start a master on it, or empty the directory"


def behind(talk: Talk) -> Standing:  # noqa: F811
    """Return a slave behind the oldest file of its master."""
    fill(talk)
    standing = copied(talk)
    assert standing.look() is None
    fill(talk, 40)
    talk.broker.store.log.segments.drop_before(2 * FILE_BYTES)
    return standing


def test_a_copy_that_goes_on_is_not_outdated(talk: Talk) -> None:  # noqa: F811
    fill(talk, 30)
    standing = copied(talk)
    assert standing.look() is None
    fill(talk, 5)
    assert standing.look() is None
    assert standing.core.outdated is None


def test_a_copy_is_outdated_as_long_as_its_master_says_so(talk: Talk) -> None:  # noqa: F811
    fill(talk)
    standing = copied(talk)
    assert standing.look() is None
    far = described(copiesEpochs=talk.broker.copies.epochs.text(), commitLogMinOffset="200000", commitLogMaxOffset="300000")
    standing.changed[GetBrokerRuntimeInfo] = Command(code=0, flag=1, body=far)
    standing.look()
    assert standing.core.outdated is not None
    standing.changed.clear()
    assert standing.look() is None
    assert standing.core.outdated is None


@pytest.mark.parametrize("in_pair", [False, True])
def test_a_copy_behind_the_oldest_file_is_outdated_until_it_is_not(talk: Talk, in_pair: bool) -> None:  # noqa: F811
    standing = behind(talk)
    end = standing.core.store.end_offset
    standing.core.pair_master = MASTER if in_pair else None
    why = f"this log ends at {end}, but the oldest file of the master begins at {2 * FILE_BYTES}: {RESYNC}"
    assert standing.look() == standing.core.outdated == why
    standing.core.remedy = "it starts over"
    assert str(standing.look()).endswith(f"at {2 * FILE_BYTES}: it starts over")
    standing.away = {MASTER}
    standing.look()
    assert standing.core.outdated is None, "a master that does not answer says nothing"


def test_a_copy_of_a_master_of_rocketmq_may_be_outdated_too(talk: Talk) -> None:  # noqa: F811
    standing = of_apache(behind(talk))
    assert RESYNC in str(standing.look())
    assert standing.core.outdated is not None


@pytest.mark.parametrize("in_pair", [False, True])
@pytest.mark.parametrize(
    ("mine", "theirs", "outdated"),
    [
        ([(1, 0, A)], f"1:0:{A}", True),
        ([(1, 0, A)], f"1:0:{A},2:20000:{B}", True),
        ([(1, 0, A), (2, 500, A)], f"1:0:{A},3:100:{B}", True),
        ([(1, 0, A)], f"2:0:{B}", True),  # the first rows of long tables are dropped
        ([], f"1:0:{A}", True),
        ([(1, 0, A), (2, 500, A)], f"1:0:{A},2:100:{B}", False),
        ([(1, 0, A), (3, 500, A)], f"1:0:{A},2:100:{B}", False),
        ([(1, 0, A)], f"1:0:{B}", False),
    ],
)
def test_a_copy_behind_the_oldest_file_is_for_a_person_where_only_it_knows_the_last_epoch(
    talk: Talk,  # noqa: F811
    mine: list[tuple[int, int, str]],
    theirs: str,
    outdated: bool,
    in_pair: bool,
) -> None:
    fill(talk)
    standing = of_epochs(talk, theirs)
    standing.core.pair_master = MASTER if in_pair else None
    standing.core.epochs.adopt(mine)
    standing.changed[GetBrokerRuntimeInfo] = Command(
        code=0, flag=1, body=described(copiesEpochs=theirs, commitLogMinOffset="200000", commitLogMaxOffset="300000")
    )  # fmt: skip
    problem = str(standing.look())
    assert "the oldest file of the master begins at 200000" in problem
    assert (standing.core.outdated is not None) is outdated
    assert (PERSON in problem) is not outdated
    assert (RESYNC in problem) is outdated


def test_a_master_that_ends_before_this_log_never_makes_it_outdated(talk: Talk) -> None:  # noqa: F811
    fill(talk)
    standing = copied(talk)
    standing.talk = Talk("store", disk=SimDisk(Random(4)), store={"commit_log_file_bytes": FILE_BYTES})
    fill(standing.talk, 1)
    assert "start a master on it" in str(standing.look())
    assert standing.core.outdated is None


def grown(talk: Talk, *, body: bytes, epochs: str = f"1:0:{A},2:1100:{A}") -> Standing:  # noqa: F811
    """Return a slave whose master lost its end and stored as much again, in an epoch of its own."""
    fill(talk)
    standing = copied(talk)
    standing.core.epochs.adopt([(1, 0, A)])
    standing.talk = Talk("store", disk=SimDisk(Random(4)), store={"commit_log_file_bytes": FILE_BYTES})
    standing.talk.send("T", bytes(1000))
    while standing.talk.broker.store.end_offset < 2 * standing.core.store.end_offset:
        standing.talk.send("T", body)
    end = str(standing.talk.broker.store.end_offset)
    described_so = described(copiesEpochs=epochs, commitLogMaxOffset=end)
    standing.changed[GetBrokerRuntimeInfo] = Command(code=0, flag=1, body=described_so)
    return standing


def test_a_log_that_diverged_is_outdated(talk: Talk) -> None:  # noqa: F811
    standing = grown(talk, body=b"x" * 1000, epochs=f"1:0:{A},2:1100:{B}")
    problem = str(standing.look())
    assert "has in common with the master's only what lies before 1100" in problem
    assert standing.core.outdated == problem
    assert RESYNC in problem


@pytest.mark.parametrize(("body", "why"), [(b"x" * 1000, "differ: this is not a copy"), (b"x" * 333, "has another history")])
def test_what_the_same_master_lost_may_be_here_alone_and_is_for_a_person(talk: Talk, body: bytes, why: str) -> None:  # noqa: F811
    standing = grown(talk, body=body)
    problem = str(standing.look())
    assert why in problem
    assert "may have messages that the master lost" in problem
    assert standing.core.outdated is None


@pytest.mark.parametrize(
    ("body", "epochs", "why"),
    [
        (b"x" * 1000, f"1:0:{A}", "differ: this is not a copy of the master's log; empty the directory"),
        (b"x" * 333, f"2:0:{B}", "can not find message by the offset"),
    ],
)
def test_the_log_of_a_member_that_diverged_is_for_a_person(talk: Talk, body: bytes, epochs: str, why: str) -> None:  # noqa: F811
    standing = grown(talk, body=body, epochs=epochs)
    standing.core.pair_master = MASTER
    assert why in str(standing.look())
    assert standing.core.outdated is None


def test_a_record_that_a_master_of_rocketmq_does_not_show_says_nothing(talk: Talk) -> None:  # noqa: F811
    fill(talk)
    standing = of_apache(copied(talk))
    talk.ask(DeleteTopicInBroker(topic="T"))
    assert "its topic T was deleted" in str(standing.look())
    assert standing.core.outdated is None


def test_a_slave_whose_master_went_on_before_its_end_is_outdated_and_a_member_is_cut(talk: Talk) -> None:  # noqa: F811
    fill(talk)
    standing = of_epochs(talk, f"1:0:{A},2:100:{B}")
    standing.core.epochs.adopt([(1, 0, A)])
    assert RESYNC in str(standing.look())
    assert standing.core.outdated is not None
    standing.core.pair_master = MASTER
    standing.look()
    assert (standing.core.outdated, standing.core.cut_at) == (None, 100)


def test_an_empty_copy_begins_where_the_outdated_one_could_not_go_on(talk: Talk) -> None:  # noqa: F811
    behind(talk)
    fresh: Any = Standing(talk)
    assert fresh.look() is None
    assert fresh.core.store.end_offset == 2 * FILE_BYTES
    for _ in range(3):  # nothing comes yet, and there is no file
        fresh.now += 1_000
        fresh.core.tick(fresh.instant)
    fresh.core.store.copying().take(log_of(talk, 2 * FILE_BYTES))
    assert fresh.look() is None
