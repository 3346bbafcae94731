"""A Django app of the tests: orders, and what belongs to them."""
