"""Savepoints of Django: what was registered in one shares its fate, whoever made it."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from tests.events.django.orders.models import Order
from tests.events.django.told import BLOCKS, Block, fails, follow


def test_a_savepoint_made_by_hand_counts_and_may_be_rolled_back_to_twice(using: str):
    notes: list[str] = []
    with transaction.atomic(using=using):
        follow(using, "outer ", notes)
        sid = transaction.savepoint(using=using)
        follow(using, "first ", notes)
        transaction.savepoint_rollback(sid, using=using)
        follow(using, "second ", notes)
        transaction.savepoint_rollback(sid, using=using)
        follow(using, "third ", notes)
        transaction.savepoint_commit(sid, using=using)
        assert notes == ["first rolled back", "second rolled back"]

    assert [note for note in notes if note.endswith("committed")] == ["outer committed", "third committed"]


def test_a_savepoint_older_than_the_first_publish_undoes_all_that_came_after_it(using: str):
    notes: list[str] = []
    with transaction.atomic(using=using):
        sid = transaction.savepoint(using=using)
        follow(using, "undone ", notes)
        with transaction.atomic(using=using):
            follow(using, "undone too ", notes)
        transaction.savepoint_rollback(sid, using=using)
        assert notes == ["undone rolled back", "undone too rolled back"]
        follow(using, "kept ", notes)

    assert notes[-1] == "kept committed"


@BLOCKS
def test_an_inner_block_without_savepoint_that_fails_takes_the_outer_one_with_it(using: str, block: Block):
    notes: list[str] = []
    with block(using=using):
        follow(using, "outer ", notes)
        with fails(RuntimeError), block(using=using, savepoint=False):
            follow(using, "inner ", notes)
            raise RuntimeError
        assert notes == []

    assert sorted(notes) == ["inner rolled back", "outer rolled back"]


def test_an_error_of_a_statement_that_is_swallowed_outside_any_savepoint_still_rolls_back(using: str):
    Order.objects.using(using).create(number="1")
    with transaction.atomic(using=using):
        told = follow(using)
        with pytest.raises(DatabaseError):
            Order.objects.using(using).create(number="1")

    assert told.notes == ["rolled back"]
