"""Operations on topics beyond creating and deleting them."""
