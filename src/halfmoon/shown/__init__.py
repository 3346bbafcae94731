"""What people are shown of a cluster, in commands and in the console: times, spans, rates, and which names are theirs."""
