"""`fsck`: a stopped store compared with its log."""
