"""Commands about the directory of a store: check, repair, dump, back up."""
