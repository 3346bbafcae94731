"""Who coordinates an id, and the outcome of its attempts."""

import pytest


@pytest.mark.parametrize(
    ("known", "last", "instead_of", "may"),
    [
        ("", -1, None, True),
        ("b", -1, None, False),
        ("b", -1, "b", True),
        ("broker-a", 3, "broker-a", False),  # this broker has decided a batch of it
        ("broker-a", -1, "broker-a", True),
    ],
)
def test_the_coordinator_of_an_id_changes_only_where_it_cannot_have_decided(talk, known, last, instead_of, may):
    assert talk.broker.batches.coordinator.may_change(known, last, instead_of) is may


def test_an_unknown_attempt_is_undecided_until_it_is_aborted(talk):
    coordinator = talk.broker.batches.coordinator
    talk.send()
    for queue_id in (0, 1):
        talk.broker.store.make_ready("rmq_sys_HALFMOON_BATCHES", queue_id, lambda error, now: None)
    talk.run_effects()
    assert coordinator.verdict("q", 1, "a", talk.now, abort=False) == ("UNDECIDED", None)
    assert coordinator.verdict("q", 1, "a", talk.instant, abort=True) == ("ABORT", None)
    assert talk.broker.batches.streams.get("q").aborted == {1: {"a"}}
