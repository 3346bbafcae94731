"""Who may use the console: users and their passwords, sessions, the lock-out of those who guess, the audit log. Knows no HTTP."""
