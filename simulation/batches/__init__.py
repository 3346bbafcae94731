"""Batch transactions: queries, the drivers that write them, what consumers could have seen, checkers."""
