"""Progress of delayed messages over stops and kills."""

from halfmoon.broker.delay.progress import PATH


def test_a_clean_stop_leaves_the_progress_in_the_table_of_apache(talk):
    talk.send(properties="DELAY\x011\x02")
    talk.wait(2_000)
    talk.restart()
    assert b"{1:1," in talk.disk.read(PATH)
    assert talk.broker.delays.level_queues[1].offset == 1


def test_a_delivery_that_was_begun_and_is_in_the_log_is_not_repeated(talk):
    talk.send(properties="DELAY\x011\x02")
    talk.wait(2_000)
    [message] = talk.broker.store.read("T", 0, 0, 32).pieces
    talk.broker.delays.progress.begin(1, 1)
    talk.restart()
    talk.wait(5_000)
    assert [bytes(piece) for piece in talk.broker.store.read("T", 0, 0, 32).pieces] == [bytes(message)]
