"""How the shop is put together."""
