"""Bytes and values, both ways: frames, headers, stored records, ids and JSON bodies. Does no input or output."""
