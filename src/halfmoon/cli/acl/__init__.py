"""`halfmoon acl`: accounts of a cluster with access control."""
