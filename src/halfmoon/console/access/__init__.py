"""Access to the console: users and their passwords, sessions, the lock-out after failed logins, the audit log. Knows no HTTP."""
