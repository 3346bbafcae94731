"""The name server: which topic lies at which broker. A pure core; `halfmoon.nameserver.__main__` joins it to the shell."""
