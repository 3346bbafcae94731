"""What a broker says of itself to monitoring: which metrics there are, and their values now."""
