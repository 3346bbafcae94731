"""Health of a cluster and of its groups: facts from brokers and members, and the findings that follow from them."""
