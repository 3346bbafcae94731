"""A small shop: people order books, and get a mail when their order is paid."""
