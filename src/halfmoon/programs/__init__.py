"""Joins the cores to the runtime: what the commands, the pytest plugin and the ``__main__`` modules start. Decides nothing."""
