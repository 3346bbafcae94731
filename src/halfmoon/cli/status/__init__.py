"""`halfmoon status`: what a cluster says of itself, once or as a live screen."""
