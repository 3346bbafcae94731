"""Connections to servers: multiplexed on asyncio, one request at a time in a waiting thread, and one for much data."""
