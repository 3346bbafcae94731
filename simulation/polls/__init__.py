"""Pull consumers whose applications poll, commit, seek, close and die, and their checkers."""
