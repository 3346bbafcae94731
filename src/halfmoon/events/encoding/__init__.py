"""Events as messages: payloads as bytes, and which property holds what."""
