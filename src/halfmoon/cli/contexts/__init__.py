"""Named contexts: which cluster commands ask, and how, kept in one file of the user's."""
