"""Commands about the parts of a cluster: its brokers, their settings, and connected clients."""
