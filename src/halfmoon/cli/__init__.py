"""The command ``halfmoon``: one module a noun, a table of them in `shared.command_group`. Uses the client's public names only."""
