"""Command ``halfmoon``: one module a noun, listed in `shared.command_group`.

Uses the client, programs, console, events and Spark by their public names.
"""
