"""What runs in a cluster: its brokers, their settings, and the clients that are connected."""
