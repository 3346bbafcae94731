"""The state of batch transactions follows from pieces and steps alone."""

from halfmoon.broker.batches.records import Applied, Decided, Finished, Piece, StoredPiece, Voted
from halfmoon.broker.batches.state import Streams
from halfmoon.instant import LONG_AGO
from halfmoon.wire.bodies.batches import BatchPromise


def piece(first_seq, count=2, *, attempt="a", offset=100):
    stored = Piece(0, first_seq, "T", 0, count, 5, offset + first_seq, 50, first_seq)
    return StoredPiece("q", 1, attempt, "b", 1000, 10, stored)


def test_a_piece_counts_once_and_an_attempt_lacks_what_was_promised():
    streams = Streams()
    for _ in range(2):
        streams.piece(piece(0), LONG_AGO, restored=False)
    attempt = streams.get("q").find(1, "a")
    assert (attempt.count, streams.piece_count, streams.held_bytes) == (2, 1, 50)
    assert "4 were sent" in attempt.lacks(BatchPromise(4, 5))
    streams.piece(piece(3), LONG_AGO, restored=False)
    assert "do not follow each other" in attempt.lacks(BatchPromise(4, attempt_sum(attempt)))


def attempt_sum(attempt):
    return sum(known.checksum for known in attempt.pieces.values())


def test_applying_a_batch_drops_other_attempts_and_its_end_releases_the_pieces():
    streams = Streams()
    for name in ("a", "other"):
        streams.piece(piece(0, attempt=name), LONG_AGO, restored=False)
    streams.take(Voted("q", 1, ["a"], "b"), 11, 200)
    streams.take(Applied("q", 1, ["a"], "b"), 12, 201)
    stream = streams.get("q")
    assert (list(stream.attempts), list(stream.applying[1].attempts), streams.attempt_count) == ([], ["a"], 1)
    streams.take(Finished("q", 1), 13, 202)
    assert (stream.applying, streams.attempt_count, streams.held_bytes, streams.needed_from()) == ({}, 0, 0, None)


def test_a_snapshot_restores_everything_but_pieces():
    streams, restored = Streams(), Streams()
    streams.piece(piece(0), LONG_AGO, restored=False)
    streams.take(Decided("q", 0, {"b": {"z": BatchPromise(1, 1)}}, "d"), 11, 200)
    snapshot = streams.snapshot(9)
    restored.restore(snapshot, 300)
    assert snapshot.pieces_from == 0  # the piece of the undecided attempt
    assert restored.get("q").decisions == streams.get("q").decisions
    assert [attempt.restored for attempt in restored.get("q").held()] == [True]
