"""Drivers: they run operations (generators over `halfmoon.effects`) on asyncio, or in the thread that asks."""
