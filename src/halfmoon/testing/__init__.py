"""Simulated time, network and disk; histories, checkers and planted faults; brokers for users' tests. Used by tests only."""
