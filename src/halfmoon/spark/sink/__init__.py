"""The sink: tables as topics."""
