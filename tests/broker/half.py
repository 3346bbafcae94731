"""Half messages as tests send, end and look at them."""

from __future__ import annotations

from halfmoon.wire.bodies import HeartbeatData, ProducerData, to_json
from halfmoon.wire.codes import JSON
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.transaction import (
    CheckTransactionState,
    EndTransaction,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records

TOPIC, GROUP = "BenchmarkTest", "orders"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
CHECKS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 5000}


def half_properties(key="u1", group=GROUP, more=""):
    return f"KEYS\x01k\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01X\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{more}"


def prepare(talk, key="u1", *, body=b"order", group=GROUP, queue_id=3, more="", topic=TOPIC, **kw):
    """Send a half message and return the header of its answer."""
    reply = talk.send(topic, body, queue_id=queue_id, properties=half_properties(key, group, more), **kw)
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageReply)


def end(talk, sent, decision, *, oneway=False, peer=1, serialization=JSON, **changes):
    """Send the second phase of a half message; return the answer, None for a one-way."""
    return talk.ask(end_header(sent, decision, **changes), oneway=oneway, peer=peer, serialization=serialization)


def end_header(sent, decision, *, group=GROUP, check=False, index=None, place=None, open=None, not_mine=None, key="u1"):
    """Return the request of the second phase of a half message."""
    return EndTransaction(
        producer_group=group, tran_state_table_offset=sent.queue_offset if index is None else index,
        commit_log_offset=parse_offset_msg_id(sent.msg_id).physical_offset if place is None else place,
        commit_or_rollback=decision, msg_id=key, from_transaction_check=check,
        still_open=open, not_mine=not_mine,
    )  # fmt: skip


def stored(talk, topic, queue_id=0):
    """Return every message of a queue, read from the store itself."""
    found = []
    while pieces := talk.broker.store.read(topic, queue_id, len(found), 100).pieces:
        for piece in pieces:
            found += decode_records(bytes(piece))
    return found


def produce(talk, *groups, peer=1):
    """Send the heartbeat of a producer."""
    data = HeartbeatData(client_id=f"producer-{peer}", producer_data_set=[ProducerData(group) for group in groups])
    assert talk.ask(HeartBeat(), to_json(data), peer=peer).code == 0


def checks(talk, peer=1):
    """Take out the checks that a connection received: header and message of each."""
    found = [c for c in talk.received[peer] if not c.is_response and c.code == 39]
    for command in found:
        talk.received[peer].remove(command)
    return [(command.header(CheckTransactionState), decode_records(bytes(command.body))[0]) for command in found]
