"""What users' tests get: the pytest plugin and a local broker."""
