"""`halfmoon status`: state of a cluster, once or as a live screen."""
