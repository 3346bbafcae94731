"""Transactional producers, their databases and operators under faults, and their checkers."""
