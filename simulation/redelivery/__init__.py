"""Messages whose listeners fail, their retries and dead letters, and their checkers."""
