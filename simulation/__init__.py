"""A whole cluster in virtual time: simulated network, disks and clocks; histories, faults and checkers. Tests only."""
