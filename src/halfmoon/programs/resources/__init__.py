"""Resources of the servers on this machine: connections to others, and directories."""
