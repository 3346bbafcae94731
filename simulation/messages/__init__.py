"""Messages that are sent, pulled and committed under every kind of fault, and their checkers."""
