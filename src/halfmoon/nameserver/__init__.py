"""The name server: which topic lies at which broker. A pure core; `halfmoon.programs` joins it to the runtime."""
