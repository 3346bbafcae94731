"""A broker in memory: `broker` keeps and checks, `groups` deliver, `records` are the states of a message, `transport` carries.

`halfmoon.events.testing.MemoryBus` is the broker, with time and consumers.
"""
