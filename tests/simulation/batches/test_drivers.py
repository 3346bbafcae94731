"""One driver on a cluster where nothing goes wrong: it writes its batches, each once."""

from __future__ import annotations

from simulation.batches.checkers import copies
from simulation.batches.drivers import BatchDriver
from simulation.batches.queries import QUEUES, TOPIC, Query
from simulation.batches.watch import Watch
from simulation.history import History, Workload


def test_a_tidy_driver_writes_every_message_once_and_another_life_of_it_nothing() -> None:
    history = History(Workload, 1, flush="async")
    history.make_world()
    history.create_topics(TOPIC, queues=QUEUES)
    watch = Watch(history.cluster)
    query = Query("query-0", history.plan.brokers, partitions=2, rows=3, target=2, wandering=False)
    for lives in (1, 2):
        driver = BatchDriver(history.cluster, query, tidy=True)
        history.cluster.timeline.run_until(lambda driver=driver: driver.ended, 60_000)  # type: ignore[misc]
        history.cluster.run(ms=2_000)
        there = copies(history.contents(history.places([TOPIC], QUEUES)))
        assert (query.lives, query.done, query.problems) == (lives, 1, [])
        assert {name: len(those) for name, those in there.items()} == {row.name: 1 for row in query.expected()}
    assert watch.looks > 0
    assert watch.problems([query]) == []


def test_a_killed_driver_ends_nothing() -> None:
    history = History(Workload, 1, flush="async")
    history.make_world()
    history.create_topics(TOPIC, queues=QUEUES)
    query = Query("query-0", history.plan.brokers, partitions=2, rows=3, target=2, wandering=False)
    driver = BatchDriver(history.cluster, query, tidy=True)
    driver.kill()
    history.cluster.run(ms=10_000)
    assert not driver.ended
    assert query.done == -1
