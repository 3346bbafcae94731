"""Members of a pair as programs: each follows the master, or is it, as a lease says."""
