"""Half messages: stored, decided, checked, expired, and what operators ask about them."""
