"""Records of batch transactions: the tags of steps, which are on disks."""

import pytest

from halfmoon.broker.batches import records
from halfmoon.broker.batches.records import PIECES, STEPS, Coordinated, Journal, Reported, Snapshot
from halfmoon.broker.names import BATCH_TOPIC


@pytest.mark.parametrize(
    ("step", "tag"),
    [(Reported("q", 3), b"reported"), (Coordinated("q", -1, "b"), b"coordinated"), (records.Aborted("q", 3, "a"), b"aborted")],
)
def test_a_step_has_its_tag_in_the_log_and_is_read_back(step, tag):
    data = records.encode_step(step)
    assert b'"step":"%s"' % tag in data
    assert records.decode_step(data) == step


def test_a_start_reads_from_the_last_snapshot_on(talk):
    journal = Journal(talk.broker.store, talk.broker.sends)
    for queue_id in (PIECES, STEPS):
        talk.broker.store.make_ready(BATCH_TOPIC, queue_id, lambda error, now: None)
    talk.run_effects()
    journal.write(Coordinated("old", -1, "b"), talk.now)
    journal.write(Snapshot([], 0), talk.now)
    journal.write(Coordinated("new", -1, "b"), talk.now)
    assert [record for _, _, record in journal.replay()] == [Snapshot([], 0), Coordinated("new", -1, "b")]
