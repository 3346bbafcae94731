"""What commands share: their group, options, and how they write for people and for programs."""
