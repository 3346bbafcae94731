"""Publishing events: the publisher, the way that each event goes, and the transport that carries it."""
