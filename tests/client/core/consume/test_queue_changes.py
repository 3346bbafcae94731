"""Listeners of a pull consumer that are told when a topic has other queues than before."""

from __future__ import annotations

from halfmoon.model import MessageQueue
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.queue_of import Queues, poll, started
from tests.client.scripted import Scripted, route, routes

ONE = MessageQueue("orders", "broker-a", 0)


def assigned(script, *queues, **values):
    core = poll(script, **values)
    script.run(core.assign(queues))
    return started(script, core)


def test_a_listener_hears_of_the_queues_of_a_topic_when_they_are_others_than_before():
    script, heard = Scripted(), []
    Queues(script, 2)
    core = poll(script, queues_check_ms=1_000)
    script.run(core.on_queues_changed("orders", lambda topic, queues: heard.append((topic, queues))))
    started(script, core)

    script.run_for(3_000)
    assert heard == []
    script.on(GetRouteinfoByTopic, routes(orders=route(3)))
    script.run_for(3_000)
    assert heard == [("orders", [MessageQueue("orders", "broker-a", i) for i in range(3)])]
    script.on(GetRouteinfoByTopic, routes(orders=route(1)))
    script.run_for(3_000)

    assert heard[1:] == [("orders", [ONE])]


def test_a_listener_that_comes_while_it_runs_hears_of_what_changes_from_then_on_and_one_that_fails_hears_on(caplog):
    script, heard = Scripted(), []
    Queues(script, 2)
    core = assigned(script, ONE, queues_check_ms=1_000)

    def fails(topic, queues):
        heard.append(len(queues))
        raise ValueError("no")

    script.run(core.on_queues_changed("orders", fails))
    for count in (3, 4):
        script.on(GetRouteinfoByTopic, routes(orders=route(count)))
        script.run_for(2_000)

    assert heard == [3, 4]
    said = "listener of queue changes failed: group=C topic=orders; it is called again when the queues change again"
    assert [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"] == [said] * 2


def test_a_topic_that_cannot_be_asked_for_is_no_change_and_one_that_was_never_heard_of_is_when_it_comes(caplog):
    script, heard = Scripted(), []
    Queues(script, 2)
    core = poll(script, queues_check_ms=1_000)
    script.run(core.on_queues_changed("letters", lambda topic, queues: heard.append(len(queues))))
    script.run(core.assign([ONE]))
    started(script, core)

    script.run_for(3_000)
    assert heard == []
    assert "queues not known: group=C topic=letters" in caplog.text
    script.on(GetRouteinfoByTopic, routes(orders=route(2), letters=route(2)))
    script.run_for(2_000)

    assert heard == [2]
