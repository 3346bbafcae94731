"""The client SDK: producers, consumers and administration, blocking and asyncio, over one pure core (`halfmoon.client.core`)."""
