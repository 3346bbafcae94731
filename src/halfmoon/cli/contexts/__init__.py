"""Named contexts: clusters with the way to reach them, kept in a file of the user."""
