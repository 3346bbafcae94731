"""Decisions of clients: operations as generators over `halfmoon.effects`. Never waits, never looks at a clock, opens nothing."""
