"""Tests of the bodies about assignment by brokers, as a Java 5.3.3 consumer writes and reads them."""

from __future__ import annotations

from halfmoon.model import MessageModel, MessageQueue
from halfmoon.wire.bodies import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MessageRequestMode,
    QueueAssignment,
    from_json,
    to_json,
)


def test_a_question_is_read_as_java_writes_it():
    text = b'{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"t"}'

    assert from_json(AssignmentQuery, text) == AssignmentQuery("t", "g", "c", "AVG", MessageModel.CLUSTERING)


def test_no_list_and_an_empty_list_are_two_things():
    assert to_json(Assignments()) == b"{}"
    assert to_json(Assignments(message_queue_assignments=[])) == b'{"messageQueueAssignments":[]}'


def test_an_assignment_is_written_as_java_reads_it():
    row = QueueAssignment(message_queue=MessageQueue("t", "b", 1), mode=MessageRequestMode.PULL)

    text = to_json(Assignments(message_queue_assignments=[row]))

    assert text == b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":1,"topic":"t"},"mode":"PULL"}]}'


def test_a_mode_that_nobody_knows_is_none():
    assert from_json(GroupRequestMode, b'{"topic":"t","mode":"POP","popShareQueueNum":-1}').mode is MessageRequestMode.POP
    assert from_json(GroupRequestMode, b'{"topic":"t","mode":"PUSH"}').mode is None
