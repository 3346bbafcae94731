"""Tests of the simulated world itself."""
