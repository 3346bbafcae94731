"""A topic as a dataset: what other libraries see of it, filters that brokers can answer, and reading ahead."""
