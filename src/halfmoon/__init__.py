"""Halfmoon: transactional messaging for Python on the RocketMQ protocol."""
