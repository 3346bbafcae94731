"""Messages of a topic by their unique key, with and without the key index."""

from halfmoon.broker.lookup import message_of, messages_with


def test_messages_of_a_key_are_found_newest_first_and_only_in_their_topic(talk):
    for topic in ("T", "T", "U"):
        talk.send(topic, properties="UNIQ_KEY\x01k\x02")
    talk.send("T", properties="KEYS\x01k\x02")  # a key that its sender chose, not the unique one

    messages = messages_with(talk.broker.store, "T", "k")
    assert [message.queue_offset for message in messages] == [1, 0]
    assert messages_with(talk.broker.store, "T", "") == []


def test_a_damaged_record_is_no_message(talk):
    talk.send("T", b"body")
    [place] = [message.physical_offset for message in map(message_of, talk.broker.store.read("T", 0, 0, 1).pieces)]
    record = bytearray(talk.broker.store.record(place))
    record[4:8] = bytes(4)  # its magic
    assert message_of(memoryview(record)) is None
    assert message_of(None) is None
