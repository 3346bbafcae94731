"""The queue of one delay level: when it wants to be called."""


def test_a_level_sleeps_until_its_next_message_is_due(talk):
    queue = talk.broker.delays.level_queues[2]
    talk.wait(1_000)
    assert queue.due is None

    for _ in range(2):
        talk.send(properties="DELAY\x012\x02")
        talk.wait(100)
    assert queue.due == talk.now - 200 + 5_000
    talk.wait(4_800)
    assert (queue.offset, talk.broker.store.queue_max("T", 0)) == (1, 1)
    talk.wait(100)
    assert (queue.offset, talk.broker.store.queue_max("T", 0)) == (2, 2)


def test_what_the_last_process_left_is_stored_before_anything_else(talk):
    queue = talk.broker.delays.level_queues[1]
    queue.leave([], 7)
    assert (queue.left, queue.offset) == ([], 7)
