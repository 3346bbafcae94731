"""The order in which a decided batch is published, and which pieces may hold delays."""

from halfmoon.broker.batches.publishing import in_order, may_wait
from halfmoon.broker.batches.records import Piece
from halfmoon.broker.batches.state import Application, AttemptState
from halfmoon.wire.record import BatchItem, encode_batch


def test_pieces_are_published_by_queue_then_partition_then_sequence():
    attempts = {}
    for name, partition in (("late", 1), ("early", 0)):
        attempt = attempts[name] = AttemptState(name, 1, 0, 1000, 0)
        for queue_id, first_seq in ((1, 0), (0, 2), (0, 0)):
            attempt.add(Piece(partition, first_seq, "T", queue_id, 2, 0, 0, 10, 0))
    ordered = [(piece.queue_id, piece.partition, piece.first_seq) for piece in in_order(Application(1, attempts))]
    assert ordered == [(0, 0, 0), (0, 0, 2), (0, 1, 0), (0, 1, 2), (1, 0, 0), (1, 1, 0)]


def test_a_piece_may_hold_a_delay_only_where_a_property_asks_for_one():
    assert may_wait(encode_batch([BatchItem(b"b", b"DELAY\x013\x02")]))
    assert not may_wait(encode_batch([BatchItem(b"b", b"KEYS\x01DELAYED\x02")]))
