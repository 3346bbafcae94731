"""Command ``halfmoon``: one module a noun, listed in `shared.command_group`. Uses the client's public names only."""
