"""Joins the cores to the shell: what the commands, the pytest plugin and the ``__main__`` modules start. Decides nothing itself."""
