"""A bookshop with FastAPI and SQLAlchemy whose orders are mailed if and only if they are in the database."""
