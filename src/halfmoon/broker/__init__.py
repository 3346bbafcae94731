"""The broker core, one file per service: it decides what is stored, who reads what, and what each peer is answered. Never waits."""
