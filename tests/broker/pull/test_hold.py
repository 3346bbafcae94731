"""Pulls that wait: woken by what they want, given back at their deadline, forgotten with their connection."""

from halfmoon.broker.pull.hold import Hold, Holds


def hold(peer=1, queue=0, offset=5, codes=None, deadline=1000):
    return Hold(peer, ("T", queue), offset, codes, deadline, f"pull of {peer}")


def test_a_message_at_or_behind_the_offset_wakes_the_pull():
    holds = Holds(10)
    waiting = hold(offset=5)
    holds.park(waiting)

    assert holds.arrived("T", 0, 5, [0]) == []
    assert holds.arrived("T", 0, 6, [0]) == [waiting]
    assert holds.arrived("T", 0, 7, [0]) == []


def test_a_pull_that_takes_more_room_leaves_less_to_its_connection_and_to_all():
    holds, large = Holds(4, of_peer_max=3), hold(peer=1)
    large.room = 3
    assert holds.park(large)
    assert not holds.park(hold(peer=1))
    assert holds.park(hold(peer=2))
    assert not holds.park(hold(peer=2))

    holds.lost(1)

    assert (holds.count, holds.room) == (1, 1)
    assert holds.park(hold(peer=1))


def test_a_message_with_another_tag_does_not_wake_the_pull():
    holds = Holds(10)
    waiting = hold(codes=frozenset({7}))
    holds.park(waiting)

    assert holds.arrived("T", 0, 6, [8, 9]) == []
    assert holds.arrived("T", 0, 8, [9, 7]) == [waiting]


def test_a_message_of_another_queue_does_not_wake_the_pull():
    holds = Holds(10)
    holds.park(hold(queue=1))

    assert holds.arrived("T", 0, 100, [0]) == []


def test_pulls_come_back_in_the_order_of_their_deadlines():
    holds = Holds(10)
    late, early = hold(peer=1, deadline=2000), hold(peer=2, deadline=1000)
    holds.park(late)
    holds.park(early)

    assert holds.due() == 1000
    assert holds.expired(999) == []
    assert holds.expired(1000) == [early]
    assert holds.due() == 2000


def test_no_more_come_back_at_once_than_are_asked_for():
    holds = Holds(10)
    for number in range(5):
        holds.park(hold(peer=number, deadline=1000))

    assert [each.peer for each in holds.expired(1000, 2)] == [0, 1]
    assert holds.due() == 1000
    assert [each.peer for each in holds.expired(1000, 9)] == [2, 3, 4]


def test_a_woken_pull_has_no_deadline_any_more():
    holds = Holds(10)
    holds.park(hold())
    holds.arrived("T", 0, 6, [0])

    assert holds.due() is None
    assert holds.expired(10**15) == []


def test_the_pulls_of_a_lost_connection_are_forgotten():
    holds = Holds(10)
    holds.park(hold(peer=1))
    other = hold(peer=2)
    holds.park(other)

    holds.lost(1)

    assert holds.arrived("T", 0, 6, [0]) == [other]
    assert holds.count == 0


def test_beyond_the_bound_a_pull_is_not_parked():
    holds = Holds(1)

    assert holds.park(hold(peer=1)) is True
    assert holds.park(hold(peer=2)) is False


def test_deadlines_of_pulls_that_are_over_do_not_pile_up():
    holds = Holds(10)
    for offset in range(1000):
        holds.park(hold(offset=offset, deadline=10**9))
        holds.arrived("T", 0, offset + 1, [0])

    assert len(holds._deadlines) < 200


def test_one_connection_holds_at_most_its_share():
    holds = Holds(10, of_peer_max=2)

    assert [holds.park(hold(peer=1)) for _ in range(3)] == [True, True, False]
    assert holds.park(hold(peer=2))


def test_thousands_of_pulls_of_one_queue_cost_each_the_same():
    holds = Holds(1_000_000)
    for number in range(50_000):
        holds.park(hold(peer=number % 10))

    assert len(holds.arrived("T", 0, 6, [0])) == 50_000  # by walking a list for each it would take minutes
    assert (holds.count, holds.of_queue("T", 0)) == (0, 0)
