"""What all database providers share: the contract, tables, errors, and what is particular about a database."""
