"""What the services of one broker share."""


def test_the_services_share_one_of_each(talk):
    broker, context = talk.broker, talk.broker.context
    assert broker.tables is context.tables
    assert broker.topics is context.topics
    assert broker.pending_replies is context.pending_replies
    assert context.queue_waiters._store is broker.store


def test_a_topic_that_is_created_again_makes_the_offsets_of_present_connections_suspect(talk):
    talk.connect(1)
    topics, stale_offsets = talk.broker.topics, talk.broker.stale_offsets
    topics.ensure("T", 1, talk.now)
    assert not stale_offsets.suspect(talk.broker.peers.get(1), "T")
    topics.delete("T", talk.now)
    topics.ensure("T", 1, talk.now)
    assert stale_offsets.suspect(talk.broker.peers.get(1), "T")
