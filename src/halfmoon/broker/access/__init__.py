"""Access control: accounts and their rules, the check of each request, and the requests that administer accounts."""
