"""`halfmoon delay` and the delays of `halfmoon produce` against a running broker."""

from __future__ import annotations


def test_what_waits_is_listed_and_cancelled(run, topic):
    [sent] = run("produce", "--topic", topic, "--key", "k1", "--tag", "A", "--delay", "2d", "later", "--json").lines()
    run("produce", "--topic", topic, "--delay-level", "18", "in two hours")

    found = run("delay", "list", "--topic", topic, "--json").json()
    assert [(one["level"], one["keys"], one["tag"]) for one in found["messages"]] == [(18, "", ""), (0, "k1", "A")]
    assert found["messages"][1]["handle"] == sent["recall_handle"]
    assert found["messages"][1]["msg_id"] == sent["msg_id"], "names are those of the other commands"
    shown = run("delay", "list", "--topic", topic)
    assert shown.code == 0
    assert sent["msg_id"] in shown.out
    assert "1d23h" in shown.out

    assert run("delay", "cancel", "--topic", topic, sent["msg_id"], "--yes", "--json").json() == {"cancelled": sent["msg_id"]}
    again = run("delay", "cancel", sent["msg_id"], topic, "--yes")
    assert (again.code, "604" in again.err) == (1, True)
    assert [one["level"] for one in run("delay", "list", "--topic", topic, "--json").json()["messages"]] == [18]


def test_a_time_to_deliver_at_is_read_as_a_time(run, topic):
    assert run("produce", "--topic", topic, "--deliver-at", "2020-01-01T00:00:00Z", "now").code == 0
    assert [each["body"] for each in run("consume", "--topic", topic, "--json").lines()] == ["now"]
    assert run("produce", "--topic", topic, "--deliver-at", "soon", "x").code == 2
    assert run("produce", "--topic", topic, "--delay", "1s", "--delay-level", "1", "x").code == 2


def test_a_message_is_cancelled_only_when_that_is_confirmed(run, topic, at_terminal):
    sent = run("produce", topic, "--delay", "2d", "later", "--json").json()["msg_id"]
    unasked = run("delay", "cancel", sent, topic)
    declined = at_terminal("n\n", "delay", "cancel", sent, topic)

    assert (unasked.code, "Not done. Add --yes to" in unasked.err) == (2, True)
    assert (declined.code, f"cancel the delayed message {sent} to topic {topic}, never to be delivered?" in declined.err) == (
        1,
        True,
    )
    assert len(run("delay", "list", topic, "--json").json()["messages"]) == 1
    assert at_terminal("y\n", "delay", "cancel", sent, topic).code == 0
    assert run("delay", "list", topic, "--fail-if-empty").code == 1
    assert run("delay", "list", topic).code == 0


def test_a_delay_without_a_unit_is_refused_with_both_readings(run, topic):
    assert "--delay 10: 10s or 10ms?" in run("produce", topic, "--delay", "10", "x").err
