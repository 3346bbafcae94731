"""Checks written by hand; a module that nothing imports but the project's settings."""

from __future__ import annotations
