"""The transaction index: RocketMQ 3.x's state table beside the log of a 4.x broker."""
