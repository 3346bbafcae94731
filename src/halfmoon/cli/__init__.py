"""The command ``halfmoon``: one module a noun, a table of them in `halfmoon.cli.main`. Uses the client's public names only."""
