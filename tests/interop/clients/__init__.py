"""Clients that nobody here wrote, from their registries: what each can do with our name server and broker.

`table` has the behaviours and the clients, one JSON file a client; ``tools/generate_clients.py`` writes the page from it. `peers`
builds and starts a client's program, which lies beside it and obeys the verbs that `tests.interop.peer` tells of.

To add a client: its program, its line in `peers.PEERS`, and its JSON file with what it cannot do.
"""
