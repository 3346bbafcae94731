"""Damage excuses what it concerns, and nothing else."""

from __future__ import annotations

from simulation.damage.log import Hit
from simulation.transactions.damage import concerned, of_the_others
from simulation.transactions.log import HALF_TOPIC, OP_TOPIC

KNOWN = {("broker-a", 0): "P_shop.1-1", ("broker-a", 1): "P_shop.1-2"}


def hit(topic: str, queue_offset: int, body: bytes) -> Hit:
    return Hit(0, topic, 0, queue_offset, "", body)


def test_a_half_message_or_its_op_record_that_was_hit_concerns_its_transaction() -> None:
    by_half = concerned({"broker-a": [hit(HALF_TOPIC, 0, b"P_shop.1-1|")]}, KNOWN, {})
    by_op = concerned({"broker-a": [hit(OP_TOPIC, 7, b"0,")]}, KNOWN, {})
    assert (by_half.keys, by_half.indexes) == (by_op.keys, by_op.indexes) == ({"P_shop.1-1"}, {("broker-a", 0)})


def test_problems_of_other_transactions_and_what_no_damage_excuses_stay() -> None:
    damaged = concerned({"broker-a": [hit(HALF_TOPIC, 0, b"P_shop.1-1|")]}, KNOWN, {})
    excused = ["broker-a: half message 0 (P_shop.1-1) is pending"]
    kept = {
        "ends": ["broker-a: half message 1 (P_shop.1-2) is pending", "broker-b: half message 0 (P_bank.1-1) is pending"],
        "leaked": ["P_shop.1-1 was read from a queue"],
        "twice": ["broker-a: P_shop.1-1 at 0 is visible 2 times"],
    }
    assert of_the_others({**kept, "ends": excused + kept["ends"]}, damaged) == kept
