"""A message's life: what happened to it, and how far each group is with it."""
